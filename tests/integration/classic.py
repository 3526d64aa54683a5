"""A client written from the opcode table of the protocol alone, without any of Nexo's code.

It stands for the existing TypeScript client: no HELLO, every broker on one connection.
"""

from __future__ import annotations

import json
import socket
import struct
from collections import deque
from typing import Any, Self

OK, ERR, NULL, DATA = 0, 1, 2, 3


class Refused(Exception):
    """The server answered ERR."""


def text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack(">I", len(raw)) + raw


def value(obj: Any) -> bytes:
    if isinstance(obj, bytes):
        return b"\x00" + obj
    if isinstance(obj, str):
        return b"\x01" + obj.encode()
    return b"\x02" + json.dumps(obj).encode()


def unvalue(raw: bytes) -> Any:
    match raw[0]:
        case 0:
            return raw[1:]
        case 1:
            return raw[1:].decode()
    return json.loads(raw[1:])


class Classic:
    """One connection; requests may be pipelined with `send` and `reply`."""

    def __init__(self, host: str, port: int) -> None:
        self.sock = socket.create_connection((host, port), timeout=10)
        self._file = self.sock.makefile("rb")
        self._id = 0
        self._replies: dict[int, tuple[int, bytes]] = {}
        self.arrived: list[int] = []
        self.pushes: deque[tuple[str, Any]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.close()
        self.sock.close()

    def send(self, op: int, payload: bytes = b"") -> int:
        self._id += 1
        self.sock.sendall(struct.pack(">BBII", 1, op, self._id, len(payload)) + payload)
        return self._id

    def reply(self, request_id: int) -> tuple[int, bytes]:
        while request_id not in self._replies:
            self._read()
        return self._replies.pop(request_id)

    def call(self, op: int, payload: bytes = b"") -> bytes | None:
        status, data = self.reply(self.send(op, payload))
        if status == ERR:
            (size,) = struct.unpack_from(">I", data)
            raise Refused(data[4 : 4 + size].decode())
        return None if status == NULL else data

    def push(self) -> tuple[str, Any]:
        """The next pub/sub message: topic and value."""
        while not self.pushes:
            self._read()
        return self.pushes.popleft()

    def _read(self) -> None:
        head = self._file.read(10)
        if len(head) < 10:
            raise ConnectionError("closed by the server")
        kind, meta, request_id, length = struct.unpack(">BBII", head)
        payload = self._file.read(length)
        if kind == 3:
            (size,) = struct.unpack_from(">I", payload)
            self.pushes.append((payload[4 : 4 + size].decode(), unvalue(payload[4 + size :])))
        else:
            assert kind == 2
            self.arrived.append(request_id)
            self._replies[request_id] = (meta, payload)

    # -- Store ------------------------------------------------------------------

    def map_set(self, key: str, obj: Any, **options: Any) -> None:
        assert self.call(0x02, text(key) + text(json.dumps(options)) + value(obj)) == b""

    def map_get(self, key: str) -> Any:
        raw = self.call(0x03, text(key))
        return None if raw is None else unvalue(raw)

    def map_del(self, key: str) -> None:
        assert self.call(0x04, text(key)) == b""

    # -- Pub/Sub ----------------------------------------------------------------

    def pub(self, topic: str, obj: Any, **options: Any) -> None:
        assert self.call(0x21, text(topic) + text(json.dumps(options)) + value(obj)) == b""

    def sub(self, pattern: str) -> None:
        assert self.call(0x22, text(pattern)) == b""

    def unsub(self, pattern: str) -> None:
        assert self.call(0x23, text(pattern)) == b""

    # -- Queue ------------------------------------------------------------------

    def q_create(self, name: str, **options: Any) -> None:
        assert self.call(0x10, text(name) + text(json.dumps(options))) == b""

    def q_push(self, name: str, obj: Any, **options: Any) -> None:
        assert self.call(0x11, text(name) + text(json.dumps(options)) + value(obj)) == b""

    def q_consume(self, name: str, **options: Any) -> list[tuple[bytes, Any]]:
        raw = self.call(0x12, text(name) + text(json.dumps(options))) or b""
        (count,) = struct.unpack_from(">I", raw)
        at, jobs = 4, []
        for _ in range(count):
            job_id, (size,) = raw[at : at + 16], struct.unpack_from(">I", raw, at + 16)
            jobs.append((job_id, unvalue(raw[at + 20 : at + 20 + size])))
            at += 20 + size
        return jobs

    def q_ack(self, name: str, job_id: bytes) -> None:
        assert self.call(0x13, job_id + text(name)) == b""

    def q_nack(self, name: str, job_id: bytes, reason: str) -> None:
        assert self.call(0x1A, job_id + text(name) + text(reason)) == b""

    def q_peek_dlq(self, name: str, limit: int = 10, offset: int = 0) -> tuple[int, list[Any]]:
        """How many dead letters there are, and of some: id, value, attempts, error."""
        raw = self.call(0x16, text(name) + struct.pack(">II", limit, offset)) or b""
        total, count = struct.unpack_from(">II", raw)
        at, found = 8, []
        for _ in range(count):
            job_id, (size,) = raw[at : at + 16], struct.unpack_from(">I", raw, at + 16)
            obj = unvalue(raw[at + 20 : at + 20 + size])
            at += 20 + size
            attempts, length = struct.unpack_from(">II", raw, at)
            found.append((job_id, obj, attempts, raw[at + 8 : at + 8 + length].decode()))
            at += 8 + length
        assert at == len(raw)
        return total, found

    # -- Stream -----------------------------------------------------------------

    def s_create(self, name: str, **options: Any) -> None:
        assert self.call(0x30, text(name) + text(json.dumps(options))) == b""

    def s_pub(self, name: str, obj: Any) -> int:
        raw = self.call(0x31, text(name) + value(obj))
        assert raw is not None
        return int.from_bytes(raw, "big")

    def s_join(self, group: str, name: str) -> tuple[int, int, str]:
        raw = self.call(0x33, text(group) + text(name))
        assert raw is not None
        floor, generation, size = struct.unpack_from(">QQI", raw)
        return floor, generation, raw[20 : 20 + size].decode()

    def s_fetch(
        self, name: str, group: str, consumer: str, generation: int, limit: int, wait_ms: int
    ) -> list[tuple[int, Any]]:
        names = text(name) + text(group) + text(consumer)
        raw = self.call(0x32, names + struct.pack(">QII", generation, limit, wait_ms)) or b""
        (count,) = struct.unpack_from(">I", raw)
        at, records = 4, []
        for _ in range(count):
            sequence, _timestamp, size = struct.unpack_from(">QQI", raw, at)
            records.append((sequence, unvalue(raw[at + 20 : at + 20 + size])))
            at += 20 + size
        return records

    def s_ack(self, name: str, group: str, consumer: str, generation: int, seq: int) -> None:
        names = text(name) + text(group) + text(consumer)
        assert self.call(0x34, names + struct.pack(">QQ", generation, seq)) == b""
