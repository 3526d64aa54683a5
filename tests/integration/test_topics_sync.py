"""Topics with threads: the same API without await (SPEC K1)."""

from __future__ import annotations

import threading
import time
from collections import Counter
from itertools import islice
from typing import Any

import pytest

import nexo
from nexo.errors import ClientClosed, NotFound, RequestTimeout
from nexo.model import Broker
from nexo.protocol.ops import Op
from nexo.topics import (
    AdminClient,
    Consumer,
    ConsumerGroup,
    ExactlyOnceContext,
    OnceTransaction,
    Producer,
    Rebalance,
    Topic,
)
from tests.timing import wait_until

WAIT_S = 60.0


def test_messages_are_produced_consumed_and_committed(client: nexo.Client) -> None:
    AdminClient(client).create_topic("t", 2)
    with Producer(server=client, compression="gzip") as producer:
        sent = [producer.send("t", i, key=f"k{i}") for i in range(300)]
        assert sent[-1].result(WAIT_S).topic == "t"
    with Consumer("t", "g", server=client) as consumer:
        assert sorted(m.value for m in islice(consumer, 300)) == list(range(300))
    with Consumer("t", "g", server=client) as consumer:
        assert consumer.poll(0.05) is None
        consumer.seek_to_beginning()
        assert len(consumer.poll_batch(timeout=WAIT_S)) == 100


