"""A second protocol beside ours: on the same port, on one of its own, with permissions."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import nexo
from nexo import limits
from nexo.access.grants import parse_grant
from nexo.access.users import UsersFile
from nexo.config import load
from nexo.dialects.dialect import Claim
from nexo.model import Broker
from nexo.server.dialects import DIALECTS
from nexo.server.embedded import EmbeddedServer
from nexo.server.entrance.gate import route
from tests.integration import certificates
from tests.timing import eventually
from tests.toy_dialect import ToyDialect

PASSWORD = "correct-horse"
ROOT = Path(__file__).parents[2]
TOY = ToyDialect()
BOTH = (*DIALECTS, TOY)


@contextlib.asynccontextmanager
async def serving(folder: Path, **settings: object) -> AsyncIterator[tuple[EmbeddedServer, int]]:
    """A server of both dialects, and a port where only the toy is spoken."""
    flags = {"port": 0, "data_dir": folder / "nexo", "dashboard": False, **settings}
    server = EmbeddedServer(load(flags=flags), dialects=BOTH)
    toys = server.listen(TOY, tls="tls_cert" in settings)
    await server.open()
    try:
        yield server, toys
    finally:
        await server.close()


async def say(port: int, *lines: str, tls: ssl.SSLContext | None = None) -> list[str]:
    """The answers to lines that are sent in one go."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
    writer.write("".join(f"{line}\n" for line in lines).encode())
    answers = [(await reader.readline()).decode().rstrip("\n") for _ in lines]
    writer.close()
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        await writer.wait_closed()
    return answers


def url_of(server: EmbeddedServer) -> str:
    return f"nexo://127.0.0.1:{server.port}"


def test_the_page_shows_the_toy_as_it_is() -> None:
    shown = (ROOT / "docs" / "design" / "adding-a-dialect.md").read_text(encoding="utf-8")
    toy = (ROOT / "tests" / "toy_dialect.py").read_text(encoding="utf-8")
    assert f"```python\n{toy}```" in shown


def test_first_bytes_tell_the_dialects_apart() -> None:
    assert route(b"get k\n", BOTH) == (TOY, Broker.STORE)
    assert route(b"push q v\n", BOTH) == (TOY, Broker.QUEUE)
    assert route(b"pu", BOTH) is None
    assert route(b"\x01\x03", BOTH) == (DIALECTS[0], Broker.STORE)
    assert route(b"GET / HTTP/1.1", BOTH) == (DIALECTS[0], Broker.STORE)
    assert DIALECTS[0].claim(b"get k") is Claim.NO


async def test_both_dialects_share_a_port_and_the_data(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, _), nexo.AsyncClient(url_of(server)) as client:
        await client.queue("jobs").create()
        assert await say(server.port, "set k v", "get k", "get other") == [
            "ok",
            'value "v"',
            "ok",
        ]
        assert await client.store.get("k") == "v"
        async with await client.pubsub.subscribe("news") as news:
            assert await say(server.port, "publish news hello") == ["ok"]
            assert (await news.get()).value == "hello"
        assert await say(server.port, "push jobs work") == ["ok"]
        jobs = await client.queue("jobs").pop()
        assert [job.value for job in jobs] == ["work"]
        await jobs.ack()
        waiting = asyncio.create_task(say(server.port, "pop jobs"))
        await client.queue("jobs").push("later")
        assert await waiting == ['value "later"']
        info = await client.queue("jobs").info()
        assert (info.waiting, info.working, info.finished_total) == (0, 0, 2)


async def test_answers_come_in_the_order_of_requests(tmp_path: Path) -> None:
    """A pop that waits holds back the answers after it, though they are there at once."""
    async with serving(tmp_path) as (server, toys), nexo.AsyncClient(url_of(server)) as client:
        await client.queue("jobs").create()
        asked = asyncio.create_task(say(toys, "pop jobs", "set k v", "get k"))
        await eventually(lambda: client.store.get("k"))
        assert not asked.done()
        await client.queue("jobs").push("later")
        assert await asked == ['value "later"', "ok", 'value "v"']


async def test_a_line_that_does_not_end_or_is_no_text_ends_the_connection(tmp_path: Path) -> None:
    users = UsersFile(tmp_path / "users.json")
    users.add("ana", PASSWORD, [])
    async with serving(tmp_path, auth=True, users_file=users.path) as (_, toys):
        for sent in (b"get " + b"k" * limits.BEFORE_LOGIN_BYTES, b"get \xff\n"):
            reader, writer = await asyncio.open_connection("127.0.0.1", toys)
            writer.write(sent)
            assert (await reader.read()).startswith(b"error PROTOCOL ")
            writer.close()


async def test_errors_come_in_the_dialects_own_words(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, toys):
        missing, unknown, welcome = await say(toys, "push nowhere v", "dance", "login ana secret")
        assert missing.startswith("error NOT_FOUND ")
        assert unknown.startswith("error INVALID ")
        assert welcome == "ok"  # authentication is off


async def test_permissions_hold_whatever_is_spoken(tmp_path: Path) -> None:
    users = UsersFile(tmp_path / "users.json")
    users.add("ana", PASSWORD, [parse_grant("store:*:mine.*")])
    async with serving(tmp_path, auth=True, users_file=users.path) as (server, toys):
        assert (await say(toys, "get mine.k"))[0].startswith("error UNAUTHENTICATED ")
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        asked = {
            f"login ana {PASSWORD}": "ok",
            "set mine.k v": "ok",
            "get mine.k": 'value "v"',
            "get yours": "error FORBIDDEN ",
            "push jobs v": "error FORBIDDEN ",
            "publish news v": "error FORBIDDEN ",
        }
        for line, answer in asked.items():
            writer.write(f"{line}\n".encode())
            assert (await reader.readline()).decode().startswith(answer)
        writer.close()


async def test_requests_behind_a_login_wait_for_it(tmp_path: Path) -> None:
    """SPEC A10: so a client that guesses has one guess under way, however many it sends."""
    users = UsersFile(tmp_path / "nexo" / "users.json")
    users.add("ana", PASSWORD, [parse_grant("store:*:*")])
    async with serving(tmp_path, auth=True) as (server, _):
        lines = (f"login ana {PASSWORD}", "set k v", "get k")
        assert await say(server.port, *lines) == ["ok", "ok", 'value "v"']


async def test_a_listener_of_its_own_may_speak_tls(tmp_path: Path) -> None:
    """Clients of other protocols offer no ALPN name, so their port says what they speak."""
    certs = certificates.make(tmp_path)
    trusting = ssl.create_default_context(cafile=certs.ca)
    settings = {"tls_cert": certs.server, "tls_key": certs.server_key}
    async with serving(tmp_path, **settings) as (_, toys):
        assert await say(toys, "set k v", "get k", tls=trusting) == ["ok", 'value "v"']
        (refused,) = await say(toys, "get k")
        assert refused.startswith("error PROTOCOL ")
