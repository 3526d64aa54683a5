"""Consumer groups: who owns which partition, and that nobody else does (SPEC G6)."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest

import nexo
from nexo.client._async.link.link import Duplex
from nexo.errors import (
    Fenced,
    Forbidden,
    InvalidInput,
    InvalidOption,
    NotFound,
    NotMember,
    RequestTimeout,
    Unavailable,
)
from nexo.model import Broker
from nexo.options.stream import Strategy
from nexo.protocol import stream as wire
from nexo.protocol import stream_ordered as ordered
from nexo.protocol.ops import Op
from nexo.topics import (
    AsyncAdminClient,
    AsyncConsumer,
    AsyncConsumerGroup,
    AsyncProducer,
    AsyncTopic,
    Rebalance,
)
from tests.timing import eventually

WAIT_S = 60.0
PARTITIONS = 8


def numbers(consumer: AsyncConsumer[Any]) -> list[int]:
    return [at.partition for at in consumer.assignment]


@pytest.fixture
async def orders(aclient: nexo.AsyncClient) -> str:
    await AsyncAdminClient(aclient).create_topic("orders", PARTITIONS)
    return "orders"


async def owning(*wanted: tuple[AsyncConsumer[Any], list[int]]) -> None:
    await eventually(lambda: all(numbers(consumer) == parts for consumer, parts in wanted))


def watch(monkeypatch: pytest.MonkeyPatch, on_call: Callable[[Op], None]) -> None:
    """Have ``on_call`` called with each request of this client; what it raises, the call does."""
    call = Duplex.call

    def watched(link: Duplex, op: Op, *parts: Any, **options: Any) -> Any:
        on_call(op)
        return call(link, op, *parts, **options)

    monkeypatch.setattr(Duplex, "call", watched)


# -- sharing out


@pytest.mark.parametrize(
    ("strategy", "two", "three"),
    [
        ("range", ([0, 1, 2, 3], [4, 5, 6, 7]), ([0, 1, 2], [3, 4, 5], [6, 7])),
        ("roundRobin", ([0, 2, 4, 6], [1, 3, 5, 7]), ([0, 3, 6], [1, 4, 7], [2, 5])),
    ],
)
async def test_partitions_are_shared_out_as_documented(
    aclient: nexo.AsyncClient,
    orders: str,
    strategy: Strategy,
    two: tuple[list[int], ...],
    three: tuple[list[int], ...],
) -> None:
    async with AsyncConsumerGroup(
        "g", topics=orders, rebalance_strategy=strategy, server=aclient
    ) as group:
        first = await group.join()
        assert numbers(first) == list(range(PARTITIONS))
        second = await group.join()
        await owning((first, two[0]), (second, two[1]))
        third = await group.join()
        await owning((first, three[0]), (second, three[1]), (third, three[2]))
        await third.close()
        await owning((first, two[0]), (second, two[1]))


async def test_a_member_without_partitions_gets_nothing_until_one_is_free(
    aclient: nexo.AsyncClient,
) -> None:
    await AsyncAdminClient(aclient).create_topic("t", 1)
    async with AsyncConsumerGroup("g", topics="t", server=aclient) as group:
        first, second = await group.join(), await group.join()
        async with AsyncProducer(server=aclient) as producer:
            await producer.send("t", "hello")
        assert await second.poll(0.05) is None
        await first.close()
        message = await second.poll(WAIT_S)
        assert message is not None
        assert message.value == "hello"


async def test_every_partition_of_every_topic_is_owned(aclient: nexo.AsyncClient) -> None:
    admin = AsyncAdminClient(aclient)
    await admin.create_topic("a", 3)
    await admin.create_topic("b", 2)
    async with AsyncConsumerGroup("g", topics=["a", "b"], server=aclient) as group:
        first, second = await group.join(), await group.join()
        await eventually(lambda: len(first.assignment) + len(second.assignment) == 5)
        owners = (await group.describe()).assignment
        assert sorted(owners) == [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1)]


async def test_what_is_revoked_is_told_before_what_is_assigned(
    aclient: nexo.AsyncClient, orders: str
) -> None:
    told: list[Rebalance] = []
    async with AsyncConsumerGroup("g", topics=orders, server=aclient) as group:
        group.on("rebalance", told.append)
        first = await group.join()
        second = await group.join()
        await owning((first, [0, 1, 2, 3]), (second, [4, 5, 6, 7]))
        await eventually(lambda: len(told) >= 3)
        assert [(e.kind, e.member, [p.partition for p in e.partitions]) for e in told] == [
            ("assigned", first.member_id, list(range(8))),
            ("revoked", first.member_id, [4, 5, 6, 7]),
            ("assigned", second.member_id, [4, 5, 6, 7]),
        ]
        assert [p.partition for p in told[1].assignment] == [0, 1, 2, 3]
        with pytest.raises(InvalidInput, match="rebalance"):
            group.on("heartbeat", print)


async def test_a_handler_that_fails_does_not_cost_the_membership(
    aclient: nexo.AsyncClient, orders: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with AsyncConsumerGroup("g", topics=orders, server=aclient) as group:
        group.on("rebalance", lambda event: 1 / 0)
        first, second = await group.join(), await group.join()
        await owning((first, [0, 1, 2, 3]), (second, [4, 5, 6, 7]))
    assert "ZeroDivisionError" in caplog.text


async def test_generations_rise_and_the_first_member_leads(
    aclient: nexo.AsyncClient, orders: str
) -> None:
    async with AsyncConsumerGroup("g", topics=orders, server=aclient) as group:
        first = await group.join()
        before = await group.describe()
        second = await group.join()
        after = await group.describe()
        assert after.generation > before.generation
        assert after.leader == first.member_id
        assert after.members == (first.member_id, second.member_id)
        await first.close()
        left = await group.describe()
        assert left.generation > after.generation
        assert left.leader == second.member_id


async def test_the_lag_counts_partitions_that_were_never_committed(
    aclient: nexo.AsyncClient, orders: str
) -> None:
    """SPEC G6."""
    async with AsyncProducer(server=aclient) as producer:
        for number in range(10):
            producer.send(orders, number, partition=number % 2)
    async with AsyncConsumer(orders, "g", auto_commit=False, server=aclient) as consumer:
        admin = AsyncAdminClient(aclient)
        await consumer.join()
        assert (await admin.describe_group("g")).lag == 10
        await consumer.commit(await consumer.poll(WAIT_S))
        assert (await admin.describe_group("g")).lag == 9
    assert (await admin.describe_group("g")).lag == 9  # nobody reads, and it is still behind


async def test_commits_of_the_past_are_refused(aclient: nexo.AsyncClient, orders: str) -> None:
    link = aclient.link(Broker.STREAM)

    async def join() -> ordered.Assigned:
        ask = ordered.OrderedJoin(group="g", topics=[orders])
        reply = await link.call(Op.S_ORDERED_JOIN, wire.pack(ask))
        return wire.unpack(ordered.Assigned, reply or b"")

    old = await join()
    await join()
    stale = ordered.Commit(
        group="g", offsets=[(orders, 0, 0, "")], member=old.member, generation=old.generation
    )
    with pytest.raises(Fenced, match="generation"):
        await link.call(Op.S_COMMIT, wire.pack(stale))
    stranger = ordered.Commit(group="g", offsets=[], member="nobody", generation=2)
    with pytest.raises(NotMember):
        await link.call(Op.S_COMMIT, wire.pack(stranger))


async def test_options_and_groups_that_make_no_sense_are_refused(
    aclient: nexo.AsyncClient, orders: str
) -> None:
    with pytest.raises(InvalidOption, match="sticky"):
        AsyncConsumerGroup("g", topics=orders, rebalance_strategy="sticky", server=aclient)  # type: ignore[arg-type]
    with pytest.raises(NotFound, match="'none'"):
        await AsyncAdminClient(aclient).describe_group("none")
    with pytest.raises(InvalidInput, match="topic"):
        AsyncConsumerGroup("g", topics=[], server=aclient)


# -- changing hands


@pytest.mark.parametrize("name", ["session_timeout", "rebalance_timeout"])
@pytest.mark.parametrize("given", [0, -5, 0.001, float("inf"), float("nan"), "soon", 1e9])
async def test_timeouts_that_nobody_could_keep_are_refused(
    aclient: nexo.AsyncClient, orders: str, name: str, given: Any
) -> None:
    """SPEC G6: a join changes them for the whole group."""
    async with AsyncConsumerGroup("g", topics=orders, server=aclient) as group:
        await group.join()
        with pytest.raises(InvalidOption, match=name):
            await group.join(**{name: given})
        if isinstance(given, int):
            ask = ordered.OrderedJoin(group="g", topics=[orders], options={f"{name}_ms": given})
            with pytest.raises(InvalidOption, match=name):
                await aclient.link(Broker.STREAM).call(Op.S_ORDERED_JOIN, wire.pack(ask))
        assert len((await group.describe()).members) == 1


async def test_a_partition_is_given_up_only_between_messages(
    aclient: nexo.AsyncClient, orders: str
) -> None:
    async with AsyncProducer(server=aclient) as producer:
        for partition in range(PARTITIONS):
            producer.send(orders, partition, partition=partition)
    async with AsyncConsumerGroup("g", topics=orders, server=aclient) as group:
        first = await group.join()
        held = await first.poll_batch(timeout=5)  # of all partitions
        assert len(held) == PARTITIONS
        second = await group.join()
        assert await second.poll(0.1) is None  # nothing is free
        assert numbers(first) == list(range(PARTITIONS))
        assert await first.poll(0.05) is None  # done with them: half goes
        await owning((first, [0, 1, 2, 3]), (second, [4, 5, 6, 7]))
        assert await second.poll(0.05) is None  # and was committed before it went


async def test_the_new_owner_starts_at_the_committed_offset(
    aclient: nexo.AsyncClient, orders: str
) -> None:
    async with AsyncProducer(server=aclient) as producer:
        for number in range(40):
            producer.send(orders, number, partition=7)
    async with AsyncConsumerGroup("g", topics=orders, server=aclient) as group:
        first = await group.join()
        for number in range(10):
            message = await first.poll(5)
            assert message is not None
            assert message.value == number
        second = await group.join()
        assert await first.poll(0.05) is None  # 9 is done; partition 7 goes
        message = await second.poll(5)
        assert message is not None
        assert message.value == 10


async def test_a_member_that_dies_silently_is_replaced(
    aclient: nexo.AsyncClient, orders: str
) -> None:
    """Its connection stays open, but no heartbeat comes."""
    link = aclient.link(Broker.STREAM)
    ask = ordered.OrderedJoin(
        group="g", topics=[orders], options={"session_timeout_ms": 1_500}, member="silent"
    )
    await link.call(Op.S_ORDERED_JOIN, wire.pack(ask))
    async with AsyncConsumerGroup("g", topics=orders, session_timeout=1.5, server=aclient) as group:
        alive = await group.join()
        await owning((alive, list(range(PARTITIONS))))
        assert (await group.describe()).members == (alive.member_id,)


async def test_a_member_whose_connection_ends_is_replaced_at_once(
    aclient: nexo.AsyncClient, orders: str, url: str
) -> None:
    doomed = nexo.AsyncClient(url)
    dead: AsyncConsumer[Any] = AsyncConsumer(orders, "g", server=doomed)
    await dead.join()
    async with AsyncConsumer(orders, "g", server=aclient) as alive:
        assert numbers(alive) == []
        await doomed.close()
        await owning((alive, list(range(PARTITIONS))))


async def test_a_join_that_fails_halfway_is_made_good(
    aclient: nexo.AsyncClient, orders: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SPEC G6: no partition is owned by a member that does not read it."""
    asked = 0

    def fail_once(op: Op) -> None:
        nonlocal asked
        asked += op is Op.S_COMMITTED
        if op is Op.S_COMMITTED and asked == 1:
            raise RequestTimeout("no reply came in time")

    watch(monkeypatch, fail_once)
    await AsyncTopic(orders, server=aclient).produce("x")
    consumer: AsyncConsumer[Any] = AsyncConsumer(orders, "g", server=aclient)
    with pytest.raises(RequestTimeout):
        await consumer.poll(WAIT_S)
    message = await consumer.poll(WAIT_S)
    assert message is not None
    assert message.value == "x"
    await consumer.close()