def test_threads_share_a_producer(client: nexo.Client) -> None:
    AdminClient(client).create_topic("t", 3)
    with Producer(server=client, batch_size=7, linger_ms=1) as producer:

        def send(thread: int) -> None:
            for number in range(100):
                producer.send("t", [thread, number], key=f"{thread}")

        threads = [threading.Thread(target=send, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    with Consumer("t", "g", server=client) as consumer:
        found = [m.value for m in islice(consumer, 800)]
    for number in range(8):
        assert [n for t, n in found if t == number] == list(range(100))


def test_a_bad_send_fails_alone(client: nexo.Client) -> None:
    """SPEC G3."""

    def broken(key: bytes, count: int) -> int:
        raise ZeroDivisionError

    AdminClient(client).create_topic("t", 2)
    with Producer(server=client, partitioner=broken) as producer:
        for _ in range(2):  # before and after the topic's partitions are known
            with pytest.raises(ZeroDivisionError):
                producer.send("t", 1, key="k").result(WAIT_S)
        producer.flush()
        assert producer.send("t", 1, partition=1).result(WAIT_S).partition == 1


def test_topics_and_state(client: nexo.Client) -> None:
    topic: Topic[Any] = Topic("users", compaction=True, partitions=2, server=client)
    topic.produce_batch([{"key": f"u{i % 3}", "value": i} for i in range(9)])
    assert topic.get("u1") == 7
    assert topic.read_current_state() == {"u0": 6, "u1": 7, "u2": 8}
    topic.close()


def test_a_group_rebalances_between_threads(client: nexo.Client) -> None:
    AdminClient(client).create_topic("t", 8)
    told: list[Rebalance] = []
    with ConsumerGroup("g", topics="t", server=client) as group:
        group.on("rebalance", told.append)
        first, second = group.join(), group.join()
        wait_until(lambda: len(first.assignment) == 4 and len(second.assignment) == 4)
        wait_until(
            lambda: len(told) >= 3
        )  # the handler is called after the change, by another thread
        assert [e.kind for e in told] == ["assigned", "revoked", "assigned"]
        assert (group.describe()).leader == first.member_id


def test_threads_work_through_a_storm_without_repeats(client: nexo.Client) -> None:
    AdminClient(client).create_topic("t", 4)
    seen: Counter[int] = Counter()
    lock = threading.Lock()
    with ConsumerGroup("g", topics="t", server=client) as group:
        with Producer(server=client) as producer:
            for number in range(400):
                producer.send("t", number)

        def work(consumer: Consumer[int]) -> None:
            for message in consumer:
                time.sleep(0.001)
                with lock:
                    seen[message.value] += 1

        running = []
        for turn in range(10):
            consumer = group.join()
            thread = threading.Thread(target=work, args=(consumer,))
            thread.start()
            running.append((consumer, thread))
            if turn % 2:
                leaver, gone = running.pop(0)
                time.sleep(0.02)
                leaver.close()
                gone.join(WAIT_S)
        wait_until(lambda: len(seen) == 400)
        for consumer, thread in running:
            consumer.close()
            thread.join(WAIT_S)
    assert set(seen.values()) == {1}


def test_exactly_once(client: nexo.Client) -> None:
    admin = AdminClient(client)
    admin.create_topic("in")
    admin.create_topic("out")
    Topic("in", server=client).produce(1)
    context = ExactlyOnceContext(client, name="app")
    with Consumer("in", "g", server=client) as consumer:

        def step(tx: OnceTransaction) -> None:
            message = consumer.poll(WAIT_S)
            assert message is not None
            tx.produce("out", message.value + 1)
            tx.put("count", tx.get("count", 0) + 1)
            tx.commit(message)
            if tx.get("fail", True):
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            context.transaction(step)
        context.put("fail", False)
        context.transaction(step)
        Topic("in", server=client).produce(5)
        later = consumer.poll(WAIT_S)
        assert later is not None
        with client.transaction() as plain:
            plain.ack(later)
        assert consumer.committed(later.partition) is not None
    assert context.get("count") == 1
    assert [r.value for r in client.stream("out").read()] == [2]


def test_threads_share_one_run_of_an_event() -> None:
    context = ExactlyOnceContext("memory://")
    runs: list[int] = []
    results: list[Any] = []

    def work() -> str:
        runs.append(1)
        time.sleep(0.05)
        return "r"

    def call() -> None:
        results.append(context.process_once("e", work))

    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == ["r"] * 8
    assert len(runs) == 1


def test_outbox_and_checkpoints(client: nexo.Client) -> None:
    AdminClient(client).create_topic("out")
    with ExactlyOnceContext(client, name="app") as context:
        context.put("k", 1)
        context.emit("event", topic="out")
        assert context.on_barrier(1)
        context.put("k", 2)
        context.restore()
        assert context.get("k") == 1
    assert [r.value for r in client.stream("out").read()] == ["event"]


def test_a_producer_closed_after_its_client_fails_at_once(nexo_url: str) -> None:
    """SPEC G3."""
    client = nexo.connect(nexo_url)
    client.stream("t").create()
    producer = Producer(server=client, linger_ms=60_000, delivery_timeout=30)
    sent = producer.send("t", 1)
    client.close()
    began_s = time.monotonic()
    with pytest.raises(ClientClosed, match="close the producer first"):
        producer.close()
    assert time.monotonic() - began_s < 10
    with pytest.raises(ClientClosed, match="close the producer first"):
        sent.result()


def test_a_commit_whose_reply_is_lost_is_asked_for(
    client: nexo.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SPEC H1, H2: what was committed is not handed out again."""
    client.stream("out").create()
    client.stream("in").create().publish_many([0, 1])
    link = client.link(Broker.STREAM).duplex()
    call = link.call

    def deaf(op: int, *parts: bytes, timeout_s: float | None = None) -> Any:
        reply = call(op, *parts, timeout_s=timeout_s)
        if op == Op.S_TX_COMMIT:
            raise RequestTimeout("no reply")
        return reply

    monkeypatch.setattr(link, "call", deaf)
    with Consumer("in", "g", server=client) as consumer:
        for number in range(2):
            message = consumer.poll(5)
            assert message is not None
            assert message.value == number
            with client.transaction() as tx:
                tx.publish("out", message.value)
                tx.ack(message)
    assert [record.value for record in client.stream("out").read()] == [0, 1]


def test_a_failure_that_nobody_asks_for_is_raised_by_close(client: nexo.Client) -> None:
    """SPEC G3."""
    producer = Producer(server=client, linger_ms=0)
    unasked, asked = producer.send("none", 1), producer.send("gone", 1)
    with pytest.raises(NotFound, match="'gone'"):
        asked.result(WAIT_S)
    with pytest.raises(NotFound, match="'none'"):
        producer.close()
    assert unasked.done()


def test_a_delivery_that_takes_long_can_be_asked_again(client: nexo.Client) -> None:  # SPEC G3
    AdminClient(client).create_topic("t")
    with Producer(server=client, linger_ms=60_000) as producer:
        delivery = producer.send("t", 1)
        with pytest.raises(RequestTimeout, match=r"the message was not stored within 0.01 s"):
            delivery.result(timeout=0.01)
        producer.flush()
        assert delivery.result(timeout=0).offset == 0
