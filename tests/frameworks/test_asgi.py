"""Clients of ASGI applications, and browsers that leave (SPEC M4, finding U10)."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
import websockets
from fastapi import FastAPI
from fastapi.testclient import TestClient

import nexo
from nexo.errors import Conflict
from nexo.integrations.asgi import Nexo
from tests.frameworks import web
from tests.timing import eventually, wait_until

ROOT = Path(__file__).parents[2]
BROWSERS = 100


@contextmanager
def served(url: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """`tests/frameworks/web.py` under uvicorn, and its port."""
    command = [sys.executable, "-m", "uvicorn", "tests.frameworks.web:app"]
    env = {**os.environ, "NEXO_URL": url, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port, number = listener.getsockname()[1], listener.fileno()
        command += ["--log-level", "warning", "--fd", str(number)]
        server = subprocess.Popen(command, env=env, cwd=ROOT, pass_fds=[number])
    try:
        wait_until(lambda: answers(port), 60)
        yield server, port
    finally:
        if server.poll() is None:
            server.kill()
        server.wait(30)


def answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/hits").status_code == 200
    except httpx.TransportError:
        return False


async def subscriptions(client: nexo.AsyncClient) -> int:
    rows = await client.pubsub.subscriptions(limit=1_000)
    return sum(row.pattern.startswith("news/") for row in rows)


async def until_subscribed(client: nexo.AsyncClient, wanted: int) -> None:
    async def subscribed() -> bool:
        return await subscriptions(client) == wanted

    await eventually(subscribed)


async def test_100_websockets_on_a_quiet_topic_leave_nothing_behind(
    url: str, aclient: nexo.AsyncClient
) -> None:
    with served(url) as (server, port):
        async with AsyncExitStack() as browsers:
            sockets = [
                await browsers.enter_async_context(
                    websockets.connect(f"ws://127.0.0.1:{port}/news/{n}")
                )
                for n in range(BROWSERS)
            ]
            await until_subscribed(aclient, BROWSERS)
            await aclient.pubsub.publish("news/7", {"n": 7})
            assert await sockets[7].recv() == '{"n":7}'
            for leaving in sockets[::2]:  # some say goodbye, some are just gone
                leaving.transport.abort()
        await until_subscribed(aclient, 0)
        async with AsyncExitStack() as browsers:
            for n in range(BROWSERS):
                await browsers.enter_async_context(
                    websockets.connect(f"ws://127.0.0.1:{port}/news/{n}")
                )
            await until_subscribed(aclient, BROWSERS)
            assert await asyncio.to_thread(stops_within_s, server) < 30
        await until_subscribed(aclient, 0)


async def test_event_streams_end_with_their_browser_and_with_the_server(
    url: str, aclient: nexo.AsyncClient
) -> None:
    with served(url) as (server, port):
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as browser:
            async with browser.stream("GET", "/events/1") as response:
                lines = response.aiter_lines()
                assert await anext(lines) == ": ready"
                await aclient.pubsub.publish("news/1", ["two", "lines"])
                await anext(lines)
                assert await anext(lines) == 'data: ["two","lines"]'
            await until_subscribed(aclient, 0)
            async with browser.stream("GET", "/events/2") as response:
                await until_subscribed(aclient, 1)
                assert await asyncio.to_thread(stops_within_s, server) < 30
                assert await response.aread()
        await until_subscribed(aclient, 0)


def stops_within_s(server: subprocess.Popen[bytes]) -> float:
    began_s = time.monotonic()
    server.send_signal(signal.SIGTERM)
    server.wait(60)
    return time.monotonic() - began_s


def test_a_dependency_gives_the_applications_client(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEXO_URL", url)
    with TestClient(web.app) as browser:
        assert [browser.get("/hits").json() for _ in range(3)] == [1, 2, 3]
    with pytest.raises(Conflict, match="does not run"):
        web.broker(web.app)


def test_a_lifespan_of_ones_own_runs_inside(url: str) -> None:
    steps: list[Any] = []
    nexo_app = Nexo(url)

    @asynccontextmanager
    async def own(app: FastAPI) -> AsyncIterator[None]:
        await nexo_app(app).store.set("started", 1)
        yield
        steps.append(await nexo_app(app).store.get("started"))

    with TestClient(FastAPI(lifespan=nexo_app.around(own))):
        pass
    assert steps == [1]


def test_without_a_server_the_application_does_not_start() -> None:
    nexo_app = Nexo("nexo://127.0.0.1:1", while_down="fail")
    with pytest.raises(nexo.errors.ConnectionLost), TestClient(FastAPI(lifespan=nexo_app.lifespan)):
        pass


async def test_what_browsers_send_is_received(url: str, aclient: nexo.AsyncClient) -> None:
    with served(url) as (_, port):
        async with websockets.connect(f"ws://127.0.0.1:{port}/talk") as browser:
            await browser.send("hello")
            async with asyncio.timeout(20):
                assert await browser.recv() == '"you said hello"'
                await browser.send(b"\x01")
                assert await browser.recv() == b"\x01"
