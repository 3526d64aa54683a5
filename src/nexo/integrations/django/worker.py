"""Runs tasks: what ``manage.py nexo_worker`` does in each process."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Sequence
from traceback import format_exception
from typing import Any
from uuid import uuid4

from django.db import Error as DatabaseError
from django.db import close_old_connections
from django.utils import timezone

from nexo.client._sync.queue.jobs import Job
from nexo.client._sync.queue.subscription import QueueSubscription
from nexo.client.checks import failure_text
from nexo.errors import NexoError
from nexo.integrations.django import outbox
from nexo.integrations.django.api import (
    TaskContext,
    TaskResult,
    normalize_json,
    task_backends,
    task_finished,
    task_started,
)
from nexo.integrations.django.records import TaskCall, TaskRecord, moment_text
from nexo.integrations.django.tasks import DjangoTaskBackend

log = logging.getLogger("nexo.django")

_RELAY_PAUSE_S = 1.0


class TaskWorker:
    """Takes the jobs of a backend's queues on ``threads`` threads each, and empties its outbox.

    Tests run tasks with it too: ``with Worker(): …``.
    """

    def __init__(
        self,
        alias: str = "default",
        queues: Sequence[str] = (),
        threads: int = 4,
        *,
        relays: bool = True,
    ) -> None:
        self.id = f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}"
        self._alias = alias
        self.queues = queues or sorted(self._backend.queues)
        self._threads = threads
        self._stopping = threading.Event()
        self._subscriptions: list[QueueSubscription[Any]] = []
        self._relay = threading.Thread(target=self._keep_relaying, name="nexo-outbox", daemon=True)
        self._relays = relays and self._backend.outbox != "never"

    @property
    def _backend(self) -> DjangoTaskBackend:
        """Each thread has a backend of its own, as Django has it."""
        backend: DjangoTaskBackend = task_backends[self._alias]
        return backend

    def __enter__(self) -> TaskWorker:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop(30)

    def start(self) -> None:
        """Make sure that the queues exist, and begin."""
        backend = self._backend
        for name in self.queues:
            queue = backend.client().queue(backend.queue_name(name))
            queue.create(update=True, **backend.queue_options)
            self._subscriptions.append(
                queue.subscribe(self._run, batch=self._threads, concurrency=self._threads)
            )
        if self._relays:
            self._relay.start()

    def when_ended(self, call: Callable[[], None]) -> None:
        """Call ``call``, in any thread, when one of the queues is no longer served."""
        for subscription in self._subscriptions:
            subscription.when_ended(call)

    def failure(self) -> Exception | None:
        """Why one of the queues is no longer served, if one is not."""
        failures = [each.failure for each in self._subscriptions]
        return next((each for each in failures if each is not None), None)

    def stop(self, timeout_s: float) -> None:
        """Finish what runs, for ``timeout_s``; what has not begun goes back to its queue."""
        self._stopping.set()
        for subscription in self._subscriptions:
            subscription.close(timeout_s)
        if self._relay.ident is not None:
            self._relay.join(timeout_s)

    # -- one task

    def _run(self, job: Job[dict[str, Any]]) -> None:
        close_old_connections()
        try:
            message = TaskCall(**job.value)
        except TypeError as error:
            job.reject(f"this is no task: {error}")
            return
        try:
            self._run_message(job, message)
        finally:
            close_old_connections()

    def _run_message(self, job: Job[Any], message: TaskCall) -> None:
        backend = self._backend
        if message.in_outbox:
            outbox.forget(backend.database, message.id)
        record = self._begin(backend, job, message)
        try:
            result = record.result()
        except Exception as error:
            record.errors.append(_described(error))
            self._end(backend, record, "FAILED")
            job.reject(failure_text(error))
            return
        task_started.send(type(backend), task_result=result)
        failure = self._call(record, result)
        retries = failure is not None and job.attempt <= backend.retries
        status = "READY" if retries else "SUCCESSFUL" if failure is None else "FAILED"
        self._end(backend, record, status)
        _show(result, record)
        if not retries:
            task_finished.send(type(backend), task_result=result)
        if failure is not None:
            (job.nack if retries else job.reject)(failure_text(failure))

    def _begin(self, backend: DjangoTaskBackend, job: Job[Any], message: TaskCall) -> TaskRecord:
        record = backend.stored(message.id) or TaskRecord(message)
        now = moment_text(timezone.now())
        record.status, record.job, record.last_attempted_at = "RUNNING", job.id, now
        record.started_at = record.started_at or now
        record.finished_at = None
        record.worker_ids.append(self.id)
        self._save(backend, record)
        return record

    def _call(self, record: TaskRecord, result: TaskResult) -> BaseException | None:
        """The error of the task; a cancelled task or `SystemExit` is its failure too."""
        context = (TaskContext(task_result=result),) if result.task.takes_context else ()
        try:
            returned = result.task.call(*context, *result.args, **result.kwargs)
            record.return_value = normalize_json(returned)
        except BaseException as error:
            record.errors.append(_described(error))
            return error
        return None

    def _end(self, backend: DjangoTaskBackend, record: TaskRecord, status: str) -> None:
        record.status = status
        if status != "READY":
            record.finished_at = moment_text(timezone.now())
        self._save(backend, record)

    def _save(self, backend: DjangoTaskBackend, record: TaskRecord) -> None:
        """The task counts as done even if its result cannot be kept."""
        try:
            backend.save(record)
        except NexoError as error:
            log.warning("the result of task %s was not kept: %s", record.message.id, error)

    # -- the outbox

    def _keep_relaying(self) -> None:
        while not self._stopping.is_set():
            if not self._relay_some():
                self._stopping.wait(_RELAY_PAUSE_S)
        close_old_connections()

    def _relay_some(self) -> int:
        close_old_connections()
        try:
            return outbox.relay(self._backend)
        except (NexoError, DatabaseError) as error:
            log.warning("the outbox waits: %s", error)
            return 0


def _show(result: TaskResult, record: TaskRecord) -> None:
    """Let receivers of signals see in ``result`` how it ended."""
    shown = record.result()
    for name in ("status", "errors", "finished_at", "last_attempted_at", "_return_value"):
        object.__setattr__(result, name, getattr(shown, name))


def _described(error: BaseException) -> tuple[str, str]:
    kind = type(error)
    return f"{kind.__module__}.{kind.__qualname__}", "".join(format_exception(error))
