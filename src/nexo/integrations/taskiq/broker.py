"""Tasks as jobs: acknowledged when taskiq says so, their leases renewed until then."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any, Unpack

from taskiq import AckableMessage, AsyncBroker, BrokerMessage

from nexo.client._async.client import AsyncClient
from nexo.client._async.queue.jobs import Job
from nexo.client._async.queue.queue import Queue
from nexo.client.address import ConnectOptions
from nexo.client.views import QueueSettings
from nexo.errors import AlreadyExists, InvalidOption, NexoError
from nexo.integrations.jobs import MAX_RETRIES, text_if_utf8
from nexo.model.names import name_of

log = logging.getLogger("nexo.integrations")


class TaskiqBroker(AsyncBroker):
    """Sends tasks to queues and takes them from one.

    A task goes to ``queue``, or to the queue in its label ``queue_name``. Its labels ``delay``
    (seconds) and ``priority`` (0 to 255) are the job's. A worker holds up to ``prefetch`` tasks.
    ``queue_options`` are those of queues created here; one that exists keeps its own.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        queue: str = "taskiq",
        prefetch: int = 100,
        queue_options: QueueSettings | None = None,
        **client_options: Unpack[ConnectOptions],
    ) -> None:
        super().__init__()
        self._url = url
        self._queue = queue
        self._prefetch = prefetch
        self._queue_options: QueueSettings = {"max_retries": MAX_RETRIES, **(queue_options or {})}
        self._client_options = client_options
        self._client: AsyncClient | None = None
        self._created: dict[str, Queue[Any]] = {}

    async def startup(self) -> None:
        """Connect, and make sure that the queue exists."""
        await super().startup()
        if self._client is None:
            self._client = AsyncClient(self._url, **self._client_options)
        await self._created_queue(self._queue)

    async def shutdown(self) -> None:
        """Disconnect; what was not acknowledged runs elsewhere."""
        await super().shutdown()
        client, self._client = self._client, None
        self._created.clear()
        if client is not None:
            await client.close()

    async def kick(self, message: BrokerMessage) -> None:
        queue = await self._created_queue(str(message.labels.get("queue_name") or self._queue))
        await queue.push(
            text_if_utf8(message.message),
            priority=int(_number(message.labels, "priority")),
            delay=_number(message.labels, "delay"),
            headers={"task": message.task_name, "id": message.task_id},
        )

    async def listen(self) -> AsyncGenerator[AckableMessage, None]:
        arrived: asyncio.Queue[_Delivery | None] = asyncio.Queue()
        waiting: set[_Delivery] = set()
        closing = asyncio.Event()

        async def hand_over(job: Job[Any]) -> None:
            delivery = _Delivery(job)
            if closing.is_set():
                return await delivery.give_back()
            waiting.add(delivery)
            arrived.put_nowait(delivery)
            await delivery.settled.wait()
            return None

        queue = await self._created_queue(self._queue)
        subscription = await queue.subscribe(
            hand_over, batch=self._prefetch, concurrency=self._prefetch
        )
        subscription.when_ended(lambda: arrived.put_nowait(None))
        try:
            while (delivery := await arrived.get()) is not None:
                waiting.discard(delivery)
                yield AckableMessage(data=delivery.data, ack=delivery.ack)
            if subscription.failure is not None:
                raise subscription.failure
        finally:
            closing.set()
            while waiting:
                await waiting.pop().give_back()
            await subscription.close(0)

    async def _created_queue(self, name: str) -> Queue[Any]:
        if name in self._created:
            return self._created[name]
        if self._client is None:
            raise InvalidOption("the broker is not started: `await broker.startup()` first")
        queue = self._client.queue(name_of(name))
        if not await queue.exists():
            with suppress(AlreadyExists):  # another client was quicker
                await queue.create(**self._queue_options)
        self._created[name] = queue
        return queue


class _Delivery:
    """A job that taskiq holds."""

    def __init__(self, job: Job[Any]) -> None:
        self.settled = asyncio.Event()
        self._job = job

    @property
    def data(self) -> bytes:
        return self._job.payload

    async def ack(self) -> None:
        try:
            await self._job.ack()
        except NexoError as error:
            log.warning("%r could not be acknowledged, and may run again: %s", self._job, error)
        finally:
            self.settled.set()

    async def give_back(self) -> None:
        with suppress(NexoError):
            await self._job.release()
        self.settled.set()


def _number(labels: dict[str, Any], name: str) -> float:
    value = labels.get(name)
    try:
        return float(value or 0)
    except (TypeError, ValueError):
        raise InvalidOption(f"label {name}={value!r} is not a number") from None