async def test_what_cannot_be_committed_goes_to_its_new_owner_all_the_same(
    aclient: nexo.AsyncClient, orders: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SPEC G6: nobody owns it twice, and it is done again."""

    def refuse(op: Op) -> None:
        if op is Op.S_COMMIT:
            raise Unavailable("no commits for now")

    async with AsyncProducer(server=aclient) as producer:
        await producer.send(orders, "x", partition=7)
    async with AsyncConsumerGroup("g", topics=orders, server=aclient) as group:
        first = await group.join()
        assert await first.poll(WAIT_S) is not None
        second = await group.join()
        with monkeypatch.context() as patch:
            watch(patch, refuse)
            assert await first.poll(0.05) is None
            await owning((first, [0, 1, 2, 3]), (second, [4, 5, 6, 7]))
        message = await second.poll(WAIT_S)
        assert message is not None
        assert message.value == "x"


async def test_closing_leaves_the_group_though_nothing_can_be_committed(
    aclient: nexo.AsyncClient, orders: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SPEC G5, G6: its partitions are free for others."""

    def refuse(op: Op) -> None:
        if op is Op.S_COMMIT:
            raise Forbidden("no commits any more")

    await AsyncTopic(orders, server=aclient).produce("x")
    group: AsyncConsumerGroup[Any] = AsyncConsumerGroup("g", topics=orders, server=aclient)
    first = await group.join()
    assert await first.poll(WAIT_S) is not None
    await group.join()
    with monkeypatch.context() as patch:
        watch(patch, refuse)
        with pytest.raises(Forbidden):
            await group.close()
    assert (await group.describe()).members == ()


async def test_a_member_that_cannot_take_over_does_not_keep_the_group_busy(
    aclient: nexo.AsyncClient, orders: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SPEC G6: each try makes a new generation for all."""
    joins: list[float] = []

    def refuse(op: Op) -> None:
        if op is Op.S_COMMITTED:
            raise Unavailable("not now")
        if op is Op.S_ORDERED_JOIN:
            joins.append(time.monotonic())

    async with AsyncConsumer(orders, "g", server=aclient) as consumer:
        with monkeypatch.context() as patch:
            watch(patch, refuse)
            leave = ordered.OrderedLeave(group="g", member=consumer.member_id)
            await aclient.link(Broker.STREAM).call(Op.S_ORDERED_LEAVE, wire.pack(leave))
            await eventually(lambda: len(joins) >= 3)
        assert joins[2] - joins[1] > 0.2


async def test_a_member_that_was_put_out_joins_again(
    aclient: nexo.AsyncClient, orders: str
) -> None:
    async with AsyncConsumer(orders, "g", server=aclient) as consumer:
        leave = ordered.OrderedLeave(group="g", member=consumer.member_id)
        await aclient.link(Broker.STREAM).call(Op.S_ORDERED_LEAVE, wire.pack(leave))
        old = consumer.member_id
        await eventually(
            lambda: consumer.member_id != old and len(consumer.assignment) == PARTITIONS
        )


# -- storms


class Storm:
    """Members that come and go while messages are processed; checks who owns what when."""

    def __init__(self, group: AsyncConsumerGroup[int], messages: int) -> None:
        self.group = group
        self.messages = messages
        self.processed: Counter[tuple[int, int]] = Counter()
        self.working: dict[int, AsyncConsumer[int]] = {}
        """By partition: who works on a message of it right now."""
        self.clashes: list[tuple[int, str, str]] = []
        """Members that worked on one partition at once, but for one that was being closed: what
        it works on then counts as processed."""
        self.live: dict[AsyncConsumer[int], asyncio.Task[None]] = {}
        self._random = random.Random(7)

    async def add(self) -> None:
        consumer = await self.group.join()
        self.live[consumer] = asyncio.ensure_future(self._work(consumer))

    async def remove(self) -> None:
        consumer = self._random.choice(list(self.live))
        task = self.live.pop(consumer)
        await consumer.close()
        await task

    async def _work(self, consumer: AsyncConsumer[int]) -> None:
        async for message in consumer:
            other = self.working.get(message.partition)
            if other in self.live:
                self.clashes.append((message.partition, other.member_id, consumer.member_id))
            self.working[message.partition] = consumer
            await asyncio.sleep(self._random.random() * 0.004)
            self.processed[message.partition, message.offset] += 1
            if self.working[message.partition] is consumer:
                del self.working[message.partition]

    def finished(self) -> bool:
        return len(self.processed) == self.messages


async def test_a_storm_of_joins_and_leaves_loses_and_repeats_nothing(
    aclient: nexo.AsyncClient, orders: str
) -> None:
    messages = 1_500
    async with AsyncConsumerGroup[int]("g", topics=orders, server=aclient) as group:
        storm = Storm(group, messages)
        await storm.add()
        async with AsyncProducer(server=aclient) as producer:
            for number in range(messages):
                producer.send(orders, number, key=f"k{number}")
        chance = random.Random(11)
        for _ in range(50):
            if len(storm.live) > 1 and chance.random() < 0.5:
                await storm.remove()
            else:
                await storm.add()
            await check_owned_once(group)
            await asyncio.sleep(chance.random() * 0.02)
        await eventually(storm.finished)
        while storm.live:
            await storm.remove()
    assert storm.clashes == []
    assert set(storm.processed.values()) == {1}


async def check_owned_once(group: AsyncConsumerGroup[int]) -> None:
    described = await group.describe()
    assert set(described.assignment.values()) <= set(described.members)
    assert len(described.assignment) <= PARTITIONS


async def test_at_the_end_of_a_storm_everything_is_owned(
    aclient: nexo.AsyncClient, orders: str
) -> None:
    async with AsyncConsumerGroup("g", topics=orders, server=aclient) as group:
        members = [await group.join() for _ in range(20)]
        for member in members[:17]:
            await member.close()
        left = members[17:]
        await eventually(lambda: sorted(all_numbers(left)) == list(range(PARTITIONS)))
        description = await group.describe()
        assert len(description.members) == 3
        assert len(description.assignment) == PARTITIONS


def all_numbers(consumers: Iterable[AsyncConsumer[Any]]) -> list[int]:
    return [number for consumer in consumers for number in numbers(consumer)]
