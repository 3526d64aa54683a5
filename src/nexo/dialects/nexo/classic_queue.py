"""The queue requests of the existing client, as it knows them: opcodes 0x10 to 0x1A."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import msgspec

from nexo.dialects.nexo.handlers import Handler, Peer, json_options, name_in
from nexo.dialects.nexo.replies import reply_data, reply_ok, reply_parts
from nexo.errors import LeaseLost, NotFound
from nexo.model import Buffer
from nexo.model.blocks import ID_SIZE, pack_id, parse_id, values_of
from nexo.model.names import name_of, text_of
from nexo.model.queue import ACK, NACK, RELEASE
from nexo.protocol.frames import FieldReader, pack_str, pack_u32, text_at
from nexo.protocol.ops import Op
from nexo.protocol.values import check_value
from nexo.services.connection import Done
from nexo.services.queue.gathering import PushKind
from nexo.services.queue.service import QueueService
from nexo.services.queue.views import DeadView, LeasedJobs

T = TypeVar("T")

RETURNED = "Consumer stopped"
"""The reason with which that client returns jobs that it never started."""
MAX_PAGE = 1_000
_NO_OPTIONS = ("", "{}")
_NO_OPTIONS_SENT = pack_str("{}")
_NONE_SIZE = len(_NO_OPTIONS_SENT)
_PLAIN = PushKind()


class _Create(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    visibility_timeout_ms: int | None = None
    max_retries: int | None = None


class _Push(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    priority: int | None = None
    delay_ms: int | None = None


class _Consume(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    batch_size: int | None = None
    wait_ms: int | None = None


@contextmanager
def _in_its_words(lease_lost: str = "") -> Iterator[None]:
    """The error texts that the existing client matches."""
    try:
        yield
    except NotFound:
        raise NotFound("Queue not found") from None
    except LeaseLost:
        raise LeaseLost(lease_lost) from None


def _unknown(name: str) -> NotFound:
    """What that client reads when it pushes to a queue, or consumes from one, that is not there."""
    return NotFound(f"Queue '{text_of(name)[:255]}' not found. Create it first.")


class ClassicQueueRequests:
    """Handlers for opcodes 0x10 to 0x1A."""

    def __init__(self, service: QueueService) -> None:
        self._queues = service
        self.handlers: dict[int, Handler] = {
            Op.Q_CREATE: self._create,
            Op.Q_PUSH: self._push,
            Op.Q_CONSUME: self._consume,
            Op.Q_ACK: self._ack,
            Op.Q_NACK: self._nack,
            Op.Q_EXISTS: self._exists,
            Op.Q_DELETE: self._delete,
            Op.Q_PEEK_DLQ: self._peek_dead,
            Op.Q_MOVE_TO_QUEUE: partial(self._one_dead, act=service.replay),
            Op.Q_DELETE_DLQ: partial(self._one_dead, act=service.delete_dead),
            Op.Q_PURGE_DLQ: self._purge_dead,
        }

    # -- queues -------------------------------------------------------------------

    def _create(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Idempotent; the first options stay."""
        reader = FieldReader(payload)
        name, given = name_in(peer, reader), json_options(reader.text(), _Create)
        self._queues.create(peer, name, self._rules(given), reply_ok(peer, request_id), "keep")

    def _rules(self, given: _Create) -> dict[str, Any]:
        deliveries = given.max_retries
        if deliveries is None:
            deliveries = self._queues.defaults.max_retries
        # That client counts deliveries where our own API counts retries.
        changed = {"max_retries": max(1, deliveries) - 1}
        if given.visibility_timeout_ms is not None:
            changed["visibility_timeout_ms"] = given.visibility_timeout_ms
        return changed

    def _exists(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        with _in_its_words():
            self._queues.info(peer, name_in(peer, FieldReader(payload)))
        peer.ok(request_id)

    def _delete(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """OK also if there is none, for that client; ours want to know."""
        name = name_in(peer, FieldReader(payload))
        try:
            self._queues.delete(peer, name)
        except NotFound:
            if peer.said_hello:
                raise NotFound("Queue not found") from None
        peer.ok(request_id)

    # -- jobs ---------------------------------------------------------------------

    def _push(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        text, at = text_at(payload, 0)
        if payload[at : at + _NONE_SIZE] == _NO_OPTIONS_SENT:
            options, at = "", at + _NONE_SIZE
        else:
            options, at = text_at(payload, at)
        value = bytes(payload[at:])
        check_value(value)
        kind = _PLAIN
        if options not in _NO_OPTIONS:
            given = json_options(options, _Push)
            kind = PushKind(given.priority or 0, given.delay_ms or 0)
            kind.check()
        name = text if peer.said_hello else name_of(text)
        try:
            self._queues.push_one(peer, name, value, kind, reply_ok(peer, request_id))
        except NotFound:
            raise _unknown(name) from None

    def _consume(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        reader = FieldReader(payload)
        name, given = name_in(peer, reader), json_options(reader.text(), _Consume)
        settings = self._queues.settings
        limit = settings.classic_batch if given.batch_size is None else given.batch_size
        wait_ms = settings.classic_wait_ms if given.wait_ms is None else given.wait_ms
        done = reply_parts(peer, request_id, _delivery)
        try:
            self._queues.pop(peer, request_id, name, limit, wait_ms, done)
        except NotFound:
            raise _unknown(name) from None

    def _ack(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        reader = FieldReader(payload)
        raw_id, name = bytes(reader.take(ID_SIZE)), name_in(peer, reader)
        try:  # `_in_its_words` would cost as much as the rest: each job is acked by itself
            self._queues.settle_held(peer, name, raw_id, ACK, reply_ok(peer, request_id))
        except NotFound:
            raise NotFound("Queue not found") from None
        except LeaseLost:
            raise LeaseLost("ACK failed") from None

    def _nack(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        reader = FieldReader(payload)
        raw_id, name = bytes(reader.take(ID_SIZE)), name_in(peer, reader)
        reason = reader.text()
        outcome = RELEASE if reason == RETURNED else NACK
        with _in_its_words("NACK failed"):
            self._queues.settle_held(
                peer, name, raw_id, outcome, reply_ok(peer, request_id), reason
            )

    # -- dead letters -------------------------------------------------------------

    def _peek_dead(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        reader = FieldReader(payload)
        name, limit, offset = name_in(peer, reader), reader.u32(), reader.u32()
        with _in_its_words():
            page = self._queues.dead(peer, name, min(limit, MAX_PAGE), offset)
        parts: list[Buffer] = [pack_u32(page.total), pack_u32(len(page.jobs))]
        for row in page.jobs:
            assert isinstance(row, DeadView)
            parts += (parse_id(row.id), pack_u32(len(row.value)), row.value)
            parts += (pack_u32(row.attempts), pack_str(row.reason))
        peer.data(request_id, *parts)

    def _one_dead(
        self, peer: Peer, request_id: int, payload: memoryview,
        act: Callable[[Peer, str, Sequence[str], Done[int]], None],
    ) -> None:  # fmt: skip
        reader = FieldReader(payload)
        name, job_id = name_in(peer, reader), bytes(reader.take(ID_SIZE)).hex()
        with _in_its_words():
            self._queues.check_admin(peer, name)
        try:
            act(peer, name, [job_id], reply_data(peer, request_id, lambda count: bytes((count,))))
        except NotFound:  # a job that never was in this queue
            peer.data(request_id, b"\0")

    def _purge_dead(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        with _in_its_words():
            done = reply_data(peer, request_id, pack_u32)
            self._queues.delete_dead(peer, name_in(peer, FieldReader(payload)), None, done)


def _delivery(found: LeasedJobs | None) -> list[Buffer]:
    """``count u32, {id 16 bytes, length u32, value}*``."""
    if found is None:
        return [pack_u32(0)]
    parts: list[Buffer] = [pack_u32(sum(some.jobs for some in found.slices))]
    for some in found.slices:
        for job, value in enumerate(values_of(some.ends, some.content), some.first):
            parts += (pack_id(found.incarnation, job), pack_u32(len(value)), value)
    return parts
