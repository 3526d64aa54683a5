"""What only the async link promises: order in the pipeline and safe cancellation."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from nexo.client._async.link.link import Link
from nexo.client._async.pubsub.pubsub import PubSub
from nexo.client.address import parse_url
from nexo.client.replies import Reply
from nexo.errors import ConnectionLost, RequestTimeout
from nexo.model import Broker
from nexo.protocol.frames import FrameKind, Status, frame
from nexo.protocol.ops import Op
from tests.contract.scripted_server import HOLD_OP, SIZED_OP, ScriptedServer
from tests.timing import eventually


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as server:
        yield server


@pytest.fixture
async def link(server: ScriptedServer) -> AsyncIterator[Link]:
    link = Link(parse_url(server.url), Broker.STORE)
    yield link
    await link.close()


async def held(server: ScriptedServer, count: int = 1) -> None:
    await asyncio.to_thread(server.wait_for, lambda: len(server.held) >= count)


async def test_twenty_thousand_requests_in_flight_are_answered_in_order(link: Link) -> None:
    """SPEC A3."""
    order: list[int] = []

    async def one(number: int) -> None:
        assert await link.call(Op.ECHO, number.to_bytes(4, "big")) == number.to_bytes(4, "big")
        order.append(number)

    await asyncio.gather(*map(one, range(20_000)))
    assert order == list(range(20_000))


async def test_requests_reach_the_server_in_the_order_they_were_made(
    server: ScriptedServer, link: Link
) -> None:
    """SPEC A3, also for those made before there was a connection."""
    calls = [link.call(HOLD_OP, bytes((number,))) for number in range(100)]
    await held(server, 50)
    calls += [link.call(HOLD_OP, bytes((number,))) for number in range(100, 200)]
    await held(server, 200)
    assert [payload[0] for _, _, payload in server.held] == list(range(200))
    for call in calls:
        call.cancel()


async def test_a_cancelled_call_never_gets_another_calls_reply(
    server: ScriptedServer, link: Link
) -> None:
    """SPEC A6."""
    calls = [link.call(HOLD_OP, bytes((number,))) for number in range(100)]
    await held(server, 100)
    for call in calls[::2]:
        call.cancel()
    for number in range(100):
        await asyncio.to_thread(server.answer, bytes((number,)))
    assert await asyncio.gather(*calls[1::2]) == [bytes((n,)) for n in range(1, 100, 2)]
    assert await link.call(Op.ECHO, b"mine") == b"mine"


async def test_ids_are_not_reused_while_a_request_is_outstanding(
    server: ScriptedServer, link: Link
) -> None:
    """SPEC A6, at the wrap of the 32-bit id."""
    first = link.call(HOLD_OP, b"first")
    await held(server)
    assert link._wire is not None
    link._wire._next_id = 0xFFFFFFFF
    assert await link.call(Op.ECHO, b"last id") == b"last id"
    assert await link.call(Op.ECHO, b"after the wrap") == b"after the wrap"
    await asyncio.to_thread(server.answer, b"for the first")
    assert await first == b"for the first"


async def test_a_request_keeps_its_id_after_its_timeout(server: ScriptedServer, link: Link) -> None:
    """SPEC A6: the late reply must not find a new request under its id."""
    await link.ready()
    with pytest.raises(RequestTimeout):
        await link.call(HOLD_OP, timeout_s=0.02)
    assert link._wire is not None
    link._wire._next_id = 1
    second = link.call(HOLD_OP)
    await held(server, 2)
    await asyncio.to_thread(server.answer, b"late")
    await asyncio.to_thread(server.answer, b"for the second")
    assert await second == b"for the second"


async def test_cancelling_a_poll_ends_it_on_the_server(server: ScriptedServer, link: Link) -> None:
    waiting = asyncio.create_task(link.poll(HOLD_OP).reply())
    await held(server)
    waiting.cancel()
    await asyncio.to_thread(server.wait_for, lambda: server.cancelled)
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_what_a_cancelled_poll_still_received_can_be_handed_back(
    server: ScriptedServer, link: Link
) -> None:
    late: asyncio.Queue[Reply] = asyncio.Queue()
    waiting = asyncio.create_task(link.poll(HOLD_OP, on_late=late.put_nowait).reply())
    await held(server)
    peer, request_id, _ = server.held.popleft()
    waiting.cancel()
    await asyncio.to_thread(server.wait_for, lambda: server.cancelled)
    reply = frame(FrameKind.RESPONSE, Status.DATA, request_id, b"a job")
    await asyncio.to_thread(server.write, reply, peer)
    assert await asyncio.wait_for(late.get(), 5) == b"a job"


async def test_a_poll_made_while_down_can_be_cancelled(server: ScriptedServer, link: Link) -> None:
    server.stop()
    poll = link.poll(HOLD_OP)
    waiting = asyncio.create_task(poll.reply())
    await asyncio.sleep(0)
    poll.cancel()
    assert await waiting == b""
    server.start()
    await link.ready()
    assert not server.held


async def test_a_cancelled_request_that_waited_for_the_connection_is_never_sent(
    server: ScriptedServer, link: Link
) -> None:
    server.stop()
    link.call(HOLD_OP).cancel()
    server.start()
    assert await link.call(Op.ECHO, b"up") == b"up"
    assert not server.held


async def test_hooks_finish_before_requests_that_waited(server: ScriptedServer, link: Link) -> None:
    order: list[str] = []

    async def resubscribe() -> None:
        order.append((bytes(await link.call(Op.ECHO, b"hook") or b"")).decode())

    async def ask() -> None:
        order.append((bytes(await link.call(Op.ECHO, b"request") or b"")).decode())

    link.on_reconnect(resubscribe)
    lost = link.call(HOLD_OP)
    await held(server)
    server.stop()
    with pytest.raises(ConnectionLost):
        await lost
    asking = asyncio.create_task(ask())
    await asyncio.sleep(0)
    server.start()
    await asking
    assert order == ["hook", "request"]


async def test_requests_made_while_hooks_run_come_after_those_that_waited(
    server: ScriptedServer, link: Link
) -> None:
    """SPEC A3: in the order they were made."""
    order: list[Reply] = []

    async def resubscribe() -> None:
        await link.call(HOLD_OP)

    async def ask(what: bytes) -> None:
        order.append(await link.call(Op.ECHO, what))

    link.on_reconnect(resubscribe)
    lost = link.call(HOLD_OP)
    await held(server)
    server.stop()
    with pytest.raises(ConnectionLost):
        await lost
    server.held.clear()
    first = asyncio.create_task(ask(b"first"))
    await asyncio.sleep(0)
    server.start()
    await held(server)
    second = asyncio.create_task(ask(b"second"))
    assert await link.ready(0.05) is False
    await asyncio.to_thread(server.answer)
    await asyncio.gather(first, second)
    assert order == [b"first", b"second"]


async def test_closing_fails_what_is_in_flight_and_what_comes_after(
    server: ScriptedServer, link: Link
) -> None:
    call = link.call(HOLD_OP)
    await held(server)
    await link.close()
    with pytest.raises(ConnectionLost):
        await call
    with pytest.raises(ConnectionLost, match="closed"):
        await link.call(Op.ECHO, b"")


async def test_closing_fails_what_waits_for_a_connection(
    server: ScriptedServer, link: Link
) -> None:
    server.stop()
    call = link.call(Op.ECHO, b"")
    await link.close()
    with pytest.raises(ConnectionLost, match="closed"):
        await call


async def test_large_and_small_requests_mix_without_loss(link: Link) -> None:
    payloads = [bytes([n % 256]) * (n * 7919 % 200_000) for n in range(60)]
    assert await asyncio.gather(*(link.call(Op.ECHO, payload) for payload in payloads)) == payloads
    sizes = [0, 10, 70_000, 5, 300_000, 1]
    replies = await asyncio.gather(*(link.call(SIZED_OP, n.to_bytes(4, "big")) for n in sizes))
    assert [len(reply or b"") for reply in replies] == sizes


@pytest.mark.parametrize("given_up", [False, True])
async def test_many_messages_that_were_cut_off_fail_once(
    server: ScriptedServer, link: Link, given_up: bool
) -> None:
    """SPEC A5: they leave as several requests, of which the caller knows nothing."""
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: complaints.append(what))
    assert await link.ready(10)
    many = asyncio.create_task(PubSub(link).publish_many("a", range(1_000)))
    await held(server, 4)
    if given_up:
        many.cancel()
    server.stop()
    await asyncio.wait({many})
    assert many.cancelled() if given_up else isinstance(many.exception(), ConnectionLost)
    await eventually(lambda: not link.up)
    del many
    gc.collect()
    assert not complaints
