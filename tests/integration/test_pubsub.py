"""Pub/Sub over TCP, with the real server and both clients (SPEC C, A4, A5)."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

import nexo
from nexo.client._async.link.link import Link
from nexo.client._async.pubsub import subscription as pubsub_subscription
from nexo.client._async.pubsub.pubsub import PubSub
from nexo.client._sync.link.link import Link as SyncLink
from nexo.client._sync.pubsub.pubsub import PubSub as SyncPubSub
from nexo.client._sync.pubsub.subscription import SubscriptionInbox as SyncInbox
from nexo.client._sync.runtime import spawn
from nexo.client.address import parse_url
from nexo.client.pubsub_message import Message
from nexo.errors import (
    ConnectionLost,
    InvalidInput,
    InvalidName,
    InvalidOption,
    Overloaded,
    PayloadTooLarge,
    RequestTimeout,
)
from nexo.model import Broker
from nexo.protocol.frames import FrameKind, frame, pack_str
from nexo.protocol.messages import pack
from nexo.protocol.ops import Op
from nexo.protocol.pubsub import Listing
from nexo.protocol.values import decode_value
from nexo.testing import Server
from tests.timing import eventually, wait_until

Connect = Callable[[], PubSub]
WAIT_S = 30.0


@pytest.fixture
async def connect(nexo_server: Server) -> AsyncIterator[Connect]:
    links: list[Link] = []

    def make() -> PubSub:
        links.append(Link(parse_url(nexo_server.url), Broker.PUBSUB))
        return PubSub(links[-1])

    yield make
    for link in links:
        await link.close()


@pytest.fixture
def blocking(nexo_server: Server) -> Iterator[SyncPubSub]:
    link = SyncLink(parse_url(nexo_server.url), Broker.PUBSUB)
    yield SyncPubSub(link)
    link.close()


async def status(pubsub: PubSub) -> dict[str, Any]:
    reply = await pubsub._link.call(Op.STATUS, bytes((Broker.PUBSUB,)))
    found: dict[str, Any] = decode_value(reply or b"")
    return found


async def test_messages_arrive_with_topic_value_and_timestamp(connect: Connect) -> None:
    pubsub = connect()  # SPEC C2
    subscription = await pubsub.subscribe("edge/+/hb")
    assert await pubsub.publish("edge/42/hb", {"ts": 1}) == 1
    assert await pubsub.publish("edge/42/other", {"ts": 2}) == 0
    message = await subscription.get(WAIT_S)
    assert (message.topic, message.value, message.payload) == ("edge/42/hb", {"ts": 1}, b'{"ts":1}')
    assert abs(message.timestamp.timestamp() * 1000 - message.timestamp_ms) < 1
    assert not message.retained


@pytest.mark.parametrize("value", [b"raw\0", "text 🙂", {"a": [1, None]}, None, "", b"", 0])
async def test_values_come_back_as_they_were(connect: Connect, value: object) -> None:  # SPEC A4
    pubsub = connect()
    subscription = await pubsub.subscribe("t")
    pubsub.publish("t", value)
    assert (await subscription.get(WAIT_S)).value == value


async def test_a_typed_subscription_converts_values(connect: Connect) -> None:  # SPEC K1
    @dataclass
    class Beat:
        ts: int

    pubsub = connect()
    subscription = await pubsub.subscribe("t", type_=Beat)
    pubsub.publish("t", {"ts": 5})
    assert (await subscription.get(WAIT_S)).value == Beat(5)


async def test_messages_of_one_turn_keep_their_order_and_counts(connect: Connect) -> None:
    pubsub = connect()
    async with await pubsub.subscribe("n/#") as subscription:
        receipts = [pubsub.publish(f"n/{n % 3}", n) for n in range(5_000)]
        assert [await receipt for receipt in receipts] == [1] * 5_000
        assert [(await subscription.get(WAIT_S)).value for _ in range(5_000)] == list(range(5_000))
    assert await pubsub.publish("n/0", 1) == 0


async def test_what_was_published_before_comes_before(connect: Connect) -> None:
    """SPEC A3: a message that was not awaited yet is not overtaken by the next request."""
    pubsub = connect()
    pubsub.publish("a", 1, retain=True)
    assert [row.topic for row in await pubsub.retained()] == ["a"]
    before = pubsub.publish("a", 2)
    subscription = await pubsub.subscribe("a", retained=False)
    assert await pubsub.publish("a", 3) == 1
    assert await before == 0
    assert (await subscription.get(WAIT_S)).value == 3


async def test_many_messages_go_in_few_requests_and_keep_their_order(connect: Connect) -> None:
    pubsub = connect()
    subscription = await pubsub.subscribe("n")
    pubsub.publish("n", -1)
    assert await pubsub.publish_many("n", range(9_000)) == [1] * 9_000
    assert [(await subscription.get(WAIT_S)).value for _ in range(9_001)] == list(range(-1, 9_000))
    assert await pubsub.publish_many("n", []) == []
    await pubsub.publish_many("n", ["old", "last"], retain=True)
    assert (await (await connect().subscribe("n")).get(WAIT_S)).value == "last"


async def test_a_bad_publish_fails_alone(connect: Connect) -> None:  # SPEC C1
    pubsub = connect()
    good = pubsub.publish("a", 1)
    with pytest.raises(InvalidName):
        pubsub.publish("a/+", 1)
    with pytest.raises(InvalidOption):
        pubsub.publish("a", 1, ttl=5)
    assert await good == 0


@pytest.mark.parametrize(
    "publish",
    [
        lambda pubsub: pubsub.publish("a", 1, retain=True, ttl=1e18),
        lambda pubsub: pubsub.publish("a", 1, retain=True, ttl=float("nan")),
        lambda pubsub: pubsub.publish("a", 1, retain=True, ttl=0),
        lambda pubsub: pubsub.publish("a", 1, retain=True, ttl="5"),
        lambda pubsub: pubsub.publish("\udcff", 1),
        lambda pubsub: pubsub.publish(5, 1),
        lambda pubsub: pubsub.publish(["a"], 1),
        lambda pubsub: pubsub("a").publish(object()),
    ],
)
async def test_a_publish_that_cannot_travel_is_refused_at_the_call(
    connect: Connect, publish: Any
) -> None:
    """SPEC C1, A6: and the good ones of the same turn are not disturbed."""
    pubsub = connect()
    before = pubsub.publish("a", 1)
    with pytest.raises(InvalidInput):
        publish(pubsub)
    after = pubsub.publish("a", 2)
    async with asyncio.timeout(WAIT_S):
        assert [await before, await after] == [0, 0]


@pytest.mark.parametrize("known", [False, True])
async def test_a_message_that_is_too_large_fails_alone(connect: Connect, known: bool) -> None:
    """SPEC C2, E7."""
    pubsub = connect()
    if known:
        await pubsub.publish("a", 0)
    sent = [pubsub.publish("a", 1), pubsub.publish("a", bytes(11 << 20)), pubsub.publish("a", 2)]
    first, large, last = await asyncio.gather(*sent, return_exceptions=True)
    assert (first, last) == (0, 0)
    assert isinstance(large, PayloadTooLarge)


async def test_many_messages_of_which_one_is_bad_are_all_refused(connect: Connect) -> None:
    """SPEC C2: bad input changes nothing."""
    pubsub = connect()
    subscription = await pubsub.subscribe("a")
    for bad in ([bytes(300_000), object()], [bytes(300_000), bytes(11 << 20)], 5):
        with pytest.raises(InvalidInput):
            await pubsub.publish_many("a", bad)  # type: ignore[arg-type]
    await pubsub.publish("a", "first")
    assert (await subscription.get(WAIT_S)).value == "first"


@pytest.mark.parametrize(
    "subscribe",
    [
        lambda pubsub: pubsub.subscribe("a", 5),
        lambda pubsub: pubsub("a").subscribe(None),
        lambda pubsub: pubsub.subscribe("a", buffer="a"),
        lambda pubsub: pubsub.subscribe("a", buffer=-1),
        lambda pubsub: pubsub.subscribe("a", max_messages="x"),
        lambda pubsub: pubsub.subscribe("a", max_bytes=2**70),
        lambda pubsub: pubsub.subscribe("a", policy=[]),
        lambda pubsub: pubsub.subscribe(5),
        lambda pubsub: pubsub.subscribe("\udcff"),
        lambda pubsub: pubsub.will(5, "v"),
    ],
)
async def test_bad_arguments_do_not_disturb_other_subscriptions(
    connect: Connect, subscribe: Any
) -> None:
    """SPEC C2: a typed error before anything starts."""
    pubsub = connect()
    other = await pubsub.subscribe("a")
    with pytest.raises(InvalidInput):
        await subscribe(pubsub)
    assert await pubsub.publish("a", 1) == 1
    assert (await other.get(WAIT_S)).value == 1


async def test_a_subscription_of_the_same_pattern_leaves_the_retained_to_the_new_one(
    connect: Connect,
) -> None:
    """SPEC C2, C3: each gets what is retained once, when it subscribes."""
    pubsub = connect()
    await pubsub.publish("r/1", "kept", retain=True)
    first = await pubsub.subscribe("r/#")
    assert (await first.get(WAIT_S)).value == "kept"
    second, silent = await pubsub.subscribe("r/#"), await pubsub.subscribe("r/#", retained=False)
    assert (await second.get(WAIT_S)).retained
    await pubsub.publish("r/2", "new")
    for subscription in (first, second, silent):
        assert (await subscription.get(WAIT_S)).value == "new"


async def test_no_message_in_time_is_a_timeout_of_ours(connect: Connect) -> None:
    """SPEC K1: every error is a NexoError."""
    subscription = await connect().subscribe("a")
    with pytest.raises(RequestTimeout):
        await subscription.get("1ms")
    for timeout in (-1, float("nan"), object()):
        with pytest.raises(InvalidInput):
            await subscription.get(timeout)  # type: ignore[arg-type]


async def test_a_cancelled_task_within_a_handler_ends_nothing_else(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """SPEC A5, C2: it is logged, and the next message follows."""
    pubsub, got = connect(), asyncio.Queue[Any]()

    async def handler(message: Message[Any]) -> None:
        got.put_nowait(message.value)
        task = asyncio.ensure_future(asyncio.sleep(10))
        task.cancel()
        await task

    subscription = await pubsub.subscribe("t", handler)
    await pubsub.publish_many("t", [1, 2])
    assert [await asyncio.wait_for(got.get(), WAIT_S) for _ in range(2)] == [1, 2]
    await subscription.close()
    assert "handler of 't' failed" in caplog.text


async def test_a_cancelled_unsubscribe_ends_the_subscription_too(connect: Connect) -> None:
    """SPEC C2: nothing will come, so nobody may wait for it."""
    subscription = await connect().subscribe("t")
    ending = asyncio.ensure_future(subscription.close())
    await asyncio.sleep(0)
    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending
    async with asyncio.timeout(WAIT_S):
        assert [message async for message in subscription] == []


def test_a_closed_sync_client_subscribes_to_nothing(nexo_server: Server) -> None:
    """SPEC A3, K1: as the async one."""
    client = nexo.connect(nexo_server.url)
    client.close()
    with pytest.raises(ConnectionLost):
        client.pubsub.subscribe("late")


async def test_one_who_gives_up_waiting_does_not_disturb_the_others(connect: Connect) -> None:
    pubsub = connect()
    await pubsub.subscribe("a")

    async def publish() -> int:
        return await pubsub.publish("a", 1)

    tasks = [asyncio.create_task(publish()) for _ in range(3)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    assert [await tasks[0], await tasks[2]] == [1, 1]


async def test_overlapping_subscriptions_of_one_client_each_get_the_message(
    connect: Connect,
) -> None:
    pubsub = connect()  # SPEC C2
    all_of_it, exact = await pubsub.subscribe("#"), await pubsub.subscribe("a/b")
    assert await pubsub.publish("a/b", 1) == 1
    for subscription in (all_of_it, exact):
        assert (await subscription.get(WAIT_S)).value == 1
        with pytest.raises(TimeoutError):
            await subscription.get(0.01)


async def test_the_documents_flavour_works(connect: Connect) -> None:
    pubsub = connect()
    got: asyncio.Queue[object] = asyncio.Queue()
    subscription = await pubsub("edge/+/hb").subscribe(got.put_nowait)
    pubsub("edge/42/hb").publish({"ts": 1})
    assert await asyncio.wait_for(got.get(), WAIT_S) == {"ts": 1}
    await subscription.close()


async def test_a_handler_that_fails_gets_the_next_message(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    pubsub = connect()
    got: asyncio.Queue[int] = asyncio.Queue()

    async def handler(value: int) -> None:
        if value == 0:
            raise ValueError("zero")
        await got.put(value)

    subscription = await pubsub("t", int).subscribe(handler)
    await pubsub.publish("t", 0)
    await pubsub.publish("t", 7)
    assert await asyncio.wait_for(got.get(), WAIT_S) == 7
    assert "handler of 't' failed" in caplog.text
    await subscription.close()


async def test_retained_messages_survive_a_crash(connect: Connect, nexo_server: Server) -> None:
    await connect().publish("config/a", "v1", retain=True)  # SPEC C3
    await asyncio.to_thread(nexo_server.crash)
    await asyncio.to_thread(nexo_server.start)
    subscription = await connect().subscribe("config/#")
    message = await subscription.get(WAIT_S)
    assert (message.value, message.retained) == ("v1", True)
    assert await connect().publish("config/a", "", retain=True) == 1
    late = await connect().subscribe("config/#")
    with pytest.raises(TimeoutError):
        await late.get(0.05)


async def test_a_new_subscription_gets_retained_messages_and_older_ones_do_not(
    connect: Connect,
) -> None:
    pubsub = connect()
    await pubsub.publish("t", "kept", retain=True, ttl=60)
    first = await pubsub.subscribe("t")
    assert (await first.get(WAIT_S)).retained
    second = await pubsub.subscribe("#")
    assert (await second.get(WAIT_S)).retained
    with pytest.raises(TimeoutError):
        await first.get(0.05)


async def test_subscriptions_go_on_after_a_reconnect(connect: Connect, nexo_server: Server) -> None:
    pubsub = connect()  # SPEC A5
    subscription = await pubsub.subscribe("a/#")
    await asyncio.to_thread(nexo_server.crash)
    await asyncio.to_thread(nexo_server.start)
    publisher = connect()
    await eventually(lambda: publisher.publish("a/b", "again"))
    assert (await subscription.get(WAIT_S)).value == "again"


async def test_one_that_ends_while_it_is_renewed_does_not_stay_with_the_server(
    connect: Connect, nexo_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SPEC A5: nor does ending it wait for the connection that is being renewed."""
    pubsub, renewed = connect(), asyncio.Event()
    doomed, kept = await pubsub.subscribe("doomed"), await pubsub.subscribe("kept")
    subscribe = pubsub._inbox._subscribe

    async def slow(subscription: Any) -> None:
        await asyncio.create_task(doomed.close())
        await subscribe(subscription)
        if subscription is kept:
            renewed.set()

    monkeypatch.setattr(pubsub._inbox, "_subscribe", slow)
    await asyncio.to_thread(nexo_server.crash)
    await asyncio.to_thread(nexo_server.start)
    async with asyncio.timeout(10):
        await renewed.wait()
    assert [row.pattern for row in await connect().subscriptions()] == ["kept"]


