"""The processes that the supervisor runs: one per broker, and the dashboard's.

This imports nothing of the dashboard itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from nexo import limits
from nexo.config import Settings
from nexo.model import Broker
from nexo.server.entrance import handover
from nexo.server.entrance.gate import Arrival
from nexo.server.processes import worker
from nexo.server.processes.child import Child, Running
from nexo.server.processes.warm import Launch

log = logging.getLogger("nexo.supervisor")

RETRY_S = 0.01
Start: TypeAlias = Callable[[Launch], Awaitable[Running]]
_WORD_BYTES = 16
"""No word that a process says is longer."""


class BrokerProcess:
    """The process of one broker, and the channel that its connections are handed over on."""

    def __init__(
        self,
        broker: Broker,
        settings: Settings,
        run: Path,
        lock_fds: Sequence[int],
        start: Start,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        """``on_lost`` is called if the process has lost the lead; it is not restarted then."""
        self.broker = broker
        self._start_process = start
        self._on_lost = on_lost
        self._settings = settings
        self._run = run
        self._lock_fds = lock_fds
        self._loop = asyncio.get_running_loop()
        self._channel: socket.socket | None = None
        self._theirs: socket.socket | None = None
        self._waiting: deque[Arrival] = deque()
        self._retrying = False
        self._leads = False
        self.ready = asyncio.Event()
        """Set while the process serves."""
        self.settled = asyncio.Event()
        """Set once the clients of the stopping process have finished what they held."""
        self.waits = asyncio.Event()
        """Set once the process has loaded everything and waits to lead."""
        self.child = Child(broker.label, self._start, self._may_restart)

    def _may_restart(self, code: int) -> bool:
        if code == worker.LOST:
            self._on_lost()
        return code != worker.LOST

    @property
    def serves(self) -> bool:
        """Whether the process runs and has recovered its data."""
        return self.ready.is_set() and self.child.pid is not None

    async def _start(self) -> Running:
        self.ready.clear()
        self.settled.set()
        self.close_channel()
        self._channel, self._theirs = handover.pair()
        self._loop.add_reader(self._channel.fileno(), self._told, self._channel)
        if self._leads:
            self._tell_to_lead()
        arguments = worker.arguments(self.broker, self._settings, self._theirs, self._run)
        descriptors = [self._theirs.fileno(), *self._lock_fds]
        return await self._start_process(Launch(worker.__name__, arguments, descriptors))

    def lead(self) -> None:
        """Tell the process to serve; a replicating process waits for this."""
        self._leads = True
        self._tell_to_lead()

    def _tell_to_lead(self) -> None:
        if self._channel is not None and self._settings.replicate:
            with contextlib.suppress(OSError):  # it has just ended: the next process is asked
                self._channel.send(worker.LEAD)

    def _told(self, channel: socket.socket) -> None:
        """The process says how far it is; nothing, once it has ended."""
        said = b""
        with contextlib.suppress(OSError):
            said = channel.recv(_WORD_BYTES)
        if said == worker.WAITING:
            self.waits.set()
            return
        self._close_theirs()
        if said == worker.READY:
            self._serves()
            return
        self.settled.set()
        if not said:
            self._loop.remove_reader(channel.fileno())

    def _serves(self) -> None:
        self.settled.clear()
        self.ready.set()
        if self.child.restarts:
            log.info("the %s process is back", self.broker.label)

    def tell_to_end(self) -> None:
        """All processes have settled."""
        if self._channel is not None:
            with contextlib.suppress(OSError):  # it has ended already
                self._channel.send(worker.END)

    async def stop(self, timeout_s: float) -> bool:
        """End the process; False if it was killed or could not write everything."""
        path = worker.progress_path(self._run, self.broker)
        return await self.child.stop(timeout_s, lambda: _modified_ns(path))

    def hand_over(self, arrival: Arrival) -> None:
        """Give a connection to the process; while it restarts, the connection waits."""
        if len(self._waiting) >= limits.WAITING_FOR_BROKER:
            self._waiting.popleft().sock.close()
        self._waiting.append(arrival)
        if not self._retrying:
            self._send_waiting()

    def _send_waiting(self) -> None:
        self._retrying = False
        while self._waiting:
            if self._channel is None or not handover.send(self._channel, self._waiting[0]):
                self._retrying = True
                self._loop.call_later(RETRY_S, self._send_waiting)
                return
            self._waiting.popleft()

    def _close_theirs(self) -> None:
        if self._theirs is not None:
            self._theirs.close()
            self._theirs = None

    def close_channel(self) -> None:
        """Drop the channel to a process that has ended."""
        for end in (self._channel, self._theirs):
            if end is not None:
                self._loop.remove_reader(end.fileno())
                end.close()
        self._channel = self._theirs = None


class AdminProcess:
    """The dashboard's process. Its listening socket stays open while it restarts."""

    def __init__(
        self,
        settings: Settings,
        listener: socket.socket,
        run: Path,
        url: str,
        lock_fds: Sequence[int],
        start: Start,
    ) -> None:
        """``url`` is what users open.

        While the process lives, its port is in use, so it holds the locks of the folders too: the
        next server waits for it.
        """
        self._settings = settings
        self._listener = listener
        self._run = run
        self._url = url
        self._lock_fds = lock_fds
        self._start_process = start
        self._lifeline, self._theirs = socket.socketpair()
        self.child = Child("admin", self._start)

    async def _start(self) -> Running:
        fds = (self._listener.fileno(), self._theirs.fileno(), *self._lock_fds)
        arguments = [
            *map(str, fds[:2]),
            str(self._run),
            self._url,
            worker.settings_text(self._settings),
        ]
        return await self._start_process(
            Launch("nexo.server.processes.admin_worker", arguments, fds)
        )

    def close(self) -> None:
        for sock in (self._listener, self._lifeline, self._theirs):
            sock.close()


def _modified_ns(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None
