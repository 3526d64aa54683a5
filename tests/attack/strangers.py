"""Strangers who never log in, many at once: each kind takes a connection and holds on to it.

They run in a process of their own, so that what they need is not counted as the server's.
``python -m tests.attack.strangers KIND COUNT HOST PORT SECONDS`` prints a JSON object: how many
connections were made, how many the server had ended by the end, and how long one stayed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass

from nexo.model import Broker
from nexo.protocol import hello
from nexo.protocol.frames import FrameKind, frame
from nexo.protocol.ops import Op

TEN_MIB = 10 * 1024 * 1024
_TLS_RECORD = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(40)
"""The beginning of a ClientHello of 512 bytes."""


@dataclass
class Outcome:
    """What became of one kind."""

    made: int = 0
    ended: int = 0
    """By the server."""
    longest_s: float = 0.0
    """How long one stayed at most."""


async def _silent(writer: asyncio.StreamWriter) -> None:
    pass


async def _announcing(writer: asyncio.StreamWriter) -> None:
    """The head of a request whose payload never comes."""
    writer.write(struct.pack(">BBII", FrameKind.REQUEST, Op.HELLO, 1, TEN_MIB))


async def _half_tls(writer: asyncio.StreamWriter) -> None:
    writer.write(_TLS_RECORD)


async def _half_headers(writer: asyncio.StreamWriter) -> None:
    writer.write(b"POST /api/v1/login HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Nexo: 1\r\nX-")


async def _slow_body(writer: asyncio.StreamWriter) -> None:
    writer.write(
        b"POST /api/v1/login HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Nexo: 1\r\n"
        b"Content-Type: application/json\r\nContent-Length: 10000000\r\n\r\n"
    )
    while True:
        writer.write(b" " * 4096)
        await writer.drain()
        await asyncio.sleep(0.5)


def _guesses(count: int) -> bytes:
    found: list[bytes] = []
    for number in range(count):
        asked = hello.Hello(client="guess", user="root", password=f"guess-{number}")
        payload = hello.encode_hello(Broker.STORE, asked)
        found.append(frame(FrameKind.REQUEST, Op.HELLO, number, payload))
    return b"".join(found)


async def _guessing(writer: asyncio.StreamWriter) -> None:
    """Wrong passwords as fast as the server reads them, without waiting for answers."""
    while True:
        writer.write(GUESSES)
        await writer.drain()


GUESSES = _guesses(4_000)
"""More than a server reads at once."""

KINDS: dict[str, Callable[[asyncio.StreamWriter], Awaitable[None]]] = {
    "silent": _silent,
    "announcing": _announcing,
    "half-tls": _half_tls,
    "half-headers": _half_headers,
    "slow-body": _slow_body,
    "guessing": _guessing,
}
HTTP = {"half-headers", "slow-body"}
"""Those that go to the HTTP port."""


def _address(kind: str) -> str:
    """Each kind comes from an address of its own: one alone may take so many places."""
    return f"127.0.0.{2 + list(KINDS).index(kind)}"


async def _one(kind: str, host: str, port: int, outcome: Outcome) -> None:
    try:
        reader, writer = await asyncio.open_connection(host, port, local_addr=(_address(kind), 0))
    except OSError:
        outcome.ended += 1  # turned away at once
        return
    outcome.made += 1
    made_s = time.monotonic()
    acting = asyncio.ensure_future(KINDS[kind](writer))
    try:
        with contextlib.suppress(ConnectionError):
            while await reader.read(65536):
                pass
        outcome.ended += 1
        outcome.longest_s = max(outcome.longest_s, time.monotonic() - made_s)
    finally:
        acting.cancel()
        with contextlib.suppress(asyncio.CancelledError, ConnectionError):
            await acting
        writer.close()


async def attack(kind: str, count: int, host: str, port: int, seconds: float) -> Outcome:
    """Come all at once; stay until ended or for so long."""
    outcome = Outcome()
    tasks = [asyncio.ensure_future(_one(kind, host, port, outcome)) for _ in range(count)]
    await asyncio.wait(tasks, timeout=seconds)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return outcome


def main(arguments: list[str]) -> None:
    """Entry point."""
    kind, count, host, port, seconds = arguments
    outcome = asyncio.run(attack(kind, int(count), host, int(port), float(seconds)))
    sys.stdout.write(json.dumps(asdict(outcome)))


if __name__ == "__main__":
    main(sys.argv[1:])
