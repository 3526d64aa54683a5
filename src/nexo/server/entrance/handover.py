"""Passing accepted sockets from the gate to a broker's process (SCM_RIGHTS).

A message carries one socket; its bytes are a flag for TLS and the dialect's name.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from nexo.server.entrance.gate import Arrival

_NAME_BYTES = 64


def pair() -> tuple[socket.socket, socket.socket]:
    """A channel: the gate's end and the broker's end, both non-blocking."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    theirs.setblocking(False)
    return ours, theirs


def send(channel: socket.socket, arrival: Arrival) -> bool:
    """Hand a connection over and close our copy; False if the channel is full or broken."""
    message = bytes((arrival.tls,)) + arrival.dialect.encode()
    try:
        socket.send_fds(channel, [message], [arrival.sock.fileno()])
    except OSError:
        return False
    arrival.sock.close()
    return True


def listen(
    channel: socket.socket,
    adopt: Callable[[Arrival], None],
    told: Callable[[bytes], None],
) -> None:
    """Call ``adopt`` for every connection that arrives, and ``told`` with what comes without one.

    That is empty when the gate is gone.
    """
    loop = asyncio.get_running_loop()

    def readable() -> None:
        try:
            data, fds, _, _ = socket.recv_fds(channel, 1 + _NAME_BYTES, 1)
        except BlockingIOError:
            return
        except OSError:
            data, fds = b"", []
        for fd in fds:
            adopt(Arrival(socket.socket(fileno=fd), data[1:].decode(), bool(data[0])))
        if not data:
            loop.remove_reader(channel.fileno())
        if not fds:
            told(data)

    loop.add_reader(channel.fileno(), readable)
