"""Schedules that survive restarts: jobs of a queue that nobody works on."""

from __future__ import annotations

from contextlib import suppress
from typing import Unpack

from taskiq import ScheduledTask, ScheduleSource

from nexo.client._async.client import AsyncClient
from nexo.client._async.queue.queue import Queue
from nexo.client.address import ConnectOptions
from nexo.errors import AlreadyExists
from nexo.model.names import name_of

_PAGE = 1_000


class NexoScheduleSource(ScheduleSource):
    """Keeps schedules in ``queue``, one job each, and removes those for one time once sent."""

    def __init__(
        self,
        url: str | None = None,
        *,
        queue: str = "taskiq-schedules",
        **client_options: Unpack[ConnectOptions],
    ) -> None:
        self._url = url
        self._name = name_of(queue)
        self._client_options = client_options
        self._client: AsyncClient | None = None

    async def startup(self) -> None:
        await self._queue()

    async def shutdown(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def get_schedules(self) -> list[ScheduledTask]:
        return [schedule for _, schedule in await self._all()]

    async def add_schedule(self, schedule: ScheduledTask) -> None:
        """Add a schedule, in place of one with the same id."""
        queue = await self._queue()
        await queue.push(
            schedule.model_dump_json(),
            dedup_key=schedule.schedule_id,
            replace=True,
            headers={"task": schedule.task_name, "id": schedule.schedule_id},
        )

    async def delete_schedule(self, schedule_id: str) -> None:
        queue = await self._queue()
        for job_id, schedule in await self._all():
            if schedule.schedule_id == schedule_id:
                await queue.scheduled.cancel(job_id)

    async def post_send(self, task: ScheduledTask) -> None:
        """Delete a schedule that was for one time."""
        if task.time is not None:
            await self.delete_schedule(task.schedule_id)

    async def _all(self) -> list[tuple[str, ScheduledTask]]:
        queue, found = await self._queue(), list[tuple[str, ScheduledTask]]()
        while page := await queue.peek(_PAGE, len(found)):
            found += [(job.id, ScheduledTask.model_validate_json(job.value)) for job in page]
        return found

    async def _queue(self) -> Queue[str]:
        if self._client is None:
            self._client = AsyncClient(self._url, **self._client_options)
        queue = self._client.queue(self._name, str)
        if not await queue.exists():
            with suppress(AlreadyExists):
                await queue.create()
        return queue
