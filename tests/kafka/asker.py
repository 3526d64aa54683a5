"""A client by our own schemas, over TCP: asks anything in any version, of any server."""

from __future__ import annotations

import socket
import struct
from itertools import count

from nexo.dialects.kafka.format.apis import APIS, ApiKey
from nexo.dialects.kafka.format.codec import KafkaMessage
from nexo.dialects.kafka.format.wire import Input


class Asker:
    """One connection."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._sock = socket.create_connection((host, int(port)), timeout=30)
        self._in = self._sock.makefile("rb")
        self._numbers = count(1)

    def close(self) -> None:
        self._in.close()
        self._sock.close()

    def ask(self, key: ApiKey, version: int, message: KafkaMessage) -> KafkaMessage:
        """The answer to one request; ``EOFError`` if the server closes instead."""
        api, number = APIS[key], next(self._numbers)
        out = bytearray(struct.pack(">hhih", key, version, number, -1))
        if api.is_flexible(version):
            out.append(0)
        api.request.write(out, message, version)
        self._sock.sendall(struct.pack(">i", len(out)) + out)
        size = self._in.read(4)
        if len(size) < 4:
            raise EOFError("the server closed the connection")
        data = memoryview(self._in.read(int.from_bytes(size, "big")))
        skipped = 5 if api.is_flexible(version) and key is not ApiKey.API_VERSIONS else 4
        return api.response.read(Input(data[skipped:]), version)