async def test_ending_and_closing_wait_for_no_server_that_is_down(nexo_server: Server) -> None:
    client = await nexo.connect_async(nexo_server.url, down_wait=60)  # SPEC A5
    subscription = await client.pubsub.subscribe("a")
    await client.pubsub.will("b", "gone")
    await asyncio.to_thread(nexo_server.crash)
    await eventually(lambda: not client.link(Broker.PUBSUB).up)
    async with asyncio.timeout(20):
        await subscription.close()
        await client.close()


def test_ending_and_closing_in_threads_wait_for_no_server_that_is_down(
    nexo_server: Server,
) -> None:
    client = nexo.connect(nexo_server.url, down_wait=60)  # SPEC A5
    subscription = client.pubsub.subscribe("a")
    client.pubsub.will("b", "gone")
    nexo_server.crash()
    wait_until(lambda: not client.link(Broker.PUBSUB).duplex().up)
    assert spawn(subscription.close).join(20)
    assert spawn(client.close).join(20)


def test_threads_may_subscribe_at_the_same_time(
    blocking: SyncPubSub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SPEC A3: each of them is in the middle of it when the other begins, if it can be."""
    both, change = threading.Barrier(2), SyncInbox._change

    def slow(inbox: SyncInbox, subscriptions: tuple[Any, ...]) -> None:
        with suppress(threading.BrokenBarrierError):
            both.wait(0.2)
        change(inbox, subscriptions)

    blocking.subscribe("first").close()
    monkeypatch.setattr(SyncInbox, "_change", slow)
    for task in [spawn(blocking.subscribe, pattern) for pattern in ("a", "b")]:
        assert task.join(WAIT_S)
    assert {subscription.pattern for subscription in blocking._inbox._subscriptions} == {"a", "b"}


async def test_a_group_shares_messages_between_clients(connect: Connect) -> None:  # SPEC C5
    got: list[tuple[int, int]] = []

    def worker(member: int) -> Callable[[int], None]:
        return lambda number: got.append((member, number))

    for member in range(2):
        await connect()("jobs/+", int).shared("workers").subscribe(worker(member))
    publisher = connect()
    for number in range(10):
        assert await publisher.publish("jobs/x", number) == 1
    await eventually(lambda: len(got) == 10)
    assert sorted(number for _, number in got) == list(range(10))
    assert {member for member, _ in got} == {0, 1}


async def test_a_will_is_published_only_without_a_goodbye(connect: Connect) -> None:  # SPEC C5
    watcher = await connect().subscribe("status/#")
    polite, doomed = connect(), connect()
    await polite.will("status/polite", "gone")
    await doomed.will("status/doomed", "gone")
    await polite.close()
    await polite._link.close()
    await doomed._link.close()
    assert (await watcher.get(WAIT_S)).topic == "status/doomed"
    with pytest.raises(TimeoutError):
        await watcher.get(0.05)


async def test_a_slow_consumer_here_loses_the_oldest_and_knows(connect: Connect) -> None:
    pubsub = connect()  # SPEC C4
    subscription = await pubsub.subscribe("t", buffer=3)
    strict = await pubsub.subscribe("#", buffer=3, policy="disconnect")
    for number in range(10):
        await pubsub.publish("t", number)
    assert [(await subscription.get(WAIT_S)).value for _ in range(3)] == [7, 8, 9]
    assert subscription.dropped == 7
    assert [(await anext(strict)).value for _ in range(3)] == [0, 1, 2]
    with pytest.raises(Overloaded):
        await anext(strict)


async def test_a_subscriber_that_never_reads_disturbs_nobody(
    connect: Connect, nexo_server: Server
) -> None:
    """SPEC C4: its memory stays bounded while everyone else gets every message."""
    stalled = socket.create_connection(("127.0.0.1", nexo_server.port))
    stalled.sendall(frame(FrameKind.REQUEST, Op.SUB, 1, pack_str("load")))
    stalled.recv(10)
    reader, writer = connect(), connect()
    subscription = await reader.subscribe("load", buffer=0)
    value, total = b"x" * 4096, 20_000
    for _ in range(total // 100):
        receipts = [writer.publish("load", value) for _ in range(100)]
        assert [await receipt for receipt in receipts] == [2] * 100
    for _ in range(total):
        await subscription.get(WAIT_S)
    assert subscription.dropped == 0
    rows = msgspec.msgpack.decode(
        await writer._link.call(Op.PS_SUBSCRIPTIONS, pack(Listing())) or b""
    )
    waiting = {row["client"]: row for row in rows}
    slow = next(row for row in waiting.values() if row["dropped"])
    assert slow["waiting"] <= 1_000
    assert slow["waiting_bytes"] <= 8 * 1024 * 1024
    assert (await status(writer))["dropped"] == slow["dropped"] > 0
    stalled.close()


def test_the_sync_client_iterates_and_calls_back(blocking: SyncPubSub) -> None:  # SPEC K1
    with blocking.subscribe("a/+") as subscription:
        for number in range(3):
            assert blocking.publish("a/b", number) == 1
        assert blocking.publish_many("a/b", [3, 4]) == [1, 1]
        assert [next(subscription).value for _ in range(5)] == [0, 1, 2, 3, 4]
        with pytest.raises(TimeoutError):
            subscription.get(0.01)
    assert blocking.publish("a/b", 1) == 0
    got: list[int] = []
    handled = blocking("a/b").subscribe(got.append)
    blocking.publish("a/b", 5, retain=True)
    handled.close()
    assert got == [5]


def test_the_sync_client_leaves_a_will(nexo_server: Server, blocking: SyncPubSub) -> None:
    doomed = SyncLink(parse_url(nexo_server.url), Broker.PUBSUB)  # SPEC C5
    SyncPubSub(doomed).will("status", "gone")
    with blocking.subscribe("status") as watcher:
        doomed.close()
        assert watcher.get(WAIT_S).value == "gone"


def test_an_ended_subscription_gives_nothing_more(blocking: SyncPubSub) -> None:
    subscription = blocking.subscribe("a")
    subscription.close()
    with pytest.raises(StopIteration):
        next(subscription)
    assert list(subscription) == []


def test_closing_the_sync_client_ends_its_iterations_and_handlers(nexo_server: Server) -> None:
    client = nexo.connect(nexo_server.url)  # SPEC K1
    handled, waiting = client.pubsub.subscribe("a", print), client.pubsub.subscribe("b")
    iterating = spawn(list, client.pubsub.subscribe("c"))
    getting = [spawn(waiting.get) for _ in range(2)]
    client.close()
    assert iterating.join(WAIT_S)
    for one in getting:
        with pytest.raises(ConnectionLost, match="has ended"):
            assert not one.join(WAIT_S)
    assert list(handled) == []
    assert not [thread.name for thread in threading.enumerate() if thread.name == "nexo-a"]


async def test_closing_the_client_ends_its_iterations_and_handlers(nexo_server: Server) -> None:
    client = await nexo.connect_async(nexo_server.url)  # SPEC K1
    await client.pubsub.subscribe("a", print)
    subscription = await client.pubsub.subscribe("b")
    getting = asyncio.create_task(subscription.get())
    iterating = asyncio.create_task(anext(await client.pubsub.subscribe("c"), "ended"))
    await asyncio.sleep(0)
    await client.close()
    assert await asyncio.wait_for(iterating, WAIT_S) == "ended"
    with pytest.raises(ConnectionLost, match="has ended"):
        await asyncio.wait_for(getting, WAIT_S)
    assert "nexo-a" not in {task.get_name() for task in asyncio.all_tasks()}


async def test_a_handler_that_hangs_or_closes_the_client_does_not_keep_it_open(
    nexo_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pubsub_subscription, "_CLOSE_S", 0.05)
    client = await nexo.connect_async(nexo_server.url)
    closed, hangs = asyncio.Event(), asyncio.Event()

    async def close(_message: Message[Any]) -> None:
        await client.close()
        closed.set()

    async def hang(_message: Message[Any]) -> None:
        await hangs.wait()

    await client.pubsub.subscribe("a", hang)
    await client.pubsub.subscribe("a", close)
    await client.pubsub.publish("a", 1)
    async with asyncio.timeout(WAIT_S):
        await closed.wait()
    hangs.set()
