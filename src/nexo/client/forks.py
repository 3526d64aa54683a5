"""Clients in forked processes.

A forked child inherits connections and locks, but no threads. Two processes that use one connection
would take each other's replies (SPEC A6), and a child that keeps it open would hide the parent's
end from the server. So whatever holds connections is notified in the child, drops them, and either
opens its own or raises that it belongs to the parent.
"""

from __future__ import annotations

import os
import weakref
from typing import NoReturn, Protocol


class NotPicklable:
    """Base of objects that hold connections and so cannot be pickled."""

    def __reduce_ex__(self, _protocol: object) -> NoReturn:
        raise TypeError(
            "clients and what they hand out cannot be pickled or copied: send their values, and"
            " connect in each process"
        )


class Inherited(Protocol):
    """An object that a forked child must not use as it is."""

    def forked(self) -> None:
        """Called in the child: drop connections, and wait for no lock: its holder may be gone."""


_inherited: weakref.WeakSet[Inherited] = weakref.WeakSet()


def on_fork(holder: Inherited) -> None:
    """Call ``holder.forked()`` in every process that is forked from now on."""
    _inherited.add(holder)


def from_before(what: str) -> str:
    """The error text for using in a child what belongs to the parent."""
    return f"{what} was made before this process was forked: make one here"


def _in_child() -> None:
    for holder in list(_inherited):
        holder.forked()


os.register_at_fork(after_in_child=_in_child)
