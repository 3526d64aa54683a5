"""The HTTP port against clients that say nothing, or not enough (SPEC K4)."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from nexo import limits
from nexo.server.processes import http_server
from nexo.server.processes.http_server import HttpServer

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def read_all(scope: Scope, receive: Receive, send: Send) -> None:
    """An application that reads the whole body, then says so; of ``/refuse`` it reads nothing."""
    while scope["path"] != "/refuse" and (await receive()).get("more_body"):
        pass
    headers = [(b"content-length", b"2")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture
async def port(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[int]:
    monkeypatch.setattr(http_server, "SWEEP_S", 0.01)
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(read_all, lifespan="off", ws="none", log_config=None)
    server = HttpServer(config)
    task = asyncio.create_task(server.serve([listener]))
    yield listener.getsockname()[1]
    server.should_exit = True
    await task
    listener.close()


async def connect(port: int, text: bytes = b"") -> Stream:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(text)
    await writer.drain()
    return reader, writer


async def is_closed(stream: Stream) -> bool:
    with contextlib.suppress(ConnectionResetError):
        return await asyncio.wait_for(stream[0].read(), 10) == b""
    return True


async def trickle(writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"x")
        await asyncio.sleep(0.01)


async def get(port: int) -> bytes:
    reader, writer = await connect(port, b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    reply = await reader.read()
    writer.close()
    return reply


@pytest.mark.parametrize("text", [b"", b"GET / HTTP/1.1\r\nHost: x\r\nA: "])
async def test_headers_have_a_deadline(
    port: int, text: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HTTP_REQUEST_S", 0.02)
    stream = await connect(port, text)
    assert await is_closed(stream)
    stream[1].close()


async def test_bodies_have_a_deadline(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HTTP_REQUEST_S", 0.02)
    stream = await connect(port, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc")
    assert await is_closed(stream)
    stream[1].close()


async def test_a_reply_before_the_end_of_the_body_is_followed_by_the_end(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest of a body that was refused is not awaited."""
    monkeypatch.setattr(limits, "LONGEST_FAREWELL_S", 0.05)
    text = b"POST /refuse HTTP/1.1\r\nHost: x\r\nContent-Length: 10000000\r\n\r\nabc"
    reader, writer = stream = await connect(port, text)
    assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
    sending = asyncio.create_task(trickle(writer))
    assert await is_closed(stream)
    sending.cancel()
    writer.close()


async def test_a_body_that_arrives_steadily_may_take_longer(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HTTP_REQUEST_S", 0.05)
    monkeypatch.setattr(limits, "HTTP_BODY_BYTES_PER_S", 1)  # its head alone earns a minute
    reader, writer = await connect(port, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n")
    for _ in range(9):
        await asyncio.sleep(0.02)  # 0.18 s in all
        writer.write(b"x")
    assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
    writer.close()


@pytest.mark.parametrize("limit", ["HTTP_CONNECTIONS", "HTTP_CONNECTIONS_PER_ADDRESS"])
async def test_silent_connections_give_way_to_one_that_asks(
    port: int, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(limits, limit, 5)
    silent = [await connect(port) for _ in range(5)]
    assert (await get(port)).endswith(b"ok")
    assert await is_closed(silent[0])
    for _, writer in silent:
        writer.close()
