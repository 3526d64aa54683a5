"""The warm parent: a process that has imported all that the others need, and forks them.

It answers one question at a time, on a socket: fork a process, or say how one has ended. It has no
threads, no loop and no data, so that a fork is safe, and its pages stay shared. Only the
supervisor talks to it; it ends when that is gone. ``python -m`` this module makes a new one.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple, NoReturn

from nexo import config
from nexo.config import Settings
from nexo.model import Broker
from nexo.server.loop import loop_factory
from nexo.server.processes import logs, worker
from nexo.server.processes.system import close_descriptors, name_process, threads

GO = b"g"
"""Lets a forked process begin: until then, nobody may know its number."""
MESSAGE_BYTES = 65_536
_DESCRIPTORS = 64
_BLOCKED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Signals that a terminal or a service manager sends to all; the supervisor handles them."""


class Launch(NamedTuple):
    """A process to start: the ``main`` of a module, and the descriptors that it inherits."""

    module: str
    arguments: list[str]
    descriptors: Sequence[int]


def load(settings: Settings) -> None:
    """Import what every broker's process needs, and share it with what is forked."""
    gc.disable()  # a collection would write to pages that are to be shared
    loop_factory()
    for broker in Broker:
        worker.load(broker, settings)
    gc.freeze()
    gc.enable()


def can_fork() -> bool:
    """Whether this process may fork one that goes on without exec."""
    return sys.platform == "linux" and threads() == 1


def fork(control: socket.socket, alive: socket.socket) -> int:
    """Fork this process as a warm parent, which has no other descriptor."""
    pid = os.fork()
    if pid:
        return pid
    try:
        close_descriptors(but=(control.fileno(), alive.fileno()))
        serve(control, alive)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def serve(control: socket.socket, *held: socket.socket) -> NoReturn:
    """Fork what is asked for until the supervisor is gone. ``held`` is not for what is forked."""
    name_process("nexo: warm")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
    while True:
        message, fds, _, _ = socket.recv_fds(control, MESSAGE_BYTES, _DESCRIPTORS)
        if not message:
            os._exit(0)
        asked = json.loads(message)
        if "ended" in asked:
            control.send(_how_ended(asked["ended"]))
            continue
        launch = Launch(**asked["launch"])
        try:
            pid = os.fork()
        except OSError as error:
            pid = -(error.errno or 1)
        if pid == 0:
            _become(launch, fds, (control, *held))
        for fd in fds:
            os.close(fd)
        control.send(b"%d" % pid)


def _how_ended(pid: int) -> bytes:
    return b"%d" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _become(launch: Launch, fds: list[int], close: Sequence[socket.socket]) -> NoReturn:
    """Run a launch in the forked process. The first descriptor is the supervisor's end of it."""
    code = 1
    try:
        for sock in close:
            sock.close()
        alive = socket.socket(fileno=_above(fds[0], launch.descriptors))
        _put(fds[1:], launch.descriptors)
        if alive.recv(1) != GO:
            os._exit(0)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _BLOCKED)
        code = _run(launch)
        alive.send(bytes([code]))
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _run(launch: Launch) -> int:
    """The exit status of its main program, as the interpreter would give it."""
    try:
        import_module(launch.module).main(launch.arguments)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):  # nobody reads it
                stream.flush()
    return 0


def _above(fd: int, numbers: Sequence[int]) -> int:
    """The same descriptor with a number that is none of ``numbers``."""
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, max(numbers, default=0) + 1)
    os.close(fd)
    return moved


def _put(fds: Sequence[int], numbers: Sequence[int]) -> None:
    """Give received descriptors the numbers that they have in the supervisor."""
    moved = [_above(fd, [*numbers, *fds]) for fd in fds]
    for fd, number in zip(moved, numbers, strict=True):
        os.dup2(fd, number, inheritable=False)
        os.close(fd)


def main(arguments: list[str]) -> None:
    descriptor, text = arguments
    signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
    settings = config.load(flags=json.loads(text))
    logs.configure(settings, "warm")
    load(settings)
    serve(socket.socket(fileno=int(descriptor)))


if __name__ == "__main__":
    main(sys.argv[1:])
