"""What becomes of a client in another process than the one that made it.

A forked child inherits its connections and locks, but not its threads. Two processes that spoke
on one connection would take each other's replies (SPEC A6), and one that only kept it open
would hide the other's end from the server. So whatever holds connections is told in the
child, lets go of them, and opens its own or says that it belongs to the parent.
"""

from __future__ import annotations

import os
import weakref
from typing import NoReturn, Protocol


class NotPicklable:
    """Base of what holds connections: it cannot be sent to another process."""

    def __reduce_ex__(self, _protocol: object) -> NoReturn:
        raise TypeError(
            "clients and what they hand out cannot be pickled or copied: send their values, and"
            " connect in each process"
        )


class Inherited(Protocol):
    """What a child has to be kept from using as it is."""

    def forked(self) -> None:
        """This process is a child: let go, and wait for no lock, as its holder is not here."""


_inherited: weakref.WeakSet[Inherited] = weakref.WeakSet()


def tell_when_forked(holder: Inherited) -> None:
    """Have ``holder.forked()`` called in every process forked from now on."""
    _inherited.add(holder)


def from_before(what: str) -> str:
    """The words for who uses in a child what cannot be shared."""
    return f"{what} was made before this process was forked: make one here"


def _in_child() -> None:
    for holder in list(_inherited):
        holder.forked()


os.register_at_fork(after_in_child=_in_child)
