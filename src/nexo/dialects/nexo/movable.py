"""What passes between two processes of a server when a client moves from one to the other."""

from __future__ import annotations

import asyncio
from typing import Protocol

import msgspec

from nexo.model import Broker


class ClientMove(msgspec.Struct, frozen=True):
    """What the other process is told; the client's socket comes with it."""

    token: str
    """Tells the session that represents the client there."""
    brokers: list[Broker]
    """Which are reached from where the client was; first the one that is there itself."""
    name: str
    address: str
    waiting: list[int]
    """The requests that are still to be answered from there."""


class Unwritten:
    """A session's transport until the client's socket is there: keeps what is to be sent."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self._is_closing = False

    def write(self, data: bytes) -> None:
        self.parts.append(bytes(data))

    def writelines(self, parts: list[bytes]) -> None:
        self.parts += map(bytes, parts)

    def get_write_buffer_size(self) -> int:
        return sum(map(len, self.parts))

    def get_extra_info(self, name: str, default: object = None) -> object:
        return default

    def can_write_eof(self) -> bool:
        return False

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        self._is_closing = True

    abort = close

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class Stand(Protocol):
    """A session that represents a client whose connection is elsewhere, and may come here."""

    def take_place(self, move: ClientMove) -> Unwritten:
        """The client's connection is on its way."""

    def arrive(self, transport: asyncio.Transport, waits: Unwritten) -> None:
        """It is here."""

    def connection_lost(self, exc: Exception | None) -> None:
        """It has ended on its way."""
