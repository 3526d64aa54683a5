"""The lease: who leads, renewed so often that its end shows that the leader is gone.

``lease/<number>`` is created only if absent, once per renewal; the newest counts. It decides
when a standby tries to take over, and nothing else: the numbers of the logs fence. A leader
whose renewal meets another's object knows that it is over.
"""

from __future__ import annotations

from contextlib import suppress

import msgspec

from nexo.errors import Corrupt
from nexo.replication.objects import AlreadyThere, ObjectStore, StoreFailed, number_of
from nexo.storage import sealed

MAGIC = b"NEXOLSE\0"
LEASE = "lease/"
STANDBY = "standby/"
HANDOVER = "handover/"
KEPT = 20
"""Leases that are left when older ones are deleted."""


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
    """Of a released one: the only server that should, if it is there."""
    alone: bool = False
    """The leader knows of no standby, so it may go on after the end of this lease."""


class Standby(msgspec.Struct, frozen=True, array_like=True):
    """What a standby says of itself, under ``standby/<server>/<number>``."""

    server: str
    address: str
    time_ms: int
    applied: dict[str, int]
    """The next number of each broker's log to apply."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(LeaderLease).decode
_decode_standby = msgspec.msgpack.Decoder(Standby).decode


def lease_key(number: int) -> str:
    """Where the lease of a number is."""
    return f"{LEASE}{number:020}"


def get(store: ObjectStore, number: int) -> LeaderLease | None:
    """The lease of a number."""
    data = store.get(lease_key(number))
    if data is None:
        return None
    payload, mark = sealed.unpack(MAGIC, data)
    if mark != number:
        raise Corrupt(f"lease {number} says that it is {mark}")
    return _decode(payload)


def newest(store: ObjectStore) -> tuple[int, LeaderLease] | None:
    """The newest lease and its number; None if nobody ever led."""
    keys = store.list(LEASE)
    if not keys:
        return None
    number = number_of(keys[-1])
    lease = get(store, number)
    return newest(store) if lease is None else (number, lease)


def create(store: ObjectStore, number: int, lease: LeaderLease) -> bool:
    """Create the lease of a number; False if another one has it.

    A try whose reply was lost is found to be one's own. Raises `StoreFailed` if the store refused
    it although nothing is there.
    """
    try:
        store.create(lease_key(number), sealed.pack(MAGIC, _encode(lease), number))
    except AlreadyThere:
        found = get(store, number)
        if found is None:
            raise StoreFailed(f"lease {number} was refused, and there is none") from None
        return found.term == lease.term
    return True


def forget(store: ObjectStore, below: int) -> None:
    """Delete leases long past."""
    oldest = lease_key(max(0, below - KEPT))
    store.delete([key for key in store.list(LEASE) if key < oldest])


def announce(store: ObjectStore, standby: Standby, number: int) -> None:
    """Say that a standby is there; announcements of lower numbers are deleted.

    May be called again with the same number if its outcome is unknown.
    """
    key = f"{STANDBY}{standby.server}/"
    with suppress(AlreadyThere):  # by an earlier try
        store.create(f"{key}{number:020}", _encode(standby))
    store.delete([old for old in store.list(key) if old < f"{key}{number:020}"])


def withdraw(store: ObjectStore, server: str) -> None:
    """Take the announcement of a standby back."""
    store.delete(store.list(f"{STANDBY}{server}/"))


def standbys(store: ObjectStore) -> dict[str, Standby]:
    """The newest announcement of each standby, with its key."""
    found: dict[str, Standby] = {}
    for key in store.list(STANDBY):
        data = store.get(key)
        if data is not None:
            standby = _decode_standby(data)
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
