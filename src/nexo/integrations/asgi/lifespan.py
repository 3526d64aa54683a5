"""A client that lives as long as its application."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from types import FrameType
from typing import Any, Unpack

from starlette.requests import HTTPConnection

import nexo
from nexo.client.address import ConnectOptions
from nexo.errors import Conflict

_SIGNALS = (signal.SIGTERM, signal.SIGINT)

Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]


class Nexo:
    """``nexo = Nexo(); app = FastAPI(lifespan=nexo.lifespan)``.

    ``Depends(nexo.client)`` is the client in a request or WebSocket; ``nexo(app)`` is it
    elsewhere. It is connected before the first request and closed after the last. ``options``
    are those of `nexo.AsyncClient`. One object may serve several applications.
    """

    def __init__(self, url: str | None = None, **options: Unpack[ConnectOptions]) -> None:
        self._url = url
        self._options = options

    def around(self, inner: Lifespan) -> Lifespan:
        """A lifespan that connects, runs ``inner`` of your own, and closes after it."""

        @asynccontextmanager
        async def both(app: Any) -> AsyncIterator[Any]:
            async with self.lifespan(app), inner(app) as state:
                yield state

        return both

    @asynccontextmanager
    async def lifespan(self, app: Any) -> AsyncIterator[None]:
        """For ``lifespan=`` of FastAPI and Starlette."""
        async with await nexo.connect_async(self._url, **self._options) as client:
            stopping = asyncio.Event()
            app.state.nexo, app.state.nexo_stopping = client, stopping
            try:
                with _on_stop_signal(stopping):
                    yield
            finally:
                stopping.set()
                app.state.nexo = None

    def __call__(self, app: Any) -> nexo.AsyncClient:
        """The client of a running application."""
        client: nexo.AsyncClient | None = getattr(app.state, "nexo", None)
        if client is None:
            raise Conflict("the application does not run: give it lifespan=nexo.lifespan")
        return client

    def client(self, connection: HTTPConnection) -> nexo.AsyncClient:
        """A dependency: the client of the application that serves this request or WebSocket."""
        return self(connection.app)


@contextmanager
def _on_stop_signal(stopping: asyncio.Event) -> Iterator[None]:
    """Set ``stopping`` when the server is asked to stop.

    Servers wait for responses to end before they end an application's lifespan, and a stream of
    events has no end. So this handles the signal first, and passes it on to the server.
    """
    loop = asyncio.get_running_loop()
    before: dict[int, Any] = {}

    def handle(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(stopping.set)
        handler = before[number]
        if callable(handler):
            handler(number, frame)

    try:
        for number in _SIGNALS:
            before[number] = signal.getsignal(number)
            if callable(before[number]):
                signal.signal(number, handle)
    except ValueError:
        before.clear()  # not the main thread: signals are not for this server
    try:
        yield
    finally:
        for replaced, handler in before.items():
            if signal.getsignal(replaced) is handle:
                signal.signal(replaced, handler)
