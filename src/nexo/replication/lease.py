"""The lease: who leads, renewed so often that a missing renewal shows that the leader is gone.

``lease/<number>`` is created only if absent, once per renewal; the newest counts. It decides
when a standby tries to take over, and nothing else: the numbers of the logs fence. A leader
whose renewal meets another's object knows that it is over.
"""

from __future__ import annotations

from contextlib import suppress

import msgspec

from nexo.replication.objects import (
    AlreadyThere,
    ObjectFormat,
    ObjectStore,
    StoreFailed,
    delete_below,
    next_number,
    numbered,
)

LEASE = "lease/"
STANDBY = "standby/"
HANDOVER = "handover/"
KEPT = 20
"""How many of the newest leases are kept."""


class LeaderLease(msgspec.Struct, frozen=True, array_like=True):
    """One renewal."""

    term: str
    """Names one leadership; never used again."""
    server: str
    """Names a data folder."""
    address: str
    """Where clients find the leader."""
    lease_ms: int
    """It ends unless it is renewed in this time."""
    time_ms: int
    """The leader's clock, for people."""
    heads: dict[str, int]
    """The next number of each broker's log."""
    released: bool = False
    """The leader has stopped: anybody may take over at once."""
    to: str = ""
    """Released lease only: the one server that should take over, if it is there."""
    alone: bool = False
    """The leader knows of no standby, so it may continue after the end of this lease."""


class Standby(msgspec.Struct, frozen=True, array_like=True):
    """What a standby says of itself, under ``standby/<server>/<number>``."""

    server: str
    address: str
    time_ms: int
    applied: dict[str, int]
    """The next number of each broker's log to apply."""


_FORMAT = ObjectFormat(b"NEXOLSE\0", LeaderLease, "lease")


def get(store: ObjectStore, number: int) -> LeaderLease | None:
    data = store.get(numbered(LEASE, number))
    return None if data is None else _FORMAT.unpack(data, number)


def newest(store: ObjectStore) -> tuple[int, LeaderLease] | None:
    """The newest lease and its number; None if nobody ever led."""
    number = next_number(store, LEASE) - 1
    if number < 0:
        return None
    lease = get(store, number)
    return newest(store) if lease is None else (number, lease)


def create(store: ObjectStore, number: int, lease: LeaderLease) -> bool:
    """Create the lease of a number; False if another one has it.

    A try whose reply was lost is found to be one's own. Raises `StoreFailed` if the store refused
    it although nothing is there.
    """
    try:
        store.create(numbered(LEASE, number), _FORMAT.pack(lease, number))
    except AlreadyThere:
        found = get(store, number)
        if found is None:
            raise StoreFailed(f"lease {number} was refused, and there is none") from None
        return found.term == lease.term
    return True


def forget(store: ObjectStore, below: int) -> None:
    """Delete leases far below a number."""
    delete_below(store, LEASE, max(0, below - KEPT))


def announce(store: ObjectStore, standby: Standby, number: int) -> None:
    """Say that a standby is there; announcements of lower numbers are deleted.

    May be called again with the same number if its outcome is unknown.
    """
    prefix = f"{STANDBY}{standby.server}/"
    with suppress(AlreadyThere):  # by an earlier try
        store.create(numbered(prefix, number), msgspec.msgpack.encode(standby))
    delete_below(store, prefix, number)


def withdraw(store: ObjectStore, server: str) -> None:
    """Delete the announcements of a standby."""
    store.delete(store.list(f"{STANDBY}{server}/"))


def standbys(store: ObjectStore) -> dict[str, Standby]:
    """The newest announcement of each standby, by server id."""
    found: dict[str, Standby] = {}
    for key in store.list(STANDBY):
        data = store.get(key)
        if data is not None:
            standby = msgspec.msgpack.decode(data, type=Standby)
            found[standby.server] = standby
    return found


def ask_handover(store: ObjectStore, term: str, to: str) -> None:
    """Ask the leader of a term to stop in favour of a standby."""
    with suppress(AlreadyThere):
        store.create(f"{HANDOVER}{term}", to.encode())


def asked_handover(store: ObjectStore, term: str) -> str | None:
    """The standby for which the leader of a term was asked to stop; None if it was not."""
    data = store.get(f"{HANDOVER}{term}")
    return None if data is None else data.decode()
