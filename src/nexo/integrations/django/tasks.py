"""Django's tasks on Nexo's queues.

A task is a job of the queue ``<PREFIX><queue_name>``. What becomes of it is a record in the store
that lives for ``RESULT_TTL``. A task that is enqueued in a database transaction goes into the
outbox, a table of the same database, and from there into its queue once the transaction is
committed (`nexo.integrations.django.outbox`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any
from uuid import uuid4

from django.apps import apps
from django.core import checks
from django.db import DEFAULT_DB_ALIAS
from django.utils import timezone

from nexo.client._sync.client import Client
from nexo.client._sync.queue.queue import Queue
from nexo.errors import InvalidOption, NexoError, NotFound
from nexo.integrations.django import outbox
from nexo.integrations.django.api import (
    BaseTaskBackend,
    Task,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_enqueued,
)
from nexo.integrations.django.clients import client_of
from nexo.integrations.django.records import LOWEST_PRIORITY, TaskCall, TaskRecord
from nexo.model.names import name_of

_OPTIONS = {"URL", "PREFIX", "RETRIES", "RESULT_TTL", "OUTBOX", "DATABASE", "QUEUE"}
_OUTBOX = ("transaction", "always", "never")
_DAY_S = 86_400


class DjangoTaskBackend(BaseTaskBackend):
    """``OPTIONS``, all of them optional:

    ``URL``: the server; else ``NEXO_URL`` or a local one. ``PREFIX`` (``django/``): how queues'
    names begin. ``RETRIES`` (0): how often a task that raised is tried again. ``RESULT_TTL``
    (86,400): seconds that a result can be asked for; 0 keeps none. ``OUTBOX``: ``transaction``
    (the default if the app is installed), ``always`` or ``never``. ``DATABASE`` (``default``):
    where the outbox is. ``QUEUE``: options of the queues, as for ``client.queue(…).create``.
    """

    supports_defer = True
    supports_async_task = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        options: dict[str, Any] = params.get("OPTIONS", {})
        if unknown := set(options) - _OPTIONS:
            raise InvalidOption(f"TASKS[{alias!r}] has unknown OPTIONS: {', '.join(unknown)}")
        self.url: str | None = options.get("URL")
        self.prefix: str = options.get("PREFIX", "django/")
        self.retries: int = options.get("RETRIES", 0)
        self.result_ttl_s: float = options.get("RESULT_TTL", _DAY_S)
        self.supports_get_result = self.result_ttl_s > 0
        self.database: str = options.get("DATABASE", DEFAULT_DB_ALIAS)
        self.queue_options: dict[str, Any] = options.get("QUEUE", {})
        installed = apps.is_installed("nexo.integrations.django")
        self.outbox: str = options.get("OUTBOX", "transaction" if installed else "never")
        if self.outbox not in _OUTBOX:
            raise InvalidOption(f"OUTBOX is one of {', '.join(_OUTBOX)}, not {self.outbox!r}")

    # -- enqueueing

    def enqueue(self, task: Task, args: Any, kwargs: Any) -> TaskResult:
        """Inside a transaction it takes effect with the commit."""
        self.validate_task(task)
        result = TaskResult(
            task=task, id=uuid4().hex, status=TaskResultStatus.READY,
            enqueued_at=timezone.now(), started_at=None, last_attempted_at=None,
            finished_at=None, args=args, kwargs=kwargs, backend=self.alias, errors=[],
            worker_ids=[],
        )  # fmt: skip

        def announce() -> None:
            task_enqueued.send(type(self), task_result=result)

        if outbox.is_wanted(self.outbox, self.database):
            outbox.add(self, TaskCall.of(result, in_outbox=True), announce)
        else:
            self.push(TaskCall.of(result, in_outbox=False), {})
            announce()
        return result

    def push(
        self, message: TaskCall, headers: Mapping[str, Any], *, fail_fast: bool = False
    ) -> None:
        client = self._fast_client() if fail_fast else self.client()
        if self.result_ttl_s:
            client.store.set(
                self._record_key(message.id),
                asdict(TaskRecord(message)),
                ttl=self.result_ttl_s + message.delay_s(),
                if_absent=True,
            )
        queue = client.queue(self.queue_name(message.queue))
        try:
            _push(queue, message, headers)
        except NotFound:
            queue.create(**self.queue_options)
            _push(queue, message, headers)

    # -- results

    def get_result(self, result_id: str) -> TaskResult:
        record = self.stored(result_id) or self._in_outbox(result_id)
        if record is None:
            raise TaskResultDoesNotExist(result_id)
        if record.status == "RUNNING" and record.job is not None:
            self._look_for_death(record, record.job)
        return record.result()

    def stored(self, task_id: str) -> TaskRecord | None:
        if not self.result_ttl_s:
            return None
        raw = self.client().store.get(self._record_key(task_id))
        return None if raw is None else TaskRecord.read(raw)

    def _in_outbox(self, task_id: str) -> TaskRecord | None:
        message = outbox.find(self.database, task_id) if self.outbox != "never" else None
        return None if message is None else TaskRecord(message)

    def save(self, record: TaskRecord) -> None:
        if self.result_ttl_s:
            key = self._record_key(record.message.id)
            self.client().store.set(key, asdict(record), ttl=self.result_ttl_s)

    def _look_for_death(self, record: TaskRecord, job: str) -> None:
        """Report a task as failed that killed all its workers: none is left to report it."""
        try:
            state = self.client().queue(self.queue_name(record.message.queue)).job(job)
        except NexoError:
            return
        if state.state == "dead":
            record.status = "FAILED"
            record.errors.append(("nexo.errors.LeaseLost", state.reason or "its workers died"))

    # -- for workers

    def client(self) -> Client:
        return client_of(self.url)

    def _fast_client(self) -> Client:
        return client_of(self.url, while_down="fail", connect_timeout=1.0)

    def queue_name(self, name: str) -> str:
        return name_of(self.prefix + name)

    def _record_key(self, task_id: str) -> str:
        return f"{self.prefix}task/{task_id}"

    def check(self, **kwargs: Any) -> Iterable[checks.CheckMessage]:
        yield from super().check(**kwargs)
        if not apps.is_installed("nexo.integrations.django"):
            yield checks.Warning(
                "Tasks that are enqueued in a transaction run even if it is rolled back.",
                hint='Add "nexo.integrations.django" to INSTALLED_APPS and migrate.',
                id="nexo.W001",
            )


def _push(queue: Queue[Any], message: TaskCall, headers: Mapping[str, Any]) -> None:
    queue.push(
        asdict(message),
        priority=message.priority - LOWEST_PRIORITY,
        delay=message.delay_s(),
        dedup_key=message.id,
        headers={**headers} or None,
    )
