"""A task as a job (its message) and as the store remembers it (its record)."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from django.utils import timezone
from django.utils.module_loading import import_string

from nexo.integrations.django.api import Task, TaskError, TaskResult, TaskResultStatus

LOWEST_PRIORITY = -100
"""Django's priorities begin here, Nexo's at 0."""


@dataclass
class TaskCall:
    """The value of a job: what is to be called with what."""

    id: str
    task: str
    args: list[Any]
    kwargs: dict[str, Any]
    queue: str
    backend: str
    priority: int
    run_after: str | None
    enqueued_at: str
    in_outbox: bool = False
    """Whether the outbox may still hold it."""

    @classmethod
    def of(cls, result: TaskResult, in_outbox: bool) -> TaskCall:
        """The message of a task that is being enqueued."""
        task = result.task
        return cls(
            result.id, task.module_path, result.args, result.kwargs, task.queue_name,
            result.backend, task.priority, moment_text(task.run_after),
            moment_text(result.enqueued_at) or "", in_outbox,
        )  # fmt: skip

    def delay_s(self) -> float:
        """How long the task is still to wait."""
        if self.run_after is None:
            return 0.0
        due = datetime.fromisoformat(self.run_after)
        return max(0.0, (due - datetime.now(UTC)).total_seconds())

    def found_task(self) -> Task:
        """The task it names; ImportError if this project has none of that name."""
        found = import_string(self.task)
        if not isinstance(found, Task):
            raise ImportError(f"{self.task} is not a task")
        return found.using(
            priority=self.priority,
            queue_name=self.queue,
            run_after=moment(self.run_after),
            backend=self.backend,
        )


@dataclass
class TaskRecord:
    """The record of a task."""

    message: TaskCall
    status: str = "READY"
    started_at: str | None = None
    last_attempted_at: str | None = None
    finished_at: str | None = None
    errors: list[tuple[str, str]] = field(default_factory=list)
    worker_ids: list[str] = field(default_factory=list)
    return_value: Any = None
    job: str | None = None
    """The id of its job, once it was begun."""

    @classmethod
    def read(cls, raw: dict[str, Any]) -> TaskRecord:
        """Inverse of `asdict`."""
        return cls(**{**raw, "message": TaskCall(**raw["message"])})

    def result(self) -> TaskResult:
        result = TaskResult(
            task=self.message.found_task(),
            id=self.message.id,
            status=TaskResultStatus(self.status),
            enqueued_at=moment(self.message.enqueued_at),
            started_at=moment(self.started_at),
            last_attempted_at=moment(self.last_attempted_at),
            finished_at=moment(self.finished_at),
            args=self.message.args,
            kwargs=self.message.kwargs,
            backend=self.message.backend,
            errors=[TaskError(exception_class_path=e, traceback=text) for e, text in self.errors],
            worker_ids=[*self.worker_ids],
        )
        object.__setattr__(result, "_return_value", self.return_value)
        return result


def moment_text(when: datetime | None) -> str | None:
    """A moment as text in UTC; a naive one is in the project's time zone."""
    if when is None:
        return None
    aware = timezone.make_aware(when) if timezone.is_naive(when) else when
    return aware.astimezone(UTC).isoformat()


def moment(text: str | None) -> datetime | None:
    """Inverse of `moment_text`: naive in a project without time zones."""
    if not text:
        return None
    found = datetime.fromisoformat(text)
    from django.conf import settings  # noqa: PLC0415 - read when used, never at import

    return found if settings.USE_TZ else timezone.make_naive(found)
