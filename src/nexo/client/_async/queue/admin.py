"""The parts of a queue besides its running jobs: dead letters, scheduled jobs, cron."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Generic, TypeVar

from nexo.client._async.link.link import Link
from nexo.client._async.requests import is_found, request
from nexo.client.checks import each
from nexo.client.views import DeadJob, JobView, job_view
from nexo.model.queue import Schedule
from nexo.protocol.ops import Op
from nexo.protocol.queue import CronRequest, Jobs, Named, PeekJobs, encode
from nexo.protocol.values import encode_value

T = TypeVar("T")


class QueuePart(Generic[T]):
    """The base of the parts of a queue."""

    def __init__(self, link: Link, queue: str, type_: type[T] | None = None) -> None:
        self._link = link
        self._queue = queue
        self._type = type_

    async def _act(self, op: Op, ids: list[str] | None) -> int:
        return await request(self._link.call, op, Jobs(self._queue, ids), int)


class DeadLetters(QueuePart[T]):
    """Jobs that failed permanently (SPEC D6): ``queue.dlq``.

    The same verbs as a group's parked records.
    """

    async def peek(self, limit: int = 100, offset: int = 0) -> list[DeadJob[T]]:
        """Dead letters, newest first, without changing anything."""
        rows = (await self._page(limit, offset))["jobs"]
        return [job_view(row, self._type) for row in rows]  # type: ignore[misc]

    async def count(self) -> int:
        total: int = (await self._page(0, 0))["total"]
        return total

    async def _page(self, limit: int, offset: int) -> dict[str, Any]:
        ask = PeekJobs(self._queue, limit, offset)
        return await request(self._link.repeat, Op.Q_DLQ_LIST, ask, dict[str, Any])

    async def replay(self, job_ids: str | Iterable[str] | None = None) -> int:
        """Let one dead letter, some, or all, run again from the first attempt; returns how many.

        One whose ``dedup_key`` another job has taken meanwhile stays; `Conflict` if none other was
        requested.
        """
        ids = [job_ids] if isinstance(job_ids, str) else job_ids
        return await self._act(Op.Q_DLQ_REPLAY, None if ids is None else [*each(ids, "job_ids")])

    async def delete(self, job_id: str) -> bool:
        """Delete a dead letter; returns whether it existed."""
        return await self._act(Op.Q_DLQ_DELETE, [job_id]) > 0

    async def purge(self) -> int:
        """Delete all dead letters; returns how many."""
        return await self._act(Op.Q_DLQ_DELETE, None)


class Scheduled(QueuePart[T]):
    """Jobs that are not due yet, delayed or waiting for a retry: ``queue.scheduled``."""

    async def list(self, limit: int = 100, offset: int = 0) -> list[JobView[T]]:
        """The next jobs to become due, soonest first."""
        ask = PeekJobs(self._queue, limit, offset, "scheduled")
        rows = await request(self._link.repeat, Op.Q_PEEK, ask, list[dict[str, Any]])
        return [job_view(row, self._type) for row in rows]

    async def cancel(self, job_id: str) -> bool:
        """Remove a job that has not started; returns whether it existed."""
        return await self._act(Op.Q_CANCEL_JOB, [job_id]) > 0


class Crons(QueuePart[Any]):
    """Schedules that push jobs automatically: ``queue.cron``."""

    async def set(
        self, name: str, cron: str, value: object, *, priority: int = 0, key: str | None = None,
        timezone: str = "",
    ) -> int:  # fmt: skip
        """Push ``value`` whenever ``cron`` (five fields)
        matches; replaces a schedule of that name.

        Times are UTC, or local in ``timezone``, such as ``"Europe/Rome"``. Returns when it runs
        next, in milliseconds since the epoch.
        """
        ask = CronRequest(self._queue, name, cron, encode_value(value), priority, key, timezone)
        return await request(self._link.call, Op.Q_CRON_SET, ask, int)

    async def delete(self, name: str) -> bool:
        """Delete a schedule; returns whether it existed."""
        ask = CronRequest(self._queue, name)
        return await is_found(self._link.call, Op.Q_CRON_DELETE, encode(ask))

    async def list(self) -> list[Schedule]:
        """The queue's schedules."""
        return await request(self._link.repeat, Op.Q_CRON_LIST, Named(self._queue), list[Schedule])
