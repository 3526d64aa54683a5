"""The exactly-once context, on a server and in memory (SPEC H1, H3)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextvars import Context
from pathlib import Path
from typing import Any

import pytest

import nexo
from nexo.errors import (
    Conflict,
    ConnectionLost,
    InvalidInput,
    InvalidOption,
    NexoError,
    NotFound,
    OutcomeUnknown,
    RequestTimeout,
    TransactionAborted,
)
from nexo.model import Broker
from nexo.protocol.ops import Op
from nexo.testing import Server
from nexo.topics import (
    AsyncAdminClient,
    AsyncConsumer,
    AsyncExactlyOnceContext,
    AsyncOnceTransaction,
    AsyncTopic,
    Checkpoint,
    OutboxEvent,
)
from nexo.topics import once as once_module
from nexo.topics._async.once import context as context_module
from nexo.topics._async.once.ledger import MemoryLedger

QUICK_S = 0.05


class Boom(Exception):
    """What tests raise."""


@pytest.fixture
async def topics(aclient: nexo.AsyncClient) -> nexo.AsyncClient:
    admin = AsyncAdminClient(aclient)
    for name in ("in", "out", "audit"):
        await admin.create_topic(name, 2)
    return aclient


@pytest.fixture(params=["server", "memory"])
async def context(
    request: pytest.FixtureRequest, topics: nexo.AsyncClient
) -> AsyncIterator[AsyncExactlyOnceContext]:
    where = topics if request.param == "server" else "memory://"
    async with AsyncExactlyOnceContext(where, name="app", ttl="1h") as context:
        yield context


@pytest.fixture
async def durable(topics: nexo.AsyncClient) -> AsyncExactlyOnceContext:
    return AsyncExactlyOnceContext(topics, name="app")


async def all_values(client: nexo.AsyncClient, topic: str) -> list[Any]:
    found = []
    for partition in range(2):
        found += [record.value for record in await client.stream(topic).read(partition)]
    return found


# -- transactions over topics (H1)


async def test_output_and_input_offset_become_visible_together(
    topics: nexo.AsyncClient, durable: AsyncExactlyOnceContext
) -> None:
    await AsyncTopic("in", server=topics).produce("ping", key="k")
    async with AsyncConsumer("in", "g", server=topics) as consumer:

        async def work(tx: AsyncOnceTransaction) -> str:
            message = await consumer.poll(5)
            assert message is not None
            await tx.produce("out", message.value + "!", key=message.key)
            await tx.produce("audit", {"seen": message.value})
            assert await all_values(topics, "out") == []
            await tx.commit(message.offset)
            return "done"

        assert await durable.transaction(work) == "done"
        stored = [await consumer.committed(partition) for partition in range(2)]
        assert [at.offset for at in stored if at is not None] == [0]
    assert await all_values(topics, "out") == ["ping!"]
    assert await all_values(topics, "audit") == [{"seen": "ping"}]


@pytest.mark.parametrize("auto_commit", [True, False])
@pytest.mark.parametrize("committed", [True, False])
async def test_after_a_rollback_the_same_consumer_reads_the_message_again(
    topics: nexo.AsyncClient,
    durable: AsyncExactlyOnceContext,
    auto_commit: bool,
    committed: bool,
) -> None:
    for number in range(3):
        await AsyncTopic("in", server=topics).produce(number, key="k")
    async with AsyncConsumer("in", "g", auto_commit=auto_commit, server=topics) as consumer:

        async def fail(tx: AsyncOnceTransaction) -> None:
            message = await consumer.poll(5)
            assert message is not None
            await tx.produce("out", message.value)
            if committed:
                await tx.commit(message)
            raise Boom

        with pytest.raises(Boom):
            await durable.transaction(fail)
        seen = []
        for _ in range(3):
            async with durable.begin() as tx:
                message = await consumer.poll(5)
                assert message is not None
                seen.append(message.value)
                await tx.produce("out", message.value)
                await tx.commit(message)
        assert seen == [0, 1, 2]
    assert sorted(await all_values(topics, "out")) == [0, 1, 2]


@pytest.mark.parametrize("auto_commit", [True, False])
async def test_a_transaction_of_the_client_commits_messages_of_topics(
    topics: nexo.AsyncClient, auto_commit: bool
) -> None:  # SPEC H1
    for number in range(3):
        await AsyncTopic("in", server=topics).produce(number, key="k")
    seen = []
    async with AsyncConsumer("in", "g", auto_commit=auto_commit, server=topics) as consumer:

        async def step() -> None:
            message = await consumer.poll(5)
            assert message is not None
            seen.append(message.value)
            async with topics.transaction() as tx:
                await tx.publish("out", message.value)
                await tx.ack(message)
                if seen == [0, 1]:
                    raise Boom

        await step()
        with pytest.raises(Boom):
            await step()
        await step()
        await step()
    assert seen == [0, 1, 1, 2]
    assert sorted(await all_values(topics, "out")) == [0, 1, 2]
    async with AsyncConsumer("in", "g", server=topics) as again:
        assert await again.poll(0.05) is None


class Deaf:
    """A link that does what is asked and loses the reply to some of it."""

    def __init__(self, link: Any, *losses: BaseException, does: Op = Op.S_TX_COMMIT) -> None:
        self._link, self.losses, self._does = link, list(losses), does

    def __getattr__(self, name: str) -> Any:
        return getattr(self._link, name)

    async def call(self, op: Op, *parts: bytes, timeout_s: float | None = None) -> Any:
        done = self._does if op is Op.S_TX_COMMIT else op
        reply = await self._link.call(done, *parts, timeout_s=timeout_s)
        if self.losses and op in (Op.S_TX_COMMIT, Op.S_TX_OUTCOME):
            loss = self.losses.pop(0)
            if isinstance(loss, ConnectionLost):
                self._link._wire.abort(loss)
            raise loss
        return reply


def begun(through: str, client: nexo.AsyncClient, context: AsyncExactlyOnceContext) -> Any:
    """A transaction of either kind, not open yet, that asks for a moment only."""
    return client.transaction(timeout=1) if through == "client" else context.begin(timeout=1)


async def copy(consumer: AsyncConsumer[Any], tx: Any, deaf: Deaf) -> Any:
    """Copy the next message in a transaction on that link; what it was."""
    async with tx:
        changes: Any = tx._changes if isinstance(tx, AsyncOnceTransaction) else None
        (tx if changes is None else changes._transaction)._link = deaf
        message = await consumer.poll(5)
        assert message is not None
        if changes is None:
            await tx.publish("out", message.value, key="k")
            await tx.ack(message)
        else:
            await tx.produce("out", message.value, key="k")
            await tx.commit(message)
        return message.value


LOST: dict[str, list[NexoError]] = {
    "late": [RequestTimeout("no reply")],
    "cut": [ConnectionLost("cut")],
    "both": [RequestTimeout("no reply"), ConnectionLost("cut"), RequestTimeout("again")],
}


@pytest.mark.parametrize("auto_commit", [True, False])
@pytest.mark.parametrize("lost", LOST)
@pytest.mark.parametrize("through", ["client", "context"])
async def test_a_commit_whose_reply_is_lost_is_asked_for(
    topics: nexo.AsyncClient, durable: AsyncExactlyOnceContext,
    through: str, lost: str, auto_commit: bool,
) -> None:  # fmt: skip
    """SPEC H1, H2: what was committed is not handed out again."""
    link = topics.link(Broker.STREAM)
    for number in range(2):
        await AsyncTopic("in", server=topics).produce(number, key="k")
    async with AsyncConsumer("in", "g", auto_commit=auto_commit, server=topics) as consumer:
        for number in range(2):
            deaf = Deaf(link, *LOST[lost])
            assert await copy(consumer, begun(through, topics, durable), deaf) == number
    assert await all_values(topics, "out") == [0, 1]


@pytest.mark.parametrize("through", ["client", "context"])
async def test_a_rollback_whose_reply_is_lost_is_asked_for(
    topics: nexo.AsyncClient, durable: AsyncExactlyOnceContext, through: str
) -> None:
    """SPEC H1: the messages are handed out again."""
    deaf = Deaf(topics.link(Broker.STREAM), RequestTimeout("no reply"), does=Op.S_TX_ABORT)
    await AsyncTopic("in", server=topics).produce("ping", key="k")
    async with AsyncConsumer("in", "g", server=topics) as consumer:
        with pytest.raises(TransactionAborted, match="rolled back"):
            await copy(consumer, begun(through, topics, durable), deaf)
        again = await consumer.poll(5)
        assert again is not None
        assert again.value == "ping"
    assert await all_values(topics, "out") == []


@pytest.mark.parametrize("through", ["client", "context"])
@pytest.mark.parametrize("ended", [RequestTimeout("no reply"), asyncio.CancelledError()])
async def test_nothing_is_handed_out_while_the_outcome_is_unknown(
    topics: nexo.AsyncClient, durable: AsyncExactlyOnceContext, through: str, ended: BaseException
) -> None:
    """SPEC H1: neither twice nor never."""
    silence = [ended, *[RequestTimeout("no reply")] * 1_000]
    deaf = Deaf(topics.link(Broker.STREAM), *silence)
    for number in range(2):
        await AsyncTopic("in", server=topics).produce(number, key="k")
    async with AsyncConsumer("in", "g", server=topics) as consumer:
        expected = OutcomeUnknown if isinstance(ended, NexoError) else asyncio.CancelledError
        with pytest.raises(expected):
            await copy(consumer, begun(through, topics, durable), deaf)
        assert await consumer.poll(0) is None
        deaf.losses.clear()
        following = await consumer.poll(5)
        assert following is not None
        assert following.value == 1
    assert await all_values(topics, "out") == [0]


async def test_finish_asks_again(topics: nexo.AsyncClient) -> None:
    """SPEC H1."""
    tx = await topics.transaction(timeout=0.1).begin()
    await tx.publish("out", 1, key="k")
    kept: Any = tx._link
    tx._link = Deaf(kept, *[RequestTimeout("no reply")] * 1_000)  # type: ignore[assignment]
    with pytest.raises(OutcomeUnknown, match="no reply"):
        await tx.commit()
    tx._link = kept
    await tx.commit()
    assert await all_values(topics, "out") == [1]
    with pytest.raises(Conflict, match="not open"):
        await tx.commit()


async def test_a_transaction_refuses_what_no_consumer_handed_out(
    topics: nexo.AsyncClient,
) -> None:  # SPEC H1
    place = await topics.stream("in").publish(1, key="k")
    (record,) = await topics.stream("in").read(place.partition)
    async with topics.transaction() as tx:
        for bad in (record, "x"):
            with pytest.raises(InvalidInput, match="what a consumer delivered"):
                await tx.ack(bad)  # type: ignore[arg-type]
    with pytest.raises(Conflict, match="not open"):
        tx.ack(record)


async def test_a_message_read_before_the_transaction_comes_again_too(
    topics: nexo.AsyncClient, durable: AsyncExactlyOnceContext
) -> None:
    await AsyncTopic("in", server=topics).produce("x", key="k")
    async with AsyncConsumer("in", "g", server=topics) as consumer:
        message = await consumer.poll(5)
        assert message is not None

        async def fail(tx: AsyncOnceTransaction) -> None:
            await tx.commit(message)
            raise Boom

        with pytest.raises(Boom):
            await durable.transaction(fail)
        again = await consumer.poll(5)
        assert again is not None
        assert again.position == message.position


async def test_an_unknown_topic_leaves_nothing(
    topics: nexo.AsyncClient, durable: AsyncExactlyOnceContext
) -> None:
    async def fail(tx: AsyncOnceTransaction) -> None:
        await tx.produce("out", 1)
        await tx.put("count", 1)
        await tx.produce("none", 2)

    with pytest.raises(NotFound):
        await durable.transaction(fail)
    assert await all_values(topics, "out") == []
    assert await durable.get("count") is None


async def test_a_commit_after_a_rebalance_uses_the_new_generation(
    topics: nexo.AsyncClient, durable: AsyncExactlyOnceContext
) -> None:
    await AsyncTopic("in", server=topics).produce("x", partition=0)
    async with AsyncConsumer("in", "g", server=topics) as first:
        message = await first.poll(5)
        assert message is not None
        async with AsyncConsumer("in", "g", server=topics), durable.begin() as tx:
            await tx.produce("out", "y")
            await tx.commit(message)
        assert (await first.committed(0)).offset == 0  # type: ignore[union-attr]


async def test_transactions_do_not_nest_and_end(durable: AsyncExactlyOnceContext) -> None:
    async with durable.begin() as tx:
        with pytest.raises(Conflict, match="nest"):
            async with durable.begin():
                pass
        with pytest.raises(InvalidInput, match="no delivered message"):
            await tx.commit(5)
    with pytest.raises(Conflict, match="not open"):
        await tx.produce("out", 1)


# -- state


async def test_state_is_read_written_and_deleted(context: AsyncExactlyOnceContext) -> None:
    assert await context.get("k") is None
    assert await context.get("k", default=7) == 7
    await context.put("k", {"n": 1, "raw": b"\x00"})
    assert await context.get("k") == {"n": 1, "raw": b"\x00"}
    await context.delete("k")
    assert await context.get("k") is None
    with pytest.raises(InvalidInput):
        await context.put("", 1)
    with pytest.raises(InvalidInput, match="stored"):
        await context.put("k", object())


async def test_a_transaction_sees_its_own_writes_and_others_do_not(
    context: AsyncExactlyOnceContext,
) -> None:
    await context.put("n", 1)
    seen = []

    async def look() -> None:
        seen.append(await context.get("n"))

    async def fail(tx: AsyncOnceTransaction) -> None:
        await tx.put("n", 2)
        assert await tx.get("n") == 2
        assert await context.get("n") == 2  # the context follows the transaction
        await outside(look)
        raise Boom

    with pytest.raises(Boom):
        await context.transaction(fail)
    assert seen == [1]
    assert await context.get("n") == 1


async def outside(work: Callable[[], Any]) -> None:
    """In a task that does not run in the caller's transaction."""
    await asyncio.get_running_loop().create_task(work(), context=Context())


