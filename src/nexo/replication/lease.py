"""The lease: who leads, renewed so often that a missing renewal shows that the leader is gone.

``lease/<number>`` is created only if absent, once per renewal; the newest counts. It decides
when a standby tries to take over, and who may acknowledge. A leader whose renewal meets another's
object knows that it is over, however long it slept: see `nexo.replication.fence` for what is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import msgspec

from nexo.errors import Corrupt
from nexo.replication import fence
from nexo.replication.objects import (
    AlreadyThere,
    ObjectFormat,
    ObjectStore,
    StoreFailed,
    delete_below,
    number_of,
    numbered,
)

LEASE = "lease/"
STANDBY = "standby/"
HANDOVER = "handover/"


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


DAMAGED_MS = 10_000
"""How long a lease is taken to last that cannot be read."""


def get(store: ObjectStore, number: int) -> LeaderLease | None:
    """The lease of a number. One that is damaged still says that somebody leads."""
    data = store.get(numbered(LEASE, number))
    if data is None:
        return None
    try:
        return _FORMAT.unpack(data, number)
    except Corrupt:
        return LeaderLease(f"damaged {number}", "", "", DAMAGED_MS, 0, {})


def numbers(store: ObjectStore, after: int = -1) -> list[int]:
    """The numbers of the leases that are there, in order."""
    return [
        number_of(key) for key in store.list(LEASE, numbered(LEASE, after) if after >= 0 else "")
    ]


def newest(store: ObjectStore) -> tuple[int, LeaderLease] | None:
    """The newest lease and its number; None if nobody ever led."""
    found = numbers(store)
    if not found:
        return None
    lease = get(store, found[-1])
    return newest(store) if lease is None else (found[-1], lease)


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


def take(store: ObjectStore, number: int, lease: LeaderLease) -> bool:
    """Begin a term with the lease of a number, one more than the newest that was seen.

    Also if nobody else has that number, there must be no newer lease: who sleeps before the put
    may find a number free that another server had used, and deleted.
    """
    return create(store, number, lease) and not numbers(store, after=number)


def renew(store: ObjectStore, number: int, lease: LeaderLease, lapsed: Callable[[], bool]) -> bool:
    """Create a leader's next lease; False if the lead is lost, or cannot be proved.

    ``lapsed``: whether the leader's time is over by now, so that another may have begun.
    """
    created = create(store, number, lease)
    previous = get(store, number - 1) if created else None
    is_late = lapsed()
    return fence.renewal_counts(
        created=created,
        previous_is_mine=previous is not None and previous.term == lease.term,
        lapsed=is_late,
        is_newest=is_late and not numbers(store, after=number),
    )


def forget(store: ObjectStore, first: int, newest: int) -> None:
    """Delete needless leases, for the leader whose term began with lease ``first``."""

    def term_of(number: int) -> str:
        lease = get(store, number)
        return f"none at {number}" if lease is None else lease.term

    gone = fence.needless_leases(numbers(store), first, newest, term_of)
    store.delete([numbered(LEASE, number) for number in gone])


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
