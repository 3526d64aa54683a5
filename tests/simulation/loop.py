"""The event loop of a simulated process: asyncio's own, over sockets that the world moves."""

from __future__ import annotations

import asyncio
import selectors
import socket
import threading
from asyncio import selector_events
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from tests.simulation.jobs import run_job
from tests.simulation.network import Network, SimSocket
from tests.simulation.world import S

if TYPE_CHECKING:
    from tests.simulation.world import Process

_Base: Any = selector_events.BaseSelectorEventLoop  # their private parts have no types
_Selector: Any = getattr(selectors, "_BaseSelectorImpl")  # noqa: B009

_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class SimSelector(_Selector):  # type: ignore[misc]
    """Says which of a process' sockets are ready, in an order that the seed draws."""

    def __init__(self, process: Process) -> None:
        super().__init__()
        self._process = process
        self._writers: dict[int, None] = {}
        """Descriptors that wait until they can be written to."""

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key: selectors.SelectorKey = super().register(fileobj, events, data)
        self._process.hot[key.fd] = None
        if events & _WRITE:
            self._writers[key.fd] = None
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        key: selectors.SelectorKey = super().unregister(fileobj)
        self._writers.pop(key.fd, None)
        return key

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = self.ready()
        if len(ready) > 1:
            self._process.chance.shuffle(ready)
        return ready

    def ready(self) -> list[tuple[selectors.SelectorKey, int]]:
        process = self._process
        keys: dict[int, selectors.SelectorKey] = self._fd_to_key
        found: dict[int, int] = {}
        for fd in list(process.hot):
            sock = process.sockets.get(fd)
            if sock is None or not sock.readable or fd not in keys:
                del process.hot[fd]  # registering it, or more bytes, put it back
            elif keys[fd].events & _READ:
                found[fd] = _READ
            else:
                del process.hot[fd]
        for fd in self._writers:
            if (sock := process.sockets.get(fd)) is not None and sock.writable:
                found[fd] = found.get(fd, 0) | _WRITE
        return [(keys[fd], events) for fd, events in found.items()]


class SimLoop(_Base):  # type: ignore[misc]
    """Never runs by itself: its process calls each turn."""

    def __init__(self, process: Process, network: Network) -> None:
        self._process = process
        self._world = process.world
        self._network = network
        self._signals: dict[int, Callable[[], object]] = {}
        super().__init__(SimSelector(process))
        self._thread_id = threading.get_ident()
        self.set_exception_handler(self._unhandled)

    def _make_self_pipe(self) -> None:
        """Nothing wakes it but its process."""
        self._internal_fds = 0

    def _write_to_self(self) -> None:
        self._process.wake()

    def time(self) -> float:
        return self._world.now_ns / S

    def due_ns(self) -> int | None:
        """When the next turn has something to do."""
        if self._ready or self._selector.ready():
            return self._world.now_ns
        return int(self._scheduled[0]._when * S) + 1 if self._scheduled else None

    def _unhandled(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self._world.found("unhandled", f"{self._process.name}: {context['message']}: {error!r}")

    # -- what other loops ask of the system ------------------------------------------

    def run_in_executor(
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        return run_job(self._process, executor, lambda: func(*args))

    async def create_connection(
        self, protocol_factory: Callable[[], Any], host: str = "", port: int = 0, **_: Any
    ) -> tuple[Any, Any]:
        ended: asyncio.Future[SimSocket] = self.create_future()
        self._network.connect(self._process, (host, port), ended)
        try:
            sock = await ended
        except asyncio.CancelledError:
            if ended.done() and not ended.cancelled() and ended.exception() is None:
                ended.result().close()
            raise
        made = self._create_connection_transport(sock, protocol_factory, None, None)
        return cast("tuple[Any, Any]", await made)

    def add_signal_handler(self, sig: int, callback: Callable[..., object], *args: Any) -> None:
        self._signals[sig] = lambda: callback(*args)

    def remove_signal_handler(self, sig: int) -> bool:
        return self._signals.pop(sig, None) is not None

    def signal(self, number: int) -> None:
        """Deliver a signal; without a handler it kills."""
        if (handler := self._signals.get(number)) is None:
            self._process.kill()
        else:
            self.call_soon(handler)
            self._process.wake()

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> Any:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))]
