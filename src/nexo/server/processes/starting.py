"""Starts the server's processes: forked from the warm parent, or by exec where there is none.

A fork of a process that has imported everything costs a fraction of an interpreter that starts,
and shares its memory. The warm parent is made before the supervisor has a loop; one that dies is
replaced by exec, and does not take along what it has forked.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence

from nexo.config import Settings
from nexo.server.processes import warm
from nexo.server.processes.child import Child, Running
from nexo.server.processes.warm import Launch
from nexo.server.processes.worker import settings_text

ANSWER_S = 3.0
"""A warm parent that does not answer for this long is replaced."""
_STOP_S = 1.0


class Forked:
    """A process that was forked. The socket ``alive`` ends with it; its status may come on it."""

    def __init__(
        self, pid: int, alive: socket.socket, how_ended: Callable[[int], Awaitable[int | None]]
    ) -> None:
        self.pid = pid
        self._alive = alive
        self._how_ended = how_ended

    async def wait(self) -> int:
        """How it ended, as `subprocess` counts; one whose end nobody saw was killed."""
        said, loop = b"", asyncio.get_running_loop()
        with self._alive, contextlib.suppress(OSError):
            while more := await loop.sock_recv(self._alive, 1):
                said += more
        status = await self._how_ended(self.pid)
        if status is None:
            return said[0] if said else -signal.SIGKILL
        return status

    def send_signal(self, number: int) -> None:
        """Send it a signal; `ProcessLookupError` if it has ended."""
        os.kill(self.pid, number)


async def _reap(pid: int) -> int | None:
    """The status of our own child, which ends now; None if it is not ours."""
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:
        return None


async def execute(launch: Launch) -> Running:
    """Start it as a new interpreter."""
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", launch.module, *launch.arguments,
        pass_fds=tuple(launch.descriptors), stdin=asyncio.subprocess.DEVNULL,
    )  # fmt: skip


class _Lost(Exception):
    """The warm parent is gone, or does not answer."""


class Starter:
    """Starts processes for the supervisor. Make it before the loop and any thread."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._control: socket.socket | None = None
        self._first: Forked | None = None
        self._turn = asyncio.Lock()
        self.child = Child("warm parent", self._make)
        if warm.can_fork():
            warm.load(settings)
        if warm.can_fork():  # what was imported has started no thread
            self._control, theirs = _pair()
            ours, alive = _pair()
            pid = warm.fork(theirs, alive)
            self._first = Forked(pid, ours, _reap)
            theirs.close()
            alive.close()

    def open(self) -> None:
        """Watch the warm parent, and replace it when it dies."""
        if self._first is not None:
            self.child.open()

    async def start(self, launch: Launch) -> Running:
        """Start a process."""
        if self._control is not None:
            with contextlib.suppress(_Lost):
                return await self._fork(self._control, launch)
        return await execute(launch)

    async def close(self) -> None:
        """End the warm parent, once everything that it forked has ended."""
        self._drop()
        await self.child.stop(_STOP_S)

    # -- the warm parent ------------------------------------------------------------------

    async def _make(self) -> Running:
        """The one that was made before the loop; when that has died, a new one."""
        if (first := self._first) is not None:
            self._first = None
            return first
        self._drop()
        ours, theirs = _pair()
        with theirs:
            arguments = [str(theirs.fileno()), settings_text(self._settings)]
            running = await execute(Launch(warm.__name__, arguments, (theirs.fileno(),)))
        self._control = ours
        return running

    async def _fork(self, control: socket.socket, launch: Launch) -> Running:
        ours, theirs = _pair()
        try:
            with theirs:
                fds = [theirs.fileno(), *launch.descriptors]
                pid = int(await self._ask(control, {"launch": launch._asdict()}, fds))
            if pid < 0:
                raise OSError(-pid, os.strerror(-pid))
            ours.send(warm.GO)
        except BaseException:
            ours.close()  # whatever was forked ends without having begun
            raise

        async def how_ended(pid: int) -> int | None:
            with contextlib.suppress(_Lost):
                return int(await self._ask(control, {"ended": pid}))
            return await _reap(pid)  # as the first process of a container, it is ours now

        return Forked(pid, ours, how_ended)

    async def _ask(
        self, control: socket.socket, question: dict[str, object], fds: Sequence[int] = ()
    ) -> bytes:
        """Ask the warm parent; one that cannot answer is killed, and then replaced."""
        async with self._turn:
            if control is not self._control:
                raise _Lost
            try:
                socket.send_fds(control, [json.dumps(question).encode()], fds)
                async with asyncio.timeout(ANSWER_S):
                    answer = await asyncio.get_running_loop().sock_recv(control, 64)
            except (OSError, TimeoutError):
                answer = b""
            if not answer:
                self._drop()
                self.child.kill()
                raise _Lost
            return answer

    def _drop(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None


def _pair() -> tuple[socket.socket, socket.socket]:
    """Our end, which does not block, and that of another process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    return ours, theirs
