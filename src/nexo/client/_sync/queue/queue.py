# Generated from _async/queue/queue.py by tools/unasync.py; edit that file instead.
"""Durable jobs as their users see them (SPEC D): ``client.queue("emails")``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any, Generic, Never, TypeVar, Unpack

from msgspec.structs import replace

from nexo.client._sync.link.link import Link
from nexo.client._sync.queue.admin import Crons, DeadLetters, Scheduled
from nexo.client._sync.queue.gather import Pusher, Settler
from nexo.client._sync.queue.jobs import Job, JobBatch
from nexo.client._sync.queue.subscription import QueueSubscription, Worker
from nexo.client._sync.requests import is_found, request
from nexo.client.checks import column, each, not_keywords, text, until_ms, whole
from nexo.client.replies import Reply
from nexo.client.views import (
    JobView,
    QueueSettings,
    chunks,
    job_state,
    job_view,
    pop_request,
    pushed_ids,
    wire_options,
    write_headers,
)
from nexo.errors import Conflict, NotFound, RequestTimeout
from nexo.limits import QUEUE_WAIT_MS
from nexo.model import check_name
from nexo.model.blocks import pack_block
from nexo.model.queue import JobState, QueueInfo
from nexo.options.queue import MAX_DELAY_MS, MAX_PRIORITY
from nexo.options.units import Duration, millis
from nexo.protocol.frames import pack_str
from nexo.protocol.ops import Op
from nexo.protocol.queue import (
    NO_JOBS,
    Declare,
    JobRequest,
    Look,
    Named,
    Pause,
    PeekJobs,
    PopReply,
    PushHead,
    PushReply,
    Update,
    decode,
    encode,
    encode_head,
    split_head,
)
from nexo.protocol.values import encode_as, encode_value, encode_values

T = TypeVar("T")
V = TypeVar("V")


class Queue(Generic[T]):
    """One queue. Values are checked against ``type_`` and converted to it."""

    def __init__(
        self, link: Link, name: str, type_: type[T] | None = None, pusher: Pusher | None = None
    ) -> None:
        """``pusher`` is shared with the link's other queues, so that pushes keep one order."""
        self.name = check_name(name, "queue name")
        self._link = link
        self._type = type_
        self._pusher = pusher or Pusher(link)
        self._settler = Settler(link, name)

    def __repr__(self) -> str:
        return f"<Queue {self.name!r}>"

    # -- the queue as a whole -------------------------------------------------

    def create(
        self, *misplaced: Never, update: bool = False, **options: Unpack[QueueSettings]
    ) -> Queue[T]:
        """Create the queue unless it exists; returns it.

        An existing queue must agree with every option given; ``update`` changes it instead.
        """
        if misplaced:
            raise not_keywords(misplaced, "create(max_retries=3)")
        ask = Declare(self.name, wire_options({**options}), update)
        self._link.call(Op.Q_DECLARE, encode(ask))
        return self

    def update(self, **options: Unpack[QueueSettings]) -> QueueInfo:
        """Change options while the queue runs; those not given stay."""
        change = Update(self.name, wire_options({**options}))
        return request(self._link.call, Op.Q_UPDATE, change, QueueInfo)

    def info(self) -> QueueInfo:
        """Options and counts."""
        return request(self._link.repeat, Op.Q_INFO, Named(self.name), QueueInfo)

    def exists(self) -> bool:
        """Whether the queue was created."""
        return is_found(self._link.repeat, Op.Q_EXISTS, pack_str(self.name))

    def delete(self) -> bool:
        """Delete the queue with all its jobs; returns whether it existed."""
        return is_found(self._link.call, Op.Q_DELETE, pack_str(self.name))

    def purge(self) -> int:
        """Remove every waiting or scheduled job; returns how many."""
        return request(self._link.call, Op.Q_PURGE, Named(self.name), int)

    def pause(self) -> None:
        """Deliver nothing until `resume`; running jobs continue, pushes are accepted."""
        self._link.call(Op.Q_PAUSE, encode(Pause(self.name, True)))

    def resume(self) -> None:
        """Deliver again."""
        self._link.call(Op.Q_PAUSE, encode(Pause(self.name, False)))

    # -- pushing --------------------------------------------------------------

    def push(
        self,
        value: T,
        *misplaced: Never,
        priority: int = 0,
        delay: Duration | datetime = 0,
        ttl: Duration = 0,
        key: str | None = None,
        dedup_key: str | None = None,
        replace: bool = False,
        headers: Mapping[str, Any] | None = None,
    ) -> str:
        """Add a job; the result is its id, once it is durable.

        ``priority`` 0 to 255, highest first. ``delay`` holds it back, for a while or until a
        `datetime`; ``ttl`` drops it if it has not started by then. ``key`` groups jobs for fairness
        and limits. While a job with the same ``dedup_key`` waits or runs, no second one is added:
        the older job's id is the result; with ``replace`` the new one takes the waiting one's
        place. ``headers`` are sent beside the value. Pushes of one loop turn are sent together.
        """
        if misplaced:
            raise not_keywords(misplaced, "push(value, priority=5)")
        head = self._head(priority, delay, ttl, replace)
        if key is not None:
            text(key, "key")
        if dedup_key is not None:
            text(dedup_key, "dedup_key")
        raw = encode_value(value) if self._type is None else encode_as(self._type, value)
        return self._pusher.push(head, raw, key, dedup_key, write_headers(headers))

    def push_many(
        self,
        values: Iterable[T],
        *,
        priority: int = 0,
        delay: Duration | datetime = 0,
        ttl: Duration = 0,
        keys: Sequence[str | None] | None = None,
        dedup_keys: Sequence[str | None] | None = None,
        replace: bool = False,
        headers: Sequence[Mapping[str, Any] | None] | None = None,
    ) -> list[str]:
        """Add many jobs; ``keys``, ``dedup_keys`` and ``headers`` are one per value."""
        raw = encode_values(list(each(values)), self._type)
        column(keys, "keys", len(raw))
        column(dedup_keys, "dedup_keys", len(raw))
        column(headers, "headers", len(raw))
        said = None if headers is None else [write_headers(each) for each in headers]
        head = self._head(priority, delay, ttl, replace)
        if not raw and not self.exists():
            raise NotFound(f"queue {self.name!r} not found: create it first")
        if self._link.welcome is None:
            self._link.call(Op.ECHO)  # to learn how much the server accepts at once
        replies: list[PushReply] = []
        for start, stop in chunks(raw, keys, dedup_keys, self._link.welcome, said):
            full = PushHead(
                head.queue, head.priority, head.delay_ms, head.ttl_ms,
                _part(keys, start, stop), _part(dedup_keys, start, stop), replace,
                _part(said, start, stop),
            )  # fmt: skip
            block = pack_block(raw[start:stop])
            reply = self._link.call(Op.Q_PUSH_MANY, encode_head(full), block)
            replies.append(decode(reply or b"", PushReply))
        return pushed_ids(replies)

    def _head(
        self, priority: int, delay: Duration | datetime, ttl: Duration, replace: bool
    ) -> PushHead:
        if priority.__class__ is not int or not 0 <= priority <= MAX_PRIORITY:
            whole(priority, "priority", 0, MAX_PRIORITY)
        delay_ms = until_ms(delay, "delay", MAX_DELAY_MS) if delay else 0
        ttl_ms = millis(ttl, "ttl", MAX_DELAY_MS) if ttl else 0
        return PushHead(self.name, priority, delay_ms, ttl_ms, replace=replace)

    # -- working --------------------------------------------------------------

    def pop(
        self, batch: int = 1, *, wait: Duration = 0, lease: Duration | None = None
    ) -> JobBatch[T]:
        """Lease up to ``batch`` jobs, waiting up to ``wait`` for the first; may be empty.

        They are leased to this client for ``lease`` (default: the queue's visibility timeout): ack,
        nack or extend them before it ends.
        """
        ask = pop_request(self.name, batch, wait, lease)
        patience_s = self._link.address.timeout_s
        # Jobs are released when the connection that took them ends, so it must be a lasting one,
        # and another pop takes them again.
        link = self._link.duplex()

        def take(left_s: float) -> Reply:
            wait_ms = min(ask.wait_ms, max(round((left_s - patience_s) * 1_000), 0))
            rest = replace(ask, wait_ms=wait_ms)
            return link.poll(
                Op.Q_POP, encode(rest), timeout_s=left_s, on_late=self._give_back
            ).reply()

        reply = link.again(take, ask.wait_ms / 1_000 + patience_s)
        return JobBatch(self._link, self._settler, self.name, self._type, reply or NO_JOBS)

    def _give_back(self, reply: Reply) -> None:
        """Return the jobs of a pop that was cancelled."""
        if reply:
            self._settler.post_release(decode(split_head(reply)[0], PopReply).token)

    def subscribe(
        self,
        handler: Callable[[Job[T]], Any],
        *misplaced: Never,
        batch: int = 50,
        wait: Duration = 20,
        concurrency: int = 5,
        lease: Duration | None = None,
        time_limit: Duration | None = None,
    ) -> QueueSubscription[T]:
        """Run ``handler(job)`` for every job, up to ``concurrency`` at once.

        Returning acks the job, and stores what was returned as its result if the queue keeps
        results; raising nacks it with the error's text. Leases are renewed while the handler runs.
        With ``concurrency=1`` jobs run strictly one after another. A handler that runs longer than
        ``time_limit`` is cancelled, and its job is nacked.
        """
        if misplaced:
            raise not_keywords(misplaced, "subscribe(handler, batch=50)")
        ask = pop_request(self.name, batch, wait, lease, reports=True)
        subscription = QueueSubscription(
            self._link, self._type, handler, ask, concurrency, time_limit
        )
        self._link.repeat(Op.Q_INFO, encode(Look(self.name, to_use=True)))
        subscription.start()
        return subscription

    def worker(
        self,
        *,
        batch: int = 50,
        wait: Duration = 20,
        concurrency: int = 5,
        lease: Duration | None = None,
        time_limit: Duration | None = None,
    ) -> Callable[[Callable[[Job[T]], Any]], Worker[T]]:
        """Decorator: make a handler a `Worker`, to be run by itself or by ``nexo worker``.

        A worker may start before its queue is created. Options as in `subscribe`.
        """
        ask = pop_request(self.name, batch, wait, lease, reports=True)

        def decorate(handler: Callable[[Job[T]], Any]) -> Worker[T]:
            return Worker(
                handler,
                lambda: QueueSubscription(
                    self._link, self._type, handler, ask, concurrency, time_limit,
                    waits_for_queue=True,
                ),
            )  # fmt: skip

        return decorate

    # -- looking --------------------------------------------------------------

    def peek(self, limit: int = 100, offset: int = 0) -> list[JobView[T]]:
        """The next waiting jobs, without leasing them."""
        ask = PeekJobs(self.name, limit, offset)
        rows = request(self._link.repeat, Op.Q_PEEK, ask, list[dict[str, Any]])
        return [job_view(row, self._type) for row in rows]

    def job(self, job_id: str, *, wait: Duration = 0) -> JobState:
        """The state of a job; with ``wait``, once it has ended or the time is up."""
        wait_ms = millis(wait, "wait", QUEUE_WAIT_MS)
        link, patience_s = self._link, self._link.address.timeout_s

        def look(left_s: float) -> Reply:
            rest_ms = min(wait_ms, max(round((left_s - patience_s) * 1_000), 0))
            ask = JobRequest(self.name, job_id, rest_ms)
            return link.poll(Op.Q_JOB, encode(ask), timeout_s=left_s).reply()

        return job_state(link.again(look, wait_ms / 1_000 + patience_s))

    def result(self, job_id: str, *, wait: Duration = 30) -> Any:
        """Wait for the end of a job, and return its result. The queue must have a ``result_ttl``.

        None also for a job that was cancelled, or whose result is no longer kept.

        Raises `RequestTimeout` if it has not ended in time, `Conflict` if it is dead or another
        job has replaced it.
        """
        state = self.job(job_id, wait=wait)
        match state.state:
            case "done":
                return state.result
            case "dead":
                raise Conflict(f"job {job_id} is dead: {state.reason}")
            case "replaced":
                raise Conflict(f"job {job_id} was replaced by job {state.replaced_by}: ask for it")
        raise RequestTimeout(f"job {job_id} is still {state.state}")

    @cached_property
    def dlq(self) -> DeadLetters[T]:
        """Jobs that failed for good."""
        return DeadLetters(self._link, self.name, self._type)

    @cached_property
    def scheduled(self) -> Scheduled[T]:
        """Jobs that are not due yet."""
        return Scheduled(self._link, self.name, self._type)

    @cached_property
    def cron(self) -> Crons:
        """Schedules that push jobs automatically."""
        return Crons(self._link, self.name)


def _part(column: Sequence[V] | None, start: int, stop: int) -> list[V] | None:
    return None if column is None else [*column[start:stop]]