async def test_two_transactions_on_one_key_never_lose_an_update(
    context: AsyncExactlyOnceContext,
) -> None:
    async def increment() -> None:
        while True:
            try:
                async with context.begin() as tx:
                    count = await tx.get("count", 0)
                    await asyncio.sleep(0)
                    await tx.put("count", count + 1)
                return
            except TransactionAborted:
                continue

    await asyncio.gather(*[increment() for _ in range(12)])
    assert await context.get("count") == 12


# -- process_once


async def test_an_event_is_processed_once_and_its_result_kept(
    context: AsyncExactlyOnceContext,
) -> None:
    runs = []

    async def charge() -> dict[str, Any]:
        runs.append(1)
        await context.put("charged", True)
        return {"id": 7, "raw": b"x"}

    assert await context.process_once("event-1", charge) == {"id": 7, "raw": b"x"}
    assert await context.process_once("event-1", charge) == {"id": 7, "raw": b"x"}
    assert len(runs) == 1
    assert await context.get("charged") is True
    assert await context.is_processed("event-1")
    assert not await context.is_processed("event-2")
    assert await context.process_once("none", lambda: None) is None
    assert await context.process_once("none", lambda: runs.append(1)) is None
    assert len(runs) == 1


async def test_the_result_is_the_same_every_time(context: AsyncExactlyOnceContext) -> None:
    """SPEC H3."""
    for _ in range(2):
        assert await context.process_once("e", lambda: (1, {"a": (2,)})) == [1, {"a": [2]}]


