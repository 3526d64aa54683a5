"""The store's use cases: permissions, counters, expiry.

All answer at once except `take_lease`, which may wait for a free lease.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any

from nexo.access.grants import Extent
from nexo.access.login import Identity
from nexo.access.permit import READ, WRITE, permit
from nexo.brokers.store.engine import StoreEngine
from nexo.brokers.store.status import status
from nexo.limits import LEASE_WAIT_MS, REPLY_PAYLOADS
from nexo.model import Broker
from nexo.model.store import LeaseAnswer
from nexo.services.connection import Connection, Done
from nexo.services.service import Runtime
from nexo.services.store.commands import COMMANDS, StoreCommand
from nexo.services.store.saving import Saving, fencing_numbers
from nexo.services.waiting import Wait, WaitingRoom

SWEEP_KEYS = 500
"""Expired keys dropped per tick: well under a millisecond of work."""


class StoreService:
    """Implements `nexo.services.service.Service` around a `StoreEngine`.

    `nexo.services.store.commands` says what each command needs and does.
    """

    broker = Broker.STORE

    def __init__(self, runtime: Runtime) -> None:
        settings = runtime.settings
        self._runtime = runtime
        self._now_ms = runtime.clock.now_ms
        self._store = StoreEngine(
            settings.store_max_bytes,
            REPLY_PAYLOADS * settings.max_payload_bytes,
            fencing_numbers(runtime.files, runtime.folder, runtime.numbers_after_ms),
        )
        self._saving = Saving(runtime, self._store)
        self._room = WaitingRoom()
        self._lease_due: dict[str, int] = {}
        """When to look again at a key whose leases are waited for."""
        self._hits = self._misses = self._commands = self._evicted = 0
        self.classic_ttl_ms = settings.classic_ttl_ms
        """How long keys last whose clients cannot say; 0 for ever."""
        self._check_leads = runtime.check_leads if settings.replicate else None
        """Called before every command: what another server has changed may be unknown here."""
        self._calls: dict[str, Callable[..., Any]] = {}
        self._find_calls()

    def _find_calls(self) -> None:
        """The engine's methods by command; `StoreEngine.clear` replaces some."""
        self._calls = {row.name: attrgetter(row.method)(self._store) for row in COMMANDS.values()}

    # -- commands -------------------------------------------------------------------

    def run(self, connection: Connection, command: StoreCommand, **asked: Any) -> Any:
        """Run a command that does not block, with the arguments of its engine method."""
        now_ms = self._may(connection, command, asked)
        result = self._calls[command.name](**asked, now_ms=now_ms)
        if command.changes:
            self._changed(command, asked)
        return result

    def _may(self, connection: Connection, command: StoreCommand, asked: Mapping[str, Any]) -> int:
        """Check permission for a command and count it; returns the time."""
        identity = connection.identity
        if identity is not None:
            self._permit(identity, command, asked)
        if self._check_leads is not None:
            self._check_leads()
        self._commands += 1
        return self._now_ms()

    def _permit(self, identity: Identity, command: StoreCommand, asked: Mapping[str, Any]) -> None:
        if command.keys in ("prefix", "all"):
            prefix = asked.get(command.keys, "")
            permit(identity, Broker.STORE, command.actions, prefix, Extent.PREFIX)
            return
        for key in _keys(command, asked):
            permit(identity, Broker.STORE, command.actions, key)

    def _changed(self, command: StoreCommand, asked: Mapping[str, Any]) -> None:
        """After a change: look again at leases that are waited for, and plan expiry."""
        if command.keys == "all":
            self._find_calls()
        if self._lease_due:
            self._wake(self._lease_due if command.keys == "all" else _keys(command, asked))
        if command.expires:
            self._wake_for_expiry()

    def _wake(self, keys: Iterable[str]) -> None:
        """Let those try again who wait for a lease of these keys, or of any if one was evicted."""
        evicted, self._evicted = self._evicted, self._store.keyspace.evicted
        for key in list(keys if evicted == self._evicted else self._lease_due):
            self._room.wake(key)

    # -- the two that have to be quick -----------------------------------------------

    def get(self, connection: Connection, key: str) -> bytes | None:
        if connection.identity is not None:
            permit(connection.identity, Broker.STORE, READ, key)
        if self._check_leads is not None:
            self._check_leads()
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
            self._wake((key,))

    # -- the one that blocks ----------------------------------------------------------

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
        now_ms = self._may(connection, COMMANDS["LEASE_TAKE"], {"key": key})
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
        if self._store.keyspace.evicted != self._evicted:
            self._wake(())
        if not self._room.waiting_on(key):
            self._lease_due.pop(key, None)
        elif (next_ms := self._room.next_due_ms()) is not None:
            self._runtime.wake_at(next_ms)

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
        """Load what was saved."""
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
        """Answer waiting requests, and save."""
        self._room.stop()
        self._saving.close()


def _keys(command: StoreCommand, asked: Mapping[str, Any]) -> Iterable[str]:
    named: str | Iterable[str] = asked[command.keys]
    return (named,) if isinstance(named, str) else named
