"""A TLS socket that one thread reads while others write.

OpenSSL's state must not be entered by two threads at once, so both take a lock, and
neither holds it while it waits for the network.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
from struct import unpack


class TlsSocket:
    """What `Wire` uses of a socket, over TLS."""

    def __init__(self, secured: ssl.SSLSocket) -> None:
        secured.settimeout(0)
        self._socket = secured
        self._lock = threading.Lock()
        self._timeout_ms: int | None = None

    def setsockopt(self, level: int, option: int, value: bytes) -> None:
        """Only the kernel's timeouts are set, which a non-blocking socket has to imitate."""
        if option == socket.SO_RCVTIMEO:
            seconds, micros = unpack("@ll", value)
            self._timeout_ms = max(1, seconds * 1000 + micros // 1000)

    def recv_into(self, buffer: memoryview) -> int:
        """Read what is there, or wait for it; `BlockingIOError` when the time is over."""
        while True:
            try:
                with self._lock:
                    return self._socket.recv_into(buffer)
            except ssl.SSLWantReadError:
                self._wait(select.POLLIN)
            except ssl.SSLEOFError:
                return 0

    def sendall(self, data: bytes) -> None:
        """Write everything."""
        rest = memoryview(data)
        while rest:
            try:
                with self._lock:
                    rest = rest[self._socket.send(rest) :]
            except ssl.SSLWantWriteError:
                self._wait(select.POLLOUT)

    def _wait(self, event: int) -> None:
        poller = select.poll()
        poller.register(self._socket.fileno(), event)
        if not poller.poll(self._timeout_ms):
            raise BlockingIOError("timed out")

    def peek(self) -> bytes:
        """A byte of the encrypted stream that is already there; empty at its end."""
        raw = socket.socket(fileno=self._socket.fileno())
        try:
            return raw.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        finally:
            raw.detach()

    def shut(self) -> None:
        """End both directions."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Give the socket back."""
        self._socket.close()