@pytest.mark.parametrize("timeout", [float("inf"), float("nan"), "x", -1, 0, 901])
async def test_a_timeout_that_makes_no_sense_is_refused(
    context: AsyncExactlyOnceContext, topics: nexo.AsyncClient, timeout: Any
) -> None:
    """SPEC H1, H3."""
    with pytest.raises(InvalidInput):
        await context.transaction(lambda tx: None, timeout=timeout)
    with pytest.raises(InvalidInput):
        topics.transaction(timeout=timeout)


async def test_what_cannot_be_a_name_an_epoch_or_work_is_refused(
    context: AsyncExactlyOnceContext,
) -> None:
    """SPEC H3."""
    for bad in (7, "\ud800", None, b"e"):
        for call in (context.get, context.delete, context.is_processed):
            with pytest.raises(InvalidInput):
                await call(bad)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput):
            await context.process_once(bad, lambda: 1)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput):
            await context.put(bad, 1)  # type: ignore[arg-type]
    for epoch in ("x", -1, None, 1.5, 2**70):
        with pytest.raises(InvalidInput, match="epoch"):
            await context.on_barrier(epoch)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="function"):
        await context.process_once("e", 7)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="function"):
        await context.transaction(7)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="ttl True"):
        AsyncExactlyOnceContext("memory://", ttl=True)


