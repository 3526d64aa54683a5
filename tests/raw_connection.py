"""A connection that says exactly what it is told to, frame by frame."""

from __future__ import annotations

import select
import socket
import struct

from nexo.protocol.frames import HEADER, FrameKind, frame

WAIT_S = 30.0


class RawConnection:
    """Requests are numbered from 1; replies are read when asked for."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
        self.sent = self.got = self.asked = 0
        """Bytes written, bytes read, and requests."""

    def burst(self, *requests: tuple[int, bytes]) -> None:
        """Send all requests in one go: the server gets them in one read."""
        first = self.asked + 1
        data = b"".join(
            frame(FrameKind.REQUEST, op, n, payload)
            for n, (op, payload) in enumerate(requests, first)
        )
        self.asked += len(requests)
        self.sent += len(data)
        self._socket.sendall(data)

    def reply(self) -> bytes:
        """The payload of whatever frame comes next."""
        return self._take(HEADER.unpack(self._take(HEADER.size))[3])

    def frame(self) -> tuple[int, int, int, bytes]:
        """Type, meta byte, id and payload of whatever frame comes next."""
        kind, meta, request_id, size = HEADER.unpack(self._take(HEADER.size))
        return kind, meta, request_id, self._take(size)

    def ask(self, op: int, payload: bytes = b"") -> tuple[int, bytes]:
        """Status and payload of the reply to one request."""
        self.burst((op, payload))
        while True:
            kind, status, request_id, size = HEADER.unpack(self._take(HEADER.size))
            payload = self._take(size)
            if kind == FrameKind.RESPONSE and request_id == self.asked:
                return status, payload

    def has_reply(self) -> bool:
        """Whether anything has arrived that was not read."""
        return bool(select.select([self._socket], [], [], 0)[0])

    def _take(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            chunk = self._socket.recv(size - len(data))
            if not chunk:
                raise ConnectionResetError
            data += chunk
        self.got += size
        return data

    def close(self) -> None:
        """FIN."""
        self._socket.close()

    def reset(self) -> None:
        """RST."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()
