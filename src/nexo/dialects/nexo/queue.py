"""Our own queue requests: bytes to use cases of `nexo.services.queue` and back."""

from __future__ import annotations

from functools import partial

from nexo.brokers.queue.batches import JobRange
from nexo.brokers.queue.jobs import NewJobs
from nexo.brokers.queue.ledger import pairs
from nexo.dialects.nexo.classic_queue import ClassicQueueRequests
from nexo.dialects.nexo.handlers import Handler, Peer
from nexo.dialects.nexo.replies import calling, reply_data, reply_ok, reply_packed, returning
from nexo.errors import InvalidInput, NexoError
from nexo.model import Buffer
from nexo.model.blocks import check_block
from nexo.model.queue import Schedule
from nexo.protocol import queue as wire
from nexo.protocol.messages import pack_list
from nexo.protocol.ops import Op
from nexo.protocol.server import SurveyAsk
from nexo.services.queue.service import QueueService
from nexo.services.queue.views import LeasedJobs
from nexo.services.queue.work import JobSettlement

_GATHERED = (Op.Q_PUSH, Op.Q_ACK)


class QueueRequests:
    """Handlers of every queue request, the existing client's included."""

    def __init__(self, service: QueueService) -> None:
        self._queues = service
        self.handlers: dict[int, Handler] = {
            Op.Q_PUSH_MANY: self._push,
            Op.Q_POP: self._pop,
            Op.Q_SETTLE: self._settle,
            Op.Q_RENEW: returning(wire.RenewLeases, service.renew, refusal=InvalidInput),
            Op.Q_BEGIN: self._begin,
            Op.Q_PROGRESS: returning(wire.ReportProgress, service.progress, reply_ok, InvalidInput),
            Op.Q_JOB: self._job,
            Op.Q_DECLARE: self._declare,
            Op.Q_UPDATE: self._update,
            Op.Q_INFO: returning(wire.Look, service.info, refusal=InvalidInput),
            Op.Q_LIST: self._list,
            Op.Q_SURVEY: returning(SurveyAsk, service.survey, refusal=InvalidInput),
            Op.Q_PURGE: calling(wire.Named, service.purge, refusal=InvalidInput),
            Op.Q_PAUSE: calling(wire.Pause, service.pause, reply_ok, InvalidInput),
            Op.Q_PEEK: returning(wire.PeekJobs, service.peek, refusal=InvalidInput),
            Op.Q_CANCEL_JOB: self._cancel_jobs,
            Op.Q_DLQ_LIST: self._dead,
            Op.Q_DLQ_REPLAY: calling(wire.Jobs, service.replay, refusal=InvalidInput),
            Op.Q_DLQ_DELETE: calling(wire.Jobs, service.delete_dead, refusal=InvalidInput),
            Op.Q_CRON_SET: self._set_cron,
            Op.Q_CRON_DELETE: self._drop_cron,
            Op.Q_CRON_LIST: returning(wire.Named, service.crons, refusal=InvalidInput),
            **ClassicQueueRequests(service).handlers,
        }
        for op, handler in self.handlers.items():
            if op not in _GATHERED:
                self.handlers[op] = partial(self._in_order, handler)

    def _in_order(self, handler: Handler, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Run a request after what its connection has pushed and acked before (SPEC A3)."""
        self._queues.gathering.flush()
        handler(peer, request_id, payload)

    # -- producers and workers ----------------------------------------------------

    def _push(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        head, rest = wire.split_head(payload)
        asked, block = wire.decode(head, wire.PushHead), bytes(rest)
        jobs = NewJobs(
            check_block(block), block, asked.priority, asked.delay_ms, asked.ttl_ms, asked.keys,
            asked.dedup_keys, asked.replace, headers=asked.headers,
        )  # fmt: skip
        self._queues.push(peer, asked.queue, jobs, reply_data(peer, request_id, wire.encode))

    def _pop(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        asked = wire.decode(payload, wire.PopJobs)

        def done(found: LeasedJobs | NexoError | None) -> None:
            if found is None:
                peer.null(request_id)
            elif isinstance(found, NexoError):
                peer.fail(request_id, found)
            else:
                peer.data(request_id, *_delivery(found))

        self._queues.pop(
            peer,
            request_id,
            asked.queue,
            asked.limit,
            asked.wait_ms,
            done,
            asked.lease_ms,
            asked.reports,
        )

    def _settle(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        asked = wire.decode(payload, wire.SettleJobs)

        def done(refused: list[tuple[int, int]] | NexoError) -> None:
            if isinstance(refused, NexoError):
                peer.fail(request_id, refused)
            elif refused:
                peer.data(request_id, wire.encode(refused))
            else:
                peer.ok(request_id)

        self._queues.settle(
            peer, asked.queue, asked.how, [_settlement(each) for each in asked.leases], done,
            asked.error, None if asked.delay_ms < 0 else asked.delay_ms,
        )  # fmt: skip

    def _begin(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        asked = wire.decode(payload, wire.Begin)
        begun = [(token, _runs(flat)) for token, flat in asked.begun]
        self._queues.begin(peer, asked.queue, begun)
        peer.ok(request_id)

    def _job(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        asked = wire.decode(payload, wire.JobRequest)
        done = reply_data(peer, request_id, wire.encode)
        self._queues.job(peer, request_id, asked.queue, asked.id, asked.wait_ms, done)

    # -- queues -------------------------------------------------------------------

    def _declare(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        asked = wire.decode(payload, wire.Declare)
        self._queues.create(
            peer, asked.queue, asked.options, reply_packed(peer, request_id),
            "update" if asked.update else "agree",
        )  # fmt: skip

    def _update(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        asked = wire.decode(payload, wire.Update)
        self._queues.update(peer, asked.queue, asked.options, reply_packed(peer, request_id))

    def _list(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        self._queues.queues(peer, wire.encode, reply_data(peer, request_id, pack_list))

    # -- jobs and dead letters ----------------------------------------------------

    def _cancel_jobs(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        asked = wire.decode(payload, wire.Jobs)
        done = reply_data(peer, request_id, wire.encode)
        self._queues.cancel_jobs(peer, asked.queue, asked.ids or (), done)

    def _dead(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        asked = wire.decode(payload, wire.PeekJobs)
        found = self._queues.dead(peer, asked.queue, asked.limit, asked.offset)
        peer.data(request_id, wire.encode(found._asdict()))

    # -- schedules ----------------------------------------------------------------

    def _set_cron(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        asked = wire.decode(payload, wire.CronRequest)
        schedule = Schedule(asked.name, asked.cron, 0, asked.priority, asked.key, asked.zone)
        done = reply_data(peer, request_id, wire.encode)
        self._queues.set_cron(peer, asked.queue, schedule, asked.value, done)

    def _drop_cron(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        asked = wire.decode(payload, wire.CronRequest)
        self._queues.drop_cron(peer, asked.queue, asked.name, reply_ok(peer, request_id))


def _settlement(settled: wire.Settled) -> JobSettlement:
    runs = None if settled.runs is None else _runs(settled.runs)
    return JobSettlement(settled.token, runs, settled.results)


def _runs(flat: list[int]) -> list[JobRange]:
    if len(flat) % 2:
        raise InvalidInput("runs of jobs are pairs of first and end")
    return list(pairs(flat))


def _delivery(found: LeasedJobs) -> list[Buffer]:
    pieces: list[wire.Piece] = []
    parts: list[Buffer] = []
    for some, priority in zip(found.slices, found.priorities, strict=True):
        pieces.append(wire.Piece(some.first, some.jobs, priority, some.pushed_ms))
        parts += (some.ends, some.content)
    head = wire.PopReply(
        found.incarnation, found.lease.token, found.lease.lease_ms, pieces, found.attempts,
        found.keys, found.keeps_results, found.max_retries, found.headers, found.returned,
    )  # fmt: skip
    return [wire.encode_head(head), *parts]
