"""Our own requests about queues as a whole: create, look, pause, dead letters, schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nexo.brokers.queue.engine import Queue
from nexo.brokers.queue.options import check_range, differences, options
from nexo.brokers.queue.status import dead_jobs, info, schedules, waiting_jobs, working_jobs
from nexo.errors import AlreadyExists, InvalidInput
from nexo.model import check_name
from nexo.protocol.ops import Op
from nexo.protocol.queue import (
    CronRequest,
    Declare,
    Jobs,
    Named,
    Page,
    Pause,
    Update,
    decode,
    encode,
    pack_block,
)
from nexo.protocol.survey import MAX_LIMIT, QueueSurvey, SurveyAsk
from nexo.services.queue.deliveries import described
from nexo.services.queue.open_queue import OpenQueue
from nexo.services.queue.work import job_number
from nexo.services.service import ANY_NAME, Handler, Peer, shown_to

if TYPE_CHECKING:
    from nexo.services.queue.service import QueueService

MAX_PAGE = 10_000


class AdminRequests:
    """Handlers of everything that is rare."""

    def __init__(self, service: QueueService) -> None:
        self._service = service
        self._find = service.registry.find
        self.handlers: dict[int, Handler] = {
            Op.Q_DECLARE: self._declare,
            Op.Q_UPDATE: self._update,
            Op.Q_INFO: self._info,
            Op.Q_LIST: self._list,
            Op.Q_SURVEY: self._survey,
            Op.Q_PURGE: self._purge,
            Op.Q_PAUSE: self._pause,
            Op.Q_PEEK: self._peek,
            Op.Q_CANCEL_JOB: self._cancel,
            Op.Q_DLQ_LIST: self._dead,
            Op.Q_DLQ_REPLAY: self._replay,
            Op.Q_DLQ_DELETE: self._bury,
            Op.Q_CRON_SET: self._set_cron,
            Op.Q_CRON_DELETE: self._drop_cron,
            Op.Q_CRON_LIST: self._crons,
        }

    def _confirm(self, queue: OpenQueue, peer: Peer, request_id: int, reply: object) -> None:
        self._service.turn.confirm(queue, peer, request_id, encode(reply))

    # -- the queue ------------------------------------------------------------

    def _declare(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Create; an existing queue must agree with every option given, or be updated."""
        asked = decode(payload, Declare)
        queue = self._service.registry.get(asked.queue)
        if queue is None:
            rules = options(asked.options, self._service.defaults)
            self._service.runtime.check_writable()
            queue = self._service.registry.create(asked.queue, rules, self._service.now_ms())
        else:
            self._agree(queue, asked)
        self._confirm(queue, peer, request_id, info(queue.name, queue.engine))

    def _agree(self, queue: OpenQueue, asked: Declare) -> None:
        rules = options(asked.options, queue.engine.options)
        if rules != queue.engine.options and not asked.update:
            raise AlreadyExists(
                f"Queue '{queue.name}' exists with other options "
                f"({differences(queue.engine.options, rules)}); update it, or create with update"
            )
        queue.engine.update(rules, self._service.now_ms())

    def _update(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        asked = decode(payload, Update)
        queue = self._find(asked.queue)
        rules = options(asked.options, queue.engine.options)
        queue.engine.update(rules, self._service.now_ms())
        self._confirm(queue, peer, request_id, info(queue.name, queue.engine))

    def _info(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        queue = self._find(decode(payload, Named).queue)
        peer.data(request_id, encode(info(queue.name, queue.engine)))

    def _list(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        shows, registry = shown_to(peer), self._service.registry
        shown = [info(queue.name, queue.engine) for queue in registry if shows(queue.name)]
        peer.data(request_id, encode(sorted(shown, key=lambda queue: str(queue["name"]))))

    def _survey(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        asked = decode(payload, SurveyAsk)
        check_range("limit", asked.limit, MAX_LIMIT, 1)
        check_range("position", asked.position, 2**53)
        shows, registry = shown_to(peer), self._service.registry
        found = registry.by_name(asked.search) if asked.by_name else list(registry)
        if shows is not ANY_NAME:
            found = [queue for queue in found if shows(queue.name)]
        after = asked.position + asked.limit
        page = found[asked.position : after]
        reply = QueueSurvey(
            queues=[info(queue.name, queue.engine) for queue in page],
            total=len(found),
            next=after if after < len(found) else 0,
        )
        peer.data(request_id, encode(reply))

    def _purge(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        queue = self._find(decode(payload, Named).queue)
        self._confirm(queue, peer, request_id, queue.engine.purge())

    def _pause(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        asked = decode(payload, Pause)
        queue = self._find(asked.queue)
        queue.engine.pause(asked.paused)
        self._service.turn.confirm(queue, peer, request_id)

    # -- jobs -----------------------------------------------------------------

    def _peek(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        asked = _page(payload)
        queue = self._find(asked.queue)
        queue.write_pushes(self._service.now_ms())
        if asked.state == "working":
            found = _in_work(queue, asked)
        else:
            found = described(queue, _listed(queue.engine, asked))
        peer.data(request_id, encode(found))

    def _cancel(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        asked = decode(payload, Jobs)
        queue = self._find(asked.queue)
        jobs = [job_number(queue, text) for text in asked.ids or ()]
        self._confirm(queue, peer, request_id, sum(map(queue.engine.cancel, jobs)))

    # -- dead letters ---------------------------------------------------------

    def _dead(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        asked = _page(payload)
        queue = self._find(asked.queue)
        queue.write_pushes(self._service.now_ms())
        jobs = dead_jobs(queue.engine, asked.limit, asked.offset)
        reply = {"total": len(queue.engine.ledger.dead), "jobs": described(queue, jobs)}
        peer.data(request_id, encode(reply))

    def _replay(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        queue, jobs = self._chosen_dead(payload)
        count = queue.engine.replay(jobs, self._service.now_ms())
        self._confirm(queue, peer, request_id, count)

    def _bury(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        queue, jobs = self._chosen_dead(payload)
        self._confirm(queue, peer, request_id, queue.engine.bury(jobs))

    def _chosen_dead(self, payload: memoryview) -> tuple[OpenQueue, list[int]]:
        asked = decode(payload, Jobs)
        queue = self._find(asked.queue)
        if asked.ids is None:
            return queue, list(queue.engine.ledger.dead)
        return queue, [job_number(queue, text) for text in asked.ids]

    # -- schedules ------------------------------------------------------------

    def _set_cron(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        asked = decode(payload, CronRequest)
        queue = self._find(asked.queue)
        check_name(asked.name, "schedule name")
        if not asked.value:
            raise InvalidInput("a value needs at least its type byte")
        self._service.runtime.check_writable()
        next_ms = queue.engine.set_cron(
            asked.name, asked.cron, pack_block([asked.value]), self._service.now_ms(),
            asked.priority, asked.key,
        )  # fmt: skip
        self._confirm(queue, peer, request_id, next_ms)

    def _drop_cron(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        asked = decode(payload, CronRequest)
        queue = self._find(asked.queue)
        queue.engine.drop_cron(asked.name)
        self._service.turn.confirm(queue, peer, request_id)

    def _crons(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        queue = self._find(decode(payload, Named).queue)
        peer.data(request_id, encode(schedules(queue.engine)))


def _page(payload: memoryview) -> Page:
    asked = decode(payload, Page)
    check_range("limit", asked.limit, MAX_PAGE)
    check_range("offset", asked.offset, 2**53)
    return asked


def _listed(engine: Queue, asked: Page) -> list[int]:
    match asked.state:
        case "waiting":
            return waiting_jobs(engine, asked.limit, asked.offset)
        case "scheduled":
            return [job for _, job in engine.dispatch.delays.upcoming(asked.limit, asked.offset)]
    raise InvalidInput(f"state {asked.state!r} is not 'waiting', 'scheduled' or 'working'")


def _in_work(queue: OpenQueue, asked: Page) -> list[dict[str, Any]]:
    """Jobs with who holds them: the number of a connection, as PEERS lists it."""
    leased = working_jobs(queue.engine, asked.limit, asked.offset)
    rows = described(queue, (job for job, _ in leased))
    return [
        row | {"holder": lease.holder, "lease_ms": lease.lease_ms, "expires_ms": lease.expires_ms}
        for row, (_, lease) in zip(rows, leased, strict=False)
    ]
