"""One connection of a Kafka client: frames in, requests, answers out in the same order."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from struct import Struct
from typing import Any

from nexo import limits
from nexo.dialects.dialect import Origin
from nexo.dialects.kafka.cluster import refuse_version
from nexo.dialects.kafka.format.apis import APIS, UNKNOWN, Key
from nexo.dialects.kafka.format.wire import I16, Input
from nexo.dialects.kafka.handlers import HANDLERS
from nexo.dialects.kafka.request import LoginProgress, Request
from nexo.dialects.kafka.speaker import KafkaShared
from nexo.dialects.session import BaseSession
from nexo.errors import NexoError, ProtocolError

log = logging.getLogger("nexo.kafka")

_SIZE = Struct(">i")
_HEAD = Struct(">hhi")
_BEFORE_LOGIN = frozenset({Key.API_VERSIONS, Key.SASL_HANDSHAKE, Key.SASL_AUTHENTICATE})
_ROOM = 64 * 1024
"""A request has this much room beside the largest payload."""


class KafkaSession(BaseSession, asyncio.Protocol):
    """Implements `nexo.dialects.dialect.Session`."""

    dialect = "kafka"

    def __init__(self, shared: KafkaShared, origin: Origin) -> None:
        super().__init__(shared.host, origin)
        self.shared = shared
        self.login = LoginProgress()
        self._arrived = bytearray()
        self._frame_since_ms = 0
        """When the part of a request that is here began to arrive; 0 if there is none."""
        self._waiting: deque[Request] = deque()
        self._count = 0
        self._held = False
        """Too many requests wait: no more are taken."""
        self._heard_ms = self.opened_ms
        self._bytes_in = self._bytes_out = 0

    @property
    def introduced(self) -> bool:
        """Has sent a request, or logged in where authentication is on."""
        return self.identity is not None if self._host.guard else self._count > 0

    @property
    def address_told(self) -> tuple[str, int]:
        """Where the client shall connect to: what is advertised, or where it did connect."""
        told = self._host.settings.kafka_advertised
        if told:
            host, _, port = told.rpartition(":")
            return host.strip("[]"), int(port)
        found = self._transport.get_extra_info("sockname")
        return (found[0], found[1]) if isinstance(found, tuple) else ("localhost", 0)

    # -- bytes in ----------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Take what has arrived."""
        if self._closing:
            return
        self._heard_ms = self._host.clock.now_ms()
        self._bytes_in += len(data)
        self._arrived += data
        self._cut()

    def _cut(self) -> None:
        """Run every whole request that is here."""
        at = 0
        try:
            while not self._closing and len(self._waiting) < limits.KAFKA_IN_FLIGHT:
                size = self._announced(at)
                if size is None or len(self._arrived) - at - 4 < size:
                    break
                frame = bytes(memoryview(self._arrived)[at + 4 : at + 4 + size])
                at += 4 + size
                self._run(memoryview(frame))
        except ProtocolError as error:
            self.kick(error.message)
        except Exception:
            log.exception("a request of %s failed", self.name)
            self.kick("its request failed")
        del self._arrived[:at]
        if at or not self._arrived:
            self._frame_since_ms = self._host.clock.now_ms() if self._arrived else 0
        elif not self._frame_since_ms:
            self._frame_since_ms = self._host.clock.now_ms()
        if len(self._waiting) >= limits.KAFKA_IN_FLIGHT and not self._closing:
            self._held = True
            self._transport.pause_reading()

    def _announced(self, at: int) -> int | None:
        if len(self._arrived) - at < 4:
            return None
        size: int = _SIZE.unpack_from(self._arrived, at)[0]
        limit = self._host.settings.max_payload_bytes + _ROOM
        if self._host.guard is not None and self.identity is None:
            limit = limits.BEFORE_LOGIN_BYTES
        if not _HEAD.size <= size <= limit:
            raise ProtocolError(f"a request of {size} bytes: must be at most {limit}")
        return size

    def _run(self, frame: memoryview) -> None:
        key, version, correlation = _HEAD.unpack_from(frame)
        self._count += 1
        data = Input(frame[_HEAD.size :])
        client_id = _client_id(data)
        api = APIS.get(key, UNKNOWN)
        if not api.low <= version <= api.high:
            request = Request(self, self._count, api, version, correlation, client_id, {})
            self._begin(request, refuse_version)
            return
        if api.is_flexible(version):
            data.skip_tags()
        body = api.request.read(data, version)
        if client_id and self._count == 1:
            self.name = client_id[: limits.CLIENT_NAME_CHARS]
        request = Request(self, self._count, api, version, correlation, client_id, body)
        self._begin(request, HANDLERS[api.key])

    def _begin(self, request: Request, handle: Callable[[Request], None]) -> None:
        self._waiting.append(request)
        if self.shared.stopping:
            self.finish()
            return
        if self._host.guard and self.identity is None and request.api.key not in _BEFORE_LOGIN:
            raise ProtocolError("a Kafka client has to log in first: use SASL")
        handle(request)

    # -- bytes out -----------------------------------------------------------------------

    def answered(self) -> None:
        """One of the waiting requests has its answer: send what is next in line."""
        if self.closed:
            return
        parts: list[Any] = []
        while self._waiting and self._waiting[0].parts is not None:
            parts += self._waiting.popleft().parts or ()
        if parts:
            self._bytes_out += sum(map(len, parts))
            self._transport.writelines(parts)
        if self._held and len(self._waiting) < limits.KAFKA_IN_FLIGHT:
            self._held = False
            self._host.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        """Read again after some of too many requests were answered."""
        if self._closing:
            return
        if not self.congested:
            self._transport.resume_reading()
        self._cut()

    def status(self) -> dict[str, Any]:
        """What the dashboard shows of the connection."""
        return super().status() | {
            "heard_ms": self._heard_ms,
            "requests": self._count,
            "bytes_in": self._bytes_in,
            "bytes_out": self._bytes_out,
            "in_flight": len(self._waiting),
        }

    # -- ends --------------------------------------------------------------------------

    def check(self, now_ms: int) -> None:
        """Kick a client whose request does not arrive."""
        size = self._announced_size()
        allowed_ms = 1000 * (limits.LOGIN_S + size / limits.FRAME_BYTES_PER_S)
        late = self._frame_since_ms and now_ms - self._frame_since_ms > allowed_ms
        if late and len(self._waiting) < limits.KAFKA_IN_FLIGHT:
            self.kick("its request does not arrive")

    def _announced_size(self) -> int:
        return _SIZE.unpack_from(self._arrived)[0] if len(self._arrived) >= 4 else 0

    def flush(self) -> None:
        """Answers are written as soon as they are there."""

    def refuse(self, error: NexoError) -> None:
        """Kafka has no message for it."""
        log.info("refusing %s: %s", self.name, error.message)
        self.finish()


def _client_id(data: Input) -> str:
    size = data.number(I16)
    if size < 0:
        return ""
    return bytes(data.take(size)).decode(errors="replace")
