# Generated from _async/queue/subscription.py by tools/unasync.py; edit that file instead.
"""Runs a handler over a queue's jobs until closed (SPEC D3, D4).

A `Worker` is a handler with its queue, as ``@queue.worker()`` makes it and ``nexo worker`` runs it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import update_wrapper
from typing import Any, Generic, TypeVar

from nexo.client._sync import runtime
from nexo.client._sync.handling import AskedAhead, HandlerLoop
from nexo.client._sync.link.link import Link
from nexo.client._sync.queue.gather import Settler
from nexo.client._sync.queue.jobs import Job, JobBatch
from nexo.client._sync.queue.leases import HeldLeases
from nexo.client.checks import failure_text, seconds
from nexo.client.connecting import QUICK_S, pause_s
from nexo.client.replies import Reply
from nexo.errors import ConnectionLost, NexoError, NotFound, RequestTimeout, Unavailable
from nexo.options.units import Duration
from nexo.protocol.ops import Op
from nexo.protocol.queue import PopJobs, encode

log = logging.getLogger("nexo.client")

T = TypeVar("T")


class QueueSubscription(HandlerLoop, Generic[T]):
    """A handler that is called with a queue's jobs until `close`.

    ``with`` closes it at the end.
    """

    def __init__(
        self,
        link: Link,
        type_: type[T] | None,
        handler: Callable[[Job[T]], Any],
        request: PopJobs,
        concurrency: int,
        time_limit: Duration | None = None,
        *,
        waits_for_queue: bool = False,
    ) -> None:
        super().__init__(handler, concurrency, time_limit)
        self._link = link.duplex()
        self.queue = request.queue
        self._type = type_
        self._pop = encode(request)
        self._batch = request.limit
        self._awaited = waits_for_queue
        """Whether the queue may not be there yet."""
        self._reply_s = request.wait_ms / 1_000 + link.address.timeout_s
        self._settler = Settler(self._link, self.queue)
        self._workers = runtime.Workers(concurrency)
        self._leases = HeldLeases(self._link, f"nexo-{self.queue}-leases")
        """Of the jobs whose handler has not ended."""
        self._unstarted: deque[tuple[Job[T], JobBatch[T]]] = deque()
        self._poll: Any = None
        """The pop under way."""
        self._asked: deque[AskedAhead] = deque()
        """The same, if it was asked for ahead; whoever takes it out deals with it."""
        self._when_ended: Callable[[], None] = lambda: None

    def __repr__(self) -> str:
        state = "running" if self.running else "ended" if self._task else "not started"
        return f"<{self.label}, {state}>"

    @property
    def label(self) -> str:
        """A description for logs."""
        where = f"queue {self.queue!r} of {self._link.address}"
        return f"Subscription to {where}, up to {self.concurrency} jobs at once"

    def start(self) -> None:
        """Start; `Queue.subscribe` calls it."""
        self._forget_hook = self._link.on_close(self._client_closes)
        self._task = runtime.spawn(self._run, name=f"nexo-{self.queue}")

    def when_ended(self, call: Callable[[], None]) -> None:
        """Call ``call`` when no more jobs are taken, in whatever thread or task that happens."""
        self._when_ended = call
        if self._task is not None and self._task.done():
            call()

    def close(self, timeout: Duration | None = None) -> None:
        """Stop taking jobs, release unstarted ones, and wait for running handlers.

        Handlers that run longer than ``timeout`` are no longer waited for; they and their leases
        continue until they end or the client closes. A handler may call this: it then returns at
        once.
        """
        limit_s = seconds(timeout)
        self._forget_hook()
        self._stopping.set()
        if self._poll is not None:
            self._poll.cancel()
        self._release_unstarted()
        self._drop_asked()
        if self._workers.is_current():
            return  # a handler cannot wait for its own end
        if self._task is not None and not self._task.is_current():
            self._task.join(limit_s)
            self._leases.join(limit_s)

    # -- taking ---------------------------------------------------------------

    def _run(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            try:
                self._round()
                failures, self._awaited = 0, False
            except NotFound as error:
                if not self._awaited:
                    self._ends(f"queue {self.queue}", error)
                elif not failures:
                    log.warning("queue %s does not exist yet: waiting for it", self.queue)
                failures += 1
                self._stopping.wait(pause_s(failures))
            except (ConnectionLost, RequestTimeout, Unavailable) as error:
                failures += 1
                log.info("queue %s: %s; trying again", self.queue, error)
                self._stopping.wait(pause_s(failures))
            except Exception as error:
                self._ends(f"queue {self.queue}", error)
        self._when_ended()
        self._drop_asked()
        self._workers.drain()
        self._settler.drain()
        self._leases.close()

    def _round(self) -> None:
        """Take jobs and start them all."""
        batch = self._next()
        if batch is None:
            return
        self._unstarted.extend((job, batch) for job in batch)
        half, began_s = len(batch) // 2, runtime.now_s()
        while self._unstarted:
            if self._stopping.is_set():
                self._release_unstarted()
                return
            if len(self._unstarted) == half and len(batch) == self._batch:
                self._ask_ahead(runtime.now_s() - began_s)
            self._workers.start_next(self._next_job, self._handle)

    def _ask_ahead(self, took_s: float) -> None:
        """Ask for the next jobs while half of these wait, if the others were done quickly."""
        if took_s < QUICK_S / 2:
            try:
                self._asked.append(AskedAhead(self._ask()))
            except NexoError as error:
                log.info("queue %s: %s", self.queue, error)

    def _ask(self) -> Any:
        self._poll = poll = self._link.poll(
            Op.Q_POP, self._pop, timeout_s=self._reply_s, impatient=True
        )
        if self._stopping.is_set():
            poll.cancel()
        return poll

    def _drop_asked(self) -> None:
        """Release what was asked for ahead, uncounted."""
        if (asked := self._taken_out()) is None:
            return
        asked.poll.cancel()
        try:
            batch = self._opened(asked.poll.reply())
            if batch is not None:
                self._release(batch)
        except NexoError as error:
            log.info("queue %s: %s", self.queue, error)

    def _release(self, batch: JobBatch[T]) -> None:
        self._unstarted.extend((job, batch) for job in batch)
        self._release_unstarted()

    def _next(self) -> JobBatch[T] | None:
        """Jobs that came, asked for ahead or now; None if none did, or they waited too long."""
        asked = self._taken_out()
        poll = self._ask() if asked is None else asked.poll
        try:
            reply = poll.reply()
        finally:
            self._poll = None
        batch = self._opened(reply)
        if batch is not None and asked is not None:
            third_s = batch.delivery.lease_ms / 3_000
            if asked.has_waited(runtime.now_s() - third_s):
                self._release(batch)
                return None
        return batch

    def _taken_out(self) -> AskedAhead | None:
        try:
            return self._asked.popleft()
        except IndexError:
            return None

    def _opened(self, reply: Reply) -> JobBatch[T] | None:
        if not reply:
            return None
        batch = JobBatch(self._link, self._settler, self.queue, self._type, memoryview(reply))
        self._leases.hold(batch, {job.number for job in batch})
        return batch

    def _release_unstarted(self) -> None:
        """Release jobs that were fetched and not started; no attempt is counted (SPEC D3)."""
        unstarted, self._unstarted = self._unstarted, deque()
        batches: dict[JobBatch[T], list[Job[T]]] = {}
        for job, batch in unstarted:
            batches.setdefault(batch, []).append(job)
        for batch, jobs in batches.items():
            try:
                batch.release_some(jobs)
            except NexoError as error:
                log.info("jobs of queue %s were not released: %s", self.queue, error)
            self._leases.let_go(self.queue, batch.delivery.token, [job.number for job in jobs])

    # -- one job --------------------------------------------------------------

    def _next_job(self) -> tuple[Job[T], JobBatch[T]] | None:
        """The next job to start; None if the rest was released meanwhile."""
        try:
            job, batch = self._unstarted.popleft()
        except IndexError:
            return None
        self._settler.begin(batch.delivery.token, job.number)
        return job, batch

    def _handle(self, taken: tuple[Job[T], JobBatch[T]]) -> None:
        job, batch = taken
        try:
            self._call(job, batch)
        except NexoError as error:
            log.warning("%r could not be settled: %s", job, error)
        except Exception:
            log.exception("%r could not be settled", job)
        finally:
            self._leases.let_go(self.queue, batch.delivery.token, (job.number,))

    def _call(self, job: Job[T], batch: JobBatch[T]) -> None:
        try:
            result = runtime.invoke_within(self._limit_s, self._handler, job)
            if result is not None and not job.settled and batch.delivery.keeps_results:
                job.result(result)
        except BaseException as error:
            if not runtime.is_failure(error):
                raise
            self._failed(job, batch, error)
            return
        if not job.settled:
            job.post_ack()

    def _failed(self, job: Job[T], batch: JobBatch[T], error: BaseException) -> None:
        if job.settled:
            log.error("the handler failed on %r after settling it", job, exc_info=error)
            return
        retries = batch.delivery.max_retries
        dead = ": it becomes a dead letter" if 0 <= retries < job.attempt else ""
        log.error("the handler failed on %r%s", job, dead, exc_info=error)
        job.nack(failure_text(error))


worker_log = logging.getLogger("nexo.worker")


class Worker(Generic[T]):
    """Calling it calls the handler, so that tests need no server."""

    def __init__(
        self,
        handler: Callable[[Job[T]], Any],
        make_subscription: Callable[[], QueueSubscription[T]],
    ) -> None:
        self._handler = handler
        self._make_subscription = make_subscription
        update_wrapper(self, handler)

    def __call__(self, job: Job[T]) -> Any:
        return self._handler(job)

    def start(self) -> QueueSubscription[T]:
        """Start to take jobs."""
        subscription = self._make_subscription()
        subscription.start()
        return subscription

    def run(self, stop_timeout: Duration | None = None) -> None:
        """Work until SIGTERM or Ctrl-C; then finish what runs, for ``stop_timeout``.

        Jobs that were fetched and not started are released without counting an attempt. Raises what
        ended the subscription, such as a deleted queue, so that a process supervisor can restart
        it.
        """
        with runtime.StopSignal() as signal:
            subscription = self._make_subscription()
            worker_log.info("%s starts", subscription.label)
            subscription.when_ended(signal.set)
            subscription.start()
            signal.wait()
            worker_log.info("stopping: finishing running jobs, releasing the others")
            subscription.close(stop_timeout)
        if subscription.failure is not None:
            raise subscription.failure