async def test_callers_at_the_same_time_share_one_run(context: AsyncExactlyOnceContext) -> None:
    runs = []
    go = asyncio.Event()

    async def work() -> int:
        runs.append(1)
        await go.wait()
        return 42

    callers = [asyncio.ensure_future(context.process_once("e", work)) for _ in range(10)]
    await asyncio.sleep(QUICK_S)
    go.set()
    assert await asyncio.gather(*callers) == [42] * 10
    assert len(runs) == 1


async def test_a_failure_leaves_nothing_and_allows_another_try(
    context: AsyncExactlyOnceContext,
) -> None:
    async def fail() -> None:
        await context.put("k", "half")
        raise Boom

    with pytest.raises(Boom):
        await context.process_once("e", fail)
    assert await context.get("k") is None
    assert not await context.is_processed("e")
    assert await context.process_once("e", lambda: "second") == "second"


async def test_results_expire(
    context: AsyncExactlyOnceContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await context.process_once("e", lambda: 1, ttl="10s") == 1
    later = once_module.now_ms() + 11_000
    monkeypatch.setattr(context_module, "now_ms", lambda: later)
    assert await context.process_once("e", lambda: 2, ttl="10s") == 2
    for ttl in ("2h", "0s"):
        with pytest.raises(InvalidInput, match="ttl"):
            await context.process_once("e", lambda: 3, ttl=ttl)


async def test_two_processes_take_effect_once(topics: nexo.AsyncClient) -> None:
    one = AsyncExactlyOnceContext(topics, name="app")
    two = AsyncExactlyOnceContext(topics, name="app")
    both = asyncio.Barrier(2)

    async def process(context: AsyncExactlyOnceContext) -> Any:
        async def work() -> str:
            async with asyncio.timeout(5):
                await both.wait()  # both have begun before either ends
            await context.emit("effect", topic="out")
            return "result"

        return await context.process_once("e", work)

    results = await asyncio.gather(process(one), process(two))
    assert list(results) == ["result", "result"]
    assert len(await one.pending()) == 1


# -- outbox


async def test_the_outbox_delivers_in_order_and_once(
    topics: nexo.AsyncClient, durable: AsyncExactlyOnceContext
) -> None:
    for number in range(250):
        async with durable.begin() as tx:
            await tx.emit(number, topic="out", key="k")

    async def fail(tx: AsyncOnceTransaction) -> None:
        await tx.emit("never", topic="out")
        raise Boom

    with pytest.raises(Boom):
        await durable.transaction(fail)
    assert len(await durable.pending()) == 250
    again = AsyncExactlyOnceContext(topics, name="app")
    counts = await asyncio.gather(durable.flush(), again.flush(), return_exceptions=True)
    assert any(count == 250 for count in counts)
    await durable.flush()
    assert await durable.pending() == []
    assert await all_values(topics, "out") == list(range(250))


async def test_what_cannot_be_delivered_stays_in_order() -> None:
    delivered: list[Any] = []
    broken = True

    async def deliver(event: OutboxEvent) -> None:
        if broken and event.value == 2:
            raise Boom
        delivered.append(event.value)

    async with AsyncExactlyOnceContext("memory://", deliver=deliver) as context:
        for number in range(4):
            await context.emit(number)
        with pytest.raises(Boom):
            await context.flush()
        assert delivered == [0, 1]
        assert [event.value for event in await context.pending()] == [2, 3]
        broken = False
        assert await context.flush() == 2
        assert delivered == [0, 1, 2, 3]


async def test_an_event_needs_somewhere_to_go(context: AsyncExactlyOnceContext) -> None:
    with pytest.raises(InvalidInput, match="topic"):
        await context.emit("x")


# -- barriers and checkpoints


async def test_a_barrier_flushes_and_takes_a_checkpoint_once(
    context: AsyncExactlyOnceContext,
) -> None:
    assert await context.epoch() == 0
    await context.put("n", 1)
    await context.emit("x", topic="out")
    assert await context.on_barrier(3)
    assert await context.pending() == []
    assert await context.epoch() == 3
    assert not await context.on_barrier(3)
    assert not await context.on_barrier(2)
    await context.put("n", 2)
    assert (await context.restore()).epoch == 3
    assert await context.get("n") == 1


async def test_a_checkpoint_brings_everything_back(context: AsyncExactlyOnceContext) -> None:
    await context.put("a", 1)
    await context.put("b", [1, 2])
    await context.process_once("e1", lambda: "one")
    await context.emit("first", topic="out")
    await context.emit("second", topic="out")
    kept = await context.checkpoint()
    assert kept.state == {"a": 1, "b": [1, 2]}

    await context.put("a", 99)
    await context.delete("b")
    await context.put("c", 3)
    await context.process_once("e2", lambda: "two")
    await context.flush()

    await context.restore(kept)
    assert [await context.get(key) for key in "abc"] == [1, [1, 2], None]
    assert await context.is_processed("e1")
    assert not await context.is_processed("e2")
    assert [event.value for event in await context.pending()] == ["first", "second"]
    await context.put("a", 5)
    await context.restore()  # the stored one is the same
    assert await context.get("a") == 1


async def test_there_must_be_a_checkpoint_to_restore(context: AsyncExactlyOnceContext) -> None:
    with pytest.raises(InvalidInput, match="no checkpoint"):
        await context.restore()
    await context.restore(Checkpoint(0, {"given": 1}))
    assert await context.get("given") == 1


# -- what outlives the process


async def test_everything_outlives_the_server(tmp_path: Path) -> None:
    server = Server(data_dir=tmp_path / "nexo")
    server.start()
    runs = []
    try:
        async with nexo.AsyncClient(server.url) as client:
            await AsyncAdminClient(client).create_topic("out", 2)
            context = AsyncExactlyOnceContext(client, name="app")
            await context.put("k", "v")
            await context.process_once("e", lambda: runs.append(1) or "r")  # type: ignore[func-returns-value]
            await context.emit("event", topic="out")
            await context.checkpoint()
        await asyncio.to_thread(server.crash)
        await asyncio.to_thread(server.start)
        async with nexo.AsyncClient(server.url) as client:
            context = AsyncExactlyOnceContext(client, name="app")
            assert await context.get("k") == "v"
            assert await context.process_once("e", lambda: runs.append(1)) == "r"
            assert runs == [1]
            assert await context.flush() == 1
            assert (await context.restore()).state == {"k": "v"}
    finally:
        server.close()


async def test_contexts_of_other_names_keep_apart(topics: nexo.AsyncClient) -> None:
    one = AsyncExactlyOnceContext(topics, name="one")
    two = AsyncExactlyOnceContext(topics, name="two")
    await one.put("k", 1)
    assert await two.get("k") is None
    async with one.begin():
        assert await two.get("k") is None
        with pytest.raises(Conflict, match="nest"):
            await two.put("k", 2)


async def test_a_test_can_look_into_a_context_in_memory() -> None:
    async with AsyncExactlyOnceContext("memory://") as context:
        async with context.begin() as tx:
            await tx.produce("out", "value", key="k")
        assert isinstance(context.ledger, MemoryLedger)
        (record,) = context.ledger.produced["out"]
        assert (record.value, record.key) == ("value", "k")
    with pytest.raises(InvalidOption, match="ttl"):
        AsyncExactlyOnceContext("memory://", ttl="0s")
