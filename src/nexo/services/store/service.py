"""The store's use cases: permissions, counters, expiry.

All answer at once except `take_lease`, which may wait for a free lease.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Unpack

from nexo.access.grants import Action, Extent
from nexo.access.permit import ADMIN, READ, WRITE, permit
from nexo.brokers.store.engine import SetConditions, StoreEngine
from nexo.brokers.store.status import status
from nexo.limits import LEASE_WAIT_MS, REPLY_PAYLOADS
from nexo.model import Broker
from nexo.model.store import KeyInfo, KeysPage, LeaseAnswer, RateAnswer, SetResult
from nexo.services.connection import Connection, Done
from nexo.services.service import Runtime
from nexo.services.store import fencing
from nexo.services.store.collections import ListUseCases, MapUseCases, SetUseCases
from nexo.services.store.saving import Saving
from nexo.services.waiting import Wait, WaitingRoom

SWEEP_KEYS = 500
"""Expired keys dropped per tick: well under a millisecond of work."""


class StoreService:
    """Implements `nexo.services.service.Service` around a `StoreEngine`.

    A use case does what the engine's command of the same name does, after the permission check.
    """

    broker = Broker.STORE

    def __init__(self, runtime: Runtime) -> None:
        settings = runtime.settings
        self._runtime = runtime
        self._now_ms = runtime.clock.now_ms
        self._store = StoreEngine(
            settings.store_max_bytes,
            REPLY_PAYLOADS * settings.max_payload_bytes,
            fencing.numbers(runtime.files, runtime.folder, runtime.numbers_after_ms),
        )
        self._saving = Saving(runtime, self._store)
        self._room = WaitingRoom()
        self._lease_due: dict[str, int] = {}
        """When to look again at a key whose leases are waited for."""
        self._hits = self._misses = self._commands = 0
        self.classic_ttl_ms = settings.classic_ttl_ms
        """How long keys last whose clients cannot say; 0 for ever."""
        self._check_leads = runtime.check_leads if settings.replicate else None
        """Called before every change, which needs no disk and would be acknowledged at once."""
        self.maps = MapUseCases(self._store, self._may)
        self.lists = ListUseCases(self._store, self._may)
        self.sets = SetUseCases(self._store, self._may)

    def _may(self, connection: Connection, actions: Sequence[Action], keys: Iterable[str]) -> int:
        """Check permission for a command on ``keys`` and count it; returns the time."""
        identity = connection.identity
        if identity is not None:
            for key in keys:
                permit(identity, Broker.STORE, actions, key)
        if self._check_leads is not None and actions is not READ:
            self._check_leads()
        self._commands += 1
        return self._now_ms()

    # -- one plain value -----------------------------------------------------------

    def get(self, connection: Connection, key: str) -> bytes | None:
        if connection.identity is not None:
            permit(connection.identity, Broker.STORE, READ, key)
        # Without any TTL nothing depends on the time, and asking for it costs.
        now_ms = self._now_ms() if self._store.keyspace.expiry.due else 0
        value = self._store.get(key, now_ms)
        if value is None:
            self._misses += 1
        else:
            self._hits += 1
        return value

    def put(self, connection: Connection, key: str, value: bytes) -> None:
        if connection.identity is not None:
            permit(connection.identity, Broker.STORE, WRITE, key)
        if self._check_leads is not None:
            self._check_leads()
        self._store.put(key, value)
        self._commands += 1
        if self._lease_due:
            self._room.wake(key)

    def set(
        self, connection: Connection, key: str, value: bytes, **given: Unpack[SetConditions]
    ) -> SetResult:
        result = self._store.set(key, value, self._may(connection, WRITE, (key,)), **given)
        self._wake_for_expiry()
        return result

    def getdel(self, connection: Connection, key: str) -> bytes | None:
        return self._store.getdel(key, self._may(connection, WRITE, (key,)))

    def delete_if(self, connection: Connection, key: str, if_equal: bytes) -> bool:
        return self._store.delete_if(key, if_equal, self._may(connection, WRITE, (key,)))

    def incr(self, connection: Connection, key: str, by: float, ttl_ms: int | None = None) -> float:
        total = self._store.incr(key, by, self._may(connection, WRITE, (key,)), ttl_ms)
        self._wake_for_expiry()
        return total

    # -- several keys ---------------------------------------------------------------

    def mget(self, connection: Connection, keys: Sequence[str]) -> list[bytes | None]:
        return self._store.mget(keys, self._may(connection, READ, keys))

    def mset(
        self, connection: Connection, values: Mapping[str, bytes], ttl_ms: int | None = None
    ) -> None:
        self._store.mset(values, self._may(connection, WRITE, values), ttl_ms)
        self._wake_for_expiry()

    def delete(self, connection: Connection, keys: Sequence[str]) -> int:
        count = self._store.delete(keys, self._may(connection, WRITE, keys))
        for key in keys if self._lease_due else ():
            self._room.wake(key)
        return count

    def exists(self, connection: Connection, keys: Sequence[str]) -> int:
        return self._store.exists(keys, self._may(connection, READ, keys))

    def scan(
        self, connection: Connection, prefix: str, glob: str, cursor: str, limit: int
    ) -> KeysPage:
        permit(connection.identity, Broker.STORE, READ, prefix, Extent.PREFIX)
        now_ms = self._may(connection, READ, ())
        return self._store.scan(now_ms, prefix=prefix, glob=glob, cursor=cursor, limit=limit)

    def clear(self, connection: Connection) -> int:
        permit(connection.identity, Broker.STORE, ADMIN, "", Extent.PREFIX)
        self._may(connection, ADMIN, ())
        count = self._store.clear()
        for key in list(self._lease_due):
            self._room.wake(key)
        return count

    # -- life time ------------------------------------------------------------------

    def expire(self, connection: Connection, key: str, ttl_ms: int) -> bool:
        done = self._store.expire(key, ttl_ms, self._may(connection, WRITE, (key,)))
        self._wake_for_expiry()
        return done

    def persist(self, connection: Connection, key: str) -> bool:
        return self._store.persist(key, self._may(connection, WRITE, (key,)))

    def inspect(self, connection: Connection, key: str) -> KeyInfo | None:
        return self._store.inspect(key, self._may(connection, READ, (key,)))

    # -- leases and rate limits -------------------------------------------------------

    def take_lease(
        self,
        connection: Connection,
        ticket: int,
        key: str,
        holder: str,
        ttl_ms: int,
        limit: int,
        wait_ms: int,
        done: Done[LeaseAnswer],
    ) -> None:
        """Grant ``holder`` one of ``limit`` leases of a key, waiting if none is free."""
        now_ms = self._may(connection, WRITE, (key,))
        refused = LeaseAnswer(None, 0)

        def attempt() -> LeaseAnswer | None:
            nonlocal refused
            if self._check_leads is not None:
                self._check_leads()
            now_ms = self._now_ms()
            lease = self._store.leases.take(key, holder, ttl_ms, limit, now_ms)
            self._wake_for_expiry()
            if lease.number is not None:
                return lease
            refused = lease
            self._look_again(key, now_ms + lease.retry_ms)
            return None

        def answer(lease: LeaseAnswer | Exception | None) -> None:
            done(refused if lease is None else lease)  # type: ignore[arg-type]

        due_ms = now_ms + max(0, min(wait_ms, LEASE_WAIT_MS))
        self._room.answer_or_wait(Wait(connection, ticket, (key,), due_ms, attempt, answer), now_ms)
        if not self._room.waiting_on(key):
            self._lease_due.pop(key, None)
        elif (next_ms := self._room.next_due_ms()) is not None:
            self._runtime.wake_at(next_ms)

    def renew_lease(self, connection: Connection, key: str, holder: str, ttl_ms: int) -> bool:
        now_ms = self._may(connection, WRITE, (key,))
        return self._store.leases.renew(key, holder, ttl_ms, now_ms)

    def release_lease(self, connection: Connection, key: str, holder: str) -> bool:
        released = self._store.leases.release(key, holder, self._may(connection, WRITE, (key,)))
        if self._lease_due:
            self._room.wake(key)
        return released

    def take_tokens(
        self, connection: Connection, key: str, capacity: float, per_second: float, cost: float
    ) -> RateAnswer:
        now_ms = self._may(connection, WRITE, (key,))
        rate = self._store.rates.bucket(key, capacity, per_second, cost, now_ms)
        self._wake_for_expiry()
        return rate

    def count_in_window(
        self, connection: Connection, key: str, limit: int, window_ms: int, cost: int
    ) -> RateAnswer:
        now_ms = self._may(connection, WRITE, (key,))
        rate = self._store.rates.window(key, limit, window_ms, cost, now_ms)
        self._wake_for_expiry()
        return rate

    def _look_again(self, key: str, due_ms: int) -> None:
        self._lease_due[key] = due_ms
        self._runtime.wake_at(due_ms)

    def _wake_waiting(self, now_ms: int) -> None:
        for key, due_ms in list(self._lease_due.items()):
            if due_ms <= now_ms:
                self._room.wake(key)
            if not self._room.waiting_on(key):
                del self._lease_due[key]
            else:
                self._runtime.wake_at(self._lease_due[key])
        self._room.expire(now_ms)
        if (next_ms := self._room.next_due_ms()) is not None:
            self._runtime.wake_at(next_ms)

    # -- the host's calls ------------------------------------------------------------

    def open(self) -> None:
        """Load the snapshot, if persistence is on."""
        self._saving.open(self._now_ms())
        self._wake_for_expiry()

    def tick(self, now_ms: int) -> None:
        """Reclaim expired keys, a bounded number at a time, and save when due."""
        self._store.keyspace.sweep(now_ms, SWEEP_KEYS)
        self._wake_for_expiry()
        self._wake_waiting(now_ms)
        self._saving.tick(now_ms)

    def _wake_for_expiry(self) -> None:
        expiry = self._store.keyspace.expiry
        if expiry:
            self._runtime.wake_at(expiry.next_ms())

    def cancel(self, connection: Connection, ticket: int) -> None:
        self._room.cancel(connection, ticket)

    def connection_congested(self, connection: Connection) -> None:
        """The store only answers; the session stops reading requests by itself."""

    def connection_drained(self, connection: Connection) -> None:
        """Nothing was held back."""

    def connection_closed(self, connection: Connection) -> None:
        """Drop its waiting requests; its leases expire by themselves."""
        self._room.drop(connection)

    def status(self) -> dict[str, Any]:
        commands = self._commands + self._hits + self._misses
        counted = {"commands": commands, "hits": self._hits, "misses": self._misses}
        return status(self._store) | counted | {"snapshot": self._saving.status()}

    def wind_down(self) -> None:
        """Leases of keys outlive their connection; who waits for one asks again."""
        self._room.stop()

    def lent(self) -> int:
        return 0

    def close(self) -> None:
        """Answer waiting requests; save, if persistence is on."""
        self._room.stop()
        self._saving.close()
