"""Results and progress of tasks, in the store."""

from __future__ import annotations

from typing import Any, TypeVar, Unpack

from taskiq import AsyncResultBackend, TaskiqResult
from taskiq.abc.serializer import TaskiqSerializer
from taskiq.depends.progress_tracker import TaskProgress
from taskiq.exceptions import ResultGetError
from taskiq.serializers import JSONSerializer

from nexo.client._async.client import AsyncClient
from nexo.client.address import ConnectOptions
from nexo.options.units import Duration

T = TypeVar("T")

DAY_S = 86_400


class TaskiqResultBackend(AsyncResultBackend[T]):
    """Keeps each result for ``ttl``; ``keep=False`` forgets it once it was read."""

    def __init__(
        self,
        url: str | None = None,
        *,
        ttl: Duration | None = DAY_S,
        keep: bool = True,
        prefix: str = "taskiq:",
        serializer: TaskiqSerializer | None = None,
        **client_options: Unpack[ConnectOptions],
    ) -> None:
        self._url = url
        self._ttl = ttl
        self._keep = keep
        self._prefix = prefix
        self._serializer = serializer or JSONSerializer()
        self._client_options = client_options
        self._connected: AsyncClient | None = None

    @property
    def _client(self) -> AsyncClient:
        if self._connected is None:
            self._connected = AsyncClient(self._url, **self._client_options)
        return self._connected

    async def shutdown(self) -> None:
        client, self._connected = self._connected, None
        if client is not None:
            await client.close()

    async def set_result(self, task_id: str, result: TaskiqResult[T]) -> None:
        content = self._serializer.dumpb(result.model_dump(mode="json"))
        await self._client.store.set(self._key("result", task_id), content, ttl=self._ttl)

    async def is_result_ready(self, task_id: str) -> bool:
        return await self._client.store.exists(self._key("result", task_id))

    async def get_result(self, task_id: str, with_logs: bool = False) -> TaskiqResult[T]:
        """A result; `ResultGetError` if there is none."""
        key = self._key("result", task_id)
        store = self._client.store
        content = await (store.get(key) if self._keep else store.getdel(key))
        if content is None:
            raise ResultGetError
        result: TaskiqResult[T] = TaskiqResult.model_validate(self._serializer.loadb(content))
        if not with_logs:
            result.log = None
        return result

    async def set_progress(self, task_id: str, progress: TaskProgress[Any]) -> None:
        content = self._serializer.dumpb(progress.model_dump(mode="json"))
        await self._client.store.set(self._key("progress", task_id), content, ttl=self._ttl)

    async def get_progress(self, task_id: str) -> TaskProgress[Any] | None:
        content = await self._client.store.get(self._key("progress", task_id))
        if content is None:
            return None
        return TaskProgress.model_validate(self._serializer.loadb(content))

    def _key(self, what: str, task_id: str) -> str:
        return f"{self._prefix}{what}:{task_id}"
