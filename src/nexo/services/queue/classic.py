"""The queue requests of the existing client, as it knows them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import msgspec

from nexo.brokers.queue.jobs import NewJobs
from nexo.brokers.queue.leases import Lease
from nexo.brokers.queue.options import QueueOptions, options
from nexo.brokers.queue.status import dead_jobs
from nexo.errors import InvalidInput, LeaseLost, NotFound
from nexo.protocol.frames import Buffer, Reader, pack_str, pack_u32
from nexo.protocol.ops import Op
from nexo.protocol.queue import ID_SIZE, pack_block, parse_id, unpack_id
from nexo.protocol.values import check_value
from nexo.services.queue.deliveries import classic_parts, described
from nexo.services.queue.open_queue import OpenQueue
from nexo.services.service import Handler, Peer

if TYPE_CHECKING:
    from nexo.services.queue.service import QueueService

T = TypeVar("T")

RETURNED = "Consumer stopped"
"""The reason with which that client gives back what it never started."""
MAX_PAGE = 1_000


class _Create(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    visibility_timeout_ms: int | None = None
    max_retries: int | None = None


class _Push(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    priority: int | None = None
    delay_ms: int | None = None


class _Consume(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    batch_size: int | None = None
    wait_ms: int | None = None


def _options(text: str, type_: type[T]) -> T:
    try:
        return msgspec.json.decode(text or "{}", type=type_)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"Invalid JSON options: {error}") from None


class ClassicRequests:
    """Handlers for opcodes 0x10 to 0x1A."""

    def __init__(self, service: QueueService) -> None:
        self._service = service
        self.handlers: dict[int, Handler] = {
            Op.Q_CREATE: self._create,
            Op.Q_PUSH: self._push,
            Op.Q_CONSUME: self._consume,
            Op.Q_ACK: self._ack,
            Op.Q_NACK: self._nack,
            Op.Q_EXISTS: self._exists,
            Op.Q_DELETE: self._delete,
            Op.Q_PEEK_DLQ: self._peek_dead,
            Op.Q_MOVE_TO_QUEUE: self._replay,
            Op.Q_DELETE_DLQ: self._bury,
            Op.Q_PURGE_DLQ: self._purge_dead,
        }

    def _existing(self, name: str) -> OpenQueue:
        queue = self._service.registry.get(name)
        if queue is None:
            raise NotFound("Queue not found")
        return queue

    # -- queues ---------------------------------------------------------------

    def _create(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Idempotent; the first options stay."""
        reader = Reader(payload)
        name, given = reader.text(), _options(reader.text(), _Create)
        queue = self._service.registry.get(name)
        if queue is None:
            self._service.runtime.check_writable()
            rules = self._rules(given)
            queue = self._service.registry.create(name, rules, self._service.now_ms())
        self._service.turn.confirm(queue, peer, request_id)

    def _rules(self, given: _Create) -> QueueOptions:
        defaults = self._service.defaults
        deliveries = defaults.max_retries if given.max_retries is None else given.max_retries
        # That client counts deliveries where our own API counts retries.
        changed = {"max_retries": max(1, deliveries) - 1}
        if given.visibility_timeout_ms is not None:
            changed["visibility_ms"] = given.visibility_timeout_ms
        return options(changed, defaults)

    def _exists(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        self._existing(Reader(payload).text())
        peer.ok(request_id)

    def _delete(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        self._service.delete(self._existing(Reader(payload).text()))
        peer.ok(request_id)

    # -- jobs -----------------------------------------------------------------

    def _push(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        reader = Reader(payload)
        name, given, value = reader.text(), _options(reader.text(), _Push), bytes(reader.rest())
        queue = self._service.registry.find(name)
        self._service.runtime.check_writable()
        check_value(value)
        jobs = NewJobs(1, pack_block([value]), given.priority or 0, given.delay_ms or 0)
        queue.push(jobs, self._service.now_ms())
        self._service.turn.confirm_or_undo(queue, peer, request_id)

    def _consume(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        reader = Reader(payload)
        name, given = reader.text(), _options(reader.text(), _Consume)
        limit = 50 if given.batch_size is None else given.batch_size
        wait_ms = 20_000 if given.wait_ms is None else given.wait_ms

        def nothing() -> None:
            peer.data(request_id, pack_u32(0))

        queue = self._service.registry.find(name)
        self._service.pop(queue, peer, request_id, classic_parts, nothing, limit, wait_ms)

    def _ack(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        reader = Reader(payload)
        queue, lease, job = self._held(peer, reader.take(ID_SIZE), reader.text(), "ACK failed")
        queue.engine.ack(lease.token, [(job, job + 1)])
        self._service.turn.confirm(queue, peer, request_id)

    def _nack(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        reader = Reader(payload)
        queue, lease, job = self._held(peer, reader.take(ID_SIZE), reader.text(), "NACK failed")
        reason, run, now_ms = reader.text(), (job, job + 1), self._service.now_ms()
        if reason == RETURNED:
            queue.engine.release(lease.token, [run], now_ms)
        else:
            queue.engine.nack(lease.token, [run], reason, now_ms, self._service.luck)
        self._service.turn.confirm(queue, peer, request_id)

    def _held(
        self, peer: Peer, raw: memoryview, name: str, failure: str
    ) -> tuple[OpenQueue, Lease, int]:
        """The job if this connection holds it: here the connection is what fences."""
        queue = self._existing(name)
        incarnation, job = unpack_id(raw)
        lease = queue.engine.dispatch.leases.find(peer.id, job)
        if lease is None or incarnation != queue.engine.ledger.incarnation:
            raise LeaseLost(failure)
        return queue, lease, job

    # -- dead letters ---------------------------------------------------------

    def _peek_dead(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        reader = Reader(payload)
        queue, limit, offset = self._existing(reader.text()), reader.u32(), reader.u32()
        rows = described(queue, dead_jobs(queue.engine, min(limit, MAX_PAGE), offset))
        parts: list[Buffer] = [pack_u32(len(queue.engine.ledger.dead)), pack_u32(len(rows))]
        for row in rows:
            parts += (parse_id(row["id"]), pack_u32(len(row["value"])), row["value"])
            parts += (pack_u32(row["attempts"]), pack_str(row["error"]))
        peer.data(request_id, *parts)

    def _replay(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        now_ms = self._service.now_ms()
        self._one_dead(peer, request_id, payload, lambda q, job: q.engine.replay([job], now_ms))

    def _bury(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        self._one_dead(peer, request_id, payload, lambda q, job: q.engine.bury([job]))

    def _one_dead(
        self, peer: Peer, request_id: int, payload: memoryview,
        act: Callable[[OpenQueue, int], int],
    ) -> None:  # fmt: skip
        reader = Reader(payload)
        queue = self._existing(reader.text())
        incarnation, job = unpack_id(reader.take(ID_SIZE))
        known = incarnation == queue.engine.ledger.incarnation
        done = act(queue, job) if known else 0
        self._service.turn.confirm(queue, peer, request_id, bytes((done,)))

    def _purge_dead(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        queue = self._existing(Reader(payload).text())
        count = queue.engine.bury(list(queue.engine.ledger.dead))
        self._service.turn.confirm(queue, peer, request_id, pack_u32(count))
