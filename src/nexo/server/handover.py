"""Passing accepted sockets from the gate to a broker's process (SCM_RIGHTS)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

_MANY = 64
_MARK = b"s"


def pair() -> tuple[socket.socket, socket.socket]:
    """A channel: the gate's end and the broker's end, both non-blocking."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    theirs.setblocking(False)
    return ours, theirs


def send(channel: socket.socket, sock: socket.socket) -> bool:
    """Hand ``sock`` over and close our copy; False if the channel is full or broken."""
    try:
        socket.send_fds(channel, [_MARK], [sock.fileno()])
    except OSError:
        return False
    sock.close()
    return True


def listen(
    channel: socket.socket,
    adopt: Callable[[socket.socket], None],
    ended: Callable[[], None],
) -> None:
    """Call ``adopt`` for every socket that arrives, and ``ended`` when the gate is gone."""
    loop = asyncio.get_running_loop()

    def readable() -> None:
        try:
            data, fds, _, _ = socket.recv_fds(channel, len(_MARK), _MANY)
        except BlockingIOError:
            return
        except OSError:
            data, fds = b"", []
        for fd in fds:
            adopt(socket.socket(fileno=fd))
        if not data:
            loop.remove_reader(channel.fileno())
            ended()

    loop.add_reader(channel.fileno(), readable)
