"""The store broker as the host runs it: requests in, engine, replies out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nexo.brokers.store.engine import Store
from nexo.brokers.store.status import status
from nexo.model import Broker
from nexo.protocol import store as wire
from nexo.protocol.ops import Op
from nexo.services.connection import Connection
from nexo.services.service import Answer, Handler, Peer, Runtime, handler_of
from nexo.services.store.commands import COMMANDS
from nexo.services.store.saving import Saving

SWEEP_KEYS = 500
"""Expired keys dropped per tick: well under a millisecond of work."""


class StoreService:
    """Implements `nexo.services.service.Service` around a `Store`."""

    broker = Broker.STORE

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._now_ms = runtime.clock.now_ms
        self._store = Store(runtime.settings.store_max_bytes)
        self._saving = Saving(runtime, self._store)
        self._hits = self._misses = self._commands = 0
        self.answers: Mapping[int, Answer] = {
            Op.MAP_SET: self._map_set,
            Op.MAP_GET: self._map_get,
            Op.MAP_DEL: self._map_del,
        } | {op: self._answer(op, run) for op, run in COMMANDS.items()}
        self.handlers: Mapping[int, Handler] = {
            op: handler_of(answer) for op, answer in self.answers.items()
        }

    # -- requests -------------------------------------------------------------

    def _map_get(self, _: Peer, payload: memoryview) -> bytes | None:
        # Without any TTL nothing depends on the time, and asking for it costs.
        now_ms = self._now_ms() if self._store.keyspace.expiry.due else 0
        value = self._store.get(wire.decode_map_key(payload), now_ms)
        if value is None:
            self._misses += 1
        else:
            self._hits += 1
        return value

    def _map_set(self, _: Peer, payload: memoryview) -> bytes:
        key, options, value = wire.decode_map_set(payload)
        if options and (ttl_ms := wire.options_ttl_ms(options)) is not None:
            self._store.set(key, value, self._now_ms(), ttl_ms=ttl_ms)
            self._wake_for_expiry()
        else:
            self._store.put(key, value)
        self._commands += 1
        return b""

    def _map_del(self, _: Peer, payload: memoryview) -> bytes:
        self._store.delete([wire.decode_map_key(payload)], self._now_ms())
        self._commands += 1
        return b""

    def _answer(self, op: Op, run: Callable[[Store, Any, int], object]) -> Answer:
        def answer(_: Peer, payload: memoryview) -> bytes:
            asked = wire.decode_request(op, payload)
            reply = wire.encode_reply(run(self._store, asked, self._now_ms()))
            self._commands += 1
            self._wake_for_expiry()
            return reply

        return answer

    # -- the host's calls ------------------------------------------------------

    def open(self) -> None:
        """Load the snapshot, if there is to be one."""
        self._saving.open(self._now_ms())
        self._wake_for_expiry()

    def tick(self, now_ms: int) -> None:
        """Reclaim expired keys, a bounded number at a time, and save when due."""
        self._store.keyspace.sweep(now_ms, SWEEP_KEYS)
        self._wake_for_expiry()
        self._saving.tick(now_ms)

    def _wake_for_expiry(self) -> None:
        expiry = self._store.keyspace.expiry
        if expiry:
            self._runtime.wake_at(expiry.next_ms())

    def cancel(self, peer: Connection, request_id: int) -> None:
        """No request of the store waits."""

    def peer_congested(self, peer: Connection) -> None:
        """The store only answers; the session stops reading requests by itself."""

    def peer_drained(self, peer: Connection) -> None:
        """Nothing was held back."""

    def peer_closed(self, peer: Connection) -> None:
        """A peer holds nothing here."""

    def status(self) -> dict[str, Any]:
        """Counters and sizes, and how saving goes."""
        commands = self._commands + self._hits + self._misses
        counted = {"commands": commands, "hits": self._hits, "misses": self._misses}
        return status(self._store) | counted | {"snapshot": self._saving.status()}

    def close(self) -> None:
        """Save, if the store is to be saved."""
        self._saving.close()
