"""Each code block of three of the five documents, typed in its Python form, does what it says.

A test is a block, or blocks that belong together; names, numbers and comments are the documents'.
The two on streams (000 and 001) are in `test_stream_documents`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import nexo.topics
from nexo import testing
from nexo.errors import InvalidOption
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
from nexo.xstreams import LocalStreamBroker, NexoStreamBroker, StreamBroker
from tests.timing import wait_until


@pytest.fixture
def client() -> Iterator[nexo.Client]:
    with testing.server() as url, nexo.connect(url) as client:
        yield client


def collect(into: list[Any]) -> Callable[[Any], None]:
    """A handler of the documents' form, which gets the value."""
    return nexo.by_value(into.append)


# -- 002: the four brokers ------------------------------------------------------------------


def test_connect_once_and_use_all_four(client: nexo.Client) -> None:  # SPEC A3
    client.store.map.set("user:1", {"name": "Max", "role": "admin"})
    assert client.store.map.get("user:1") == {"name": "Max", "role": "admin"}
    client.store.map.delete("user:1")
    assert client.store.map.get("user:1") is None

    alive: list[Any] = []
    events: list[Any] = []
    beats = client.pubsub("edge/+/hb").subscribe(alive.append)
    of_42 = client.pubsub("edge/42/#").subscribe(events.append)
    client.pubsub("edge/42/hb").publish({"ts": 1})
    wait_until(lambda: alive == [{"ts": 1}] and events == [{"ts": 1}])

    mails: list[Any] = []
    mail_q = client.queue("emails").create()
    mail_q.push({"to": "test@test.com"})
    sent = mail_q.subscribe(collect(mails))
    wait_until(lambda: mails == [{"to": "test@test.com"}])

    seen: list[Any] = []
    stream = client.stream("user-events").create()
    stream.publish({"type": "login", "userId": "u1"})
    analytics = stream.subscribe("analytics", collect(seen))
    wait_until(lambda: seen == [{"type": "login", "userId": "u1"}])
    for each in (beats, of_42, sent, analytics):
        each.close()


def test_every_broker_takes_bytes_as_they_are(client: nexo.Client) -> None:  # SPEC A4
    chunk = bytes(1024 * 1024)
    client.store.map.set("blob", chunk)
    assert client.store.map.get("blob") == chunk
    with client.pubsub.subscribe("edge/42/video") as video:
        client.pubsub("edge/42/video").publish(chunk)
        assert video.get(timeout=5).value == chunk
    client.stream("video-archive").create().publish(chunk)
    assert client.stream("video-archive").read(0)[0].value == chunk
    client.queue("video-processing").create().push(chunk)
    assert client.queue("video-processing").pop(wait=5).values() == [chunk]


def test_options_in_a_dict_are_refused_by_name_and_change_nothing(client: nexo.Client) -> None:
    mails: Any = client.queue("mails").create()
    events: Any = client.stream("events").create()
    anything: Any = client
    topics: Any = nexo.topics
    calls: list[tuple[str, Callable[[], Any]]] = [
        ("publish\\(value, key='u1'\\)", lambda: events.publish("v", {"key": "u1"})),
        ("create\\(partitions=4\\)", lambda: anything.stream("new").create({"partitions": 4})),
        ("subscribe\\(group", lambda: events.subscribe("g", print, {"batchSize": 5})),
        ("push\\(value, priority=5\\)", lambda: mails.push("v", {"priority": 5})),
        ("create\\(max_retries=3\\)", lambda: anything.queue("new").create({"maxRetries": 3})),
        ("subscribe\\(handler", lambda: mails.subscribe(print, {"batchSize": 5})),
        ("publish\\(value, retain", lambda: anything.pubsub("t").publish(1, {"retain": True})),
        ("publish\\(topic, value", lambda: anything.pubsub.publish("t", 1, {"retain": True})),
        ("set\\(key, value", lambda: anything.store.map.set("k", 1, {"ttl": 60})),
        ("Topic\\(name", lambda: topics.Topic("new", {"partitions": 8})),
        ("Producer\\(compression", lambda: topics.Producer({"compression": "gzip"})),
        ("Consumer\\(topic", lambda: topics.Consumer("orders", {"groupId": "g"})),
        ("ConsumerGroup\\(group_id", lambda: topics.ConsumerGroup("g", {"topics": ["orders"]})),
    ]
    for example, call in calls:
        with pytest.raises(InvalidOption, match=f"options are keywords here, as in {example}"):
            call()
    assert (client.streams(), client.queues(), events.groups()) == (["events"], ["mails"], [])
    assert (events.read(0), mails.info().waiting) == ([], 0)


# -- 003: topics ------------------------------------------------------------------------------


def test_a_topic_takes_messages_and_batches(client: nexo.Client) -> None:  # SPEC G2
    orders: Topic[Any] = Topic(
        "orders", partitions=8, retention="7d", compaction=False, server=client
    )
    placed = orders.produce(
        {
            "key": "order_123",
            "value": {"customerId": "cust_1", "total": 99.99},
            "headers": {"source": "checkout"},
        }
    )
    assert placed.partition == 5  # the documents' own example
    orders.produce_batch(
        [{"key": "order_124", "value": {"n": 1}}, {"key": "order_125", "value": {"n": 2}}]
    )
    record = client.stream("orders").read(5)[0]
    assert (record.key, record.headers) == ("order_123", {"source": "checkout"})
    assert orders.get("order_123") == {"customerId": "cust_1", "total": 99.99}


def test_a_consumer_commits_by_itself_or_when_it_is_asked_to(client: nexo.Client) -> None:
    # SPEC G4, G5
    orders: Topic[Any] = Topic("orders", server=client)
    for number in range(4):
        orders.produce({"key": "k", "value": number})
    with Consumer(
        "orders", "order-processor", auto_commit=True, auto_commit_interval=5, server=client
    ) as consumer:
        consumer.subscribe("orders")
        for message in consumer:
            if message.value == 1:
                break
    with Consumer("orders", "order-processor", auto_commit=False, server=client) as consumer:
        for message in consumer:
            assert message.value == 2  # closing committed the one before
            consumer.commit(message.offset)
            break
    with Consumer("orders", "order-processor", server=client) as consumer:
        assert next(iter(consumer)).value == 3


@pytest.mark.parametrize(
    ("strategy", "split"),
    [("range", [[0, 1, 2, 3], [4, 5, 6, 7]]), ("roundRobin", [[0, 2, 4, 6], [1, 3, 5, 7]])],
)
def test_a_group_hands_out_partitions(
    client: nexo.Client, strategy: Any, split: list[list[int]]
) -> None:  # SPEC G6
    Topic("orders", partitions=8, server=client).produce("x")
    changes: list[Rebalance] = []
    with ConsumerGroup[Any](
        "order-processor", topics=["orders"], rebalance_strategy=strategy, server=client
    ) as group:
        group.on("rebalance", changes.append)
        members = [group.join(), group.join()]
        wait_until(lambda: [[at.partition for at in each.assignment] for each in members] == split)
    assert [change.kind for change in changes][:3] == ["assigned", "revoked", "assigned"]


def test_an_admin_creates_lists_describes_and_deletes(client: nexo.Client) -> None:  # SPEC G1
    admin = AdminClient(client)
    admin.create_topic(
        "events",
        partitions=4,
        replication_factor=1,
        config={"retention.ms": 7 * 24 * 60 * 60 * 1000, "cleanup.policy": "delete"},
    )
    assert admin.list_topics() == ["events"]
    assert len(admin.describe_topic("events").partitions) == 4

    with Producer(
        partitioner="murmur2", compression="gzip", batch_size=100, linger_ms=10, server=client
    ) as producer:
        producer.send("events", {"key": "user_123", "value": {"action": "login"}})
    with Consumer("events", "analytics", server=client) as consumer:
        consumer.seek_to_beginning()
        message = consumer.poll(5)
        assert message is not None
        assert (message.key, message.value) == ("user_123", {"action": "login"})
        consumer.seek_to_end()
        assert consumer.poll(0.1) is None
        consumer.seek({"partition": message.partition, "offset": message.offset})
        again = consumer.poll(5)
        assert again is not None
        assert again.offset == message.offset
    admin.delete_topic("events")
    assert admin.list_topics() == []


def test_all_of_a_transaction_succeeds_or_nothing_does(client: nexo.Client) -> None:  # SPEC H1
    Topic("input", server=client).produce({"key": "k", "value": 20})
    output: Topic[Any] = Topic("output", server=client)
    output.produce({"key": "first", "value": 0})
    with (
        ExactlyOnceContext(client) as context,
        Consumer("input", "g", auto_commit=False, server=client) as consumer,
    ):

        def work(tx: OnceTransaction) -> None:
            message = consumer.poll(5)
            assert message is not None
            tx.produce("output", {"key": message.key, "value": message.value + 1})
            tx.commit(message.offset)

        context.transaction(work)
    assert output.get("k") == 21
    assert [record.key for record in client.stream("output").read(0)] == ["first", "k"]


def test_a_compacted_topic_keeps_the_newest_value_of_each_key(client: nexo.Client) -> None:
    # SPEC I1
    profiles: Topic[Any] = Topic(
        "user-profiles", compaction=True, min_cleanable_dirty_ratio=0.5, server=client
    )
    profiles.produce({"key": "user_1", "value": {"name": "Alice"}})
    profiles.produce({"key": "user_1", "value": {"name": "Alice Smith"}})
    AdminClient(client).compact_topic("user-profiles")
    assert [record.value for record in client.stream("user-profiles").read(0)] == [
        {"name": "Alice Smith"}
    ]
    assert profiles.get("user_1") == {"name": "Alice Smith"}


# -- 004: nexo.xstreams -----------------------------------------------------------------------


@pytest.fixture(params=["local", "nexo"])
def broker(request: pytest.FixtureRequest) -> Iterator[StreamBroker]:
    """The document's promise: another implementation changes nothing else."""
    if request.param == "local":
        with LocalStreamBroker() as broker:
            yield broker
        return
    with testing.server() as url, NexoStreamBroker(url) as durable:
        yield durable


def test_producers_add_and_two_workers_share(broker: StreamBroker) -> None:  # SPEC J2
    broker.xadd("tasks", {"type": "email", "to": "user@example.com", "subject": "Welcome!"})
    broker.xadd("tasks", {"type": "sms", "to": "+1234567890", "message": "Your code is 1234"})
    broker.create_group("tasks", "workers", "0")
    messages = broker.xreadgroup("workers", "worker-1", "tasks", 1)
    others = broker.xreadgroup("workers", "worker-2", "tasks", 10)
    assert [message.data["type"] for message in (*messages, *others)] == ["email", "sms"]
    assert broker.xack("tasks", "workers", [message.id for message in messages]) == 1
    assert broker.xpending("tasks", "workers", "worker-1") == []
    assert len(broker.xpending("tasks", "workers", "worker-2")) == 1


def test_a_read_blocks_as_long_as_it_is_told(broker: StreamBroker) -> None:  # SPEC J4
    broker.create_group("tasks", "workers", "0")
    assert broker.xreadgroup("workers", "worker-1", "tasks", 10, 0) == []
    began = time.monotonic()
    assert broker.xreadgroup("workers", "worker-1", "tasks", 1, 200) == []
    assert time.monotonic() - began >= 0.19
    broker.xadd("tasks", {"n": 1})
    assert broker.xreadgroup("workers", "worker-1", "tasks", 10, 5000)[0].data == {"n": 1}


def test_what_a_dead_worker_held_is_claimed(broker: StreamBroker) -> None:  # SPEC J2
    broker.xadd("tasks", {"n": 1})
    broker.create_group("tasks", "workers", "0")
    broker.xreadgroup("workers", "worker-1", "tasks", 10)
    assert broker.xautoclaim("tasks", "workers", "worker-2", 30000, 10) == []
    claimed = broker.xautoclaim("tasks", "workers", "worker-2", 0, 10)
    assert [message.data for message in claimed] == [{"n": 1}]
    assert broker.xack("tasks", "workers", [message.id for message in claimed]) == 1


def test_a_stream_is_watched_and_trimmed(broker: StreamBroker) -> None:  # SPEC J2
    for number in range(1010):
        broker.xadd("tasks", {"n": number})
    broker.create_group("tasks", "workers", "0")
    broker.xreadgroup("workers", "worker-1", "tasks", 10)
    assert broker.xlen("tasks") == 1010
    (group,) = broker.get_group_info("tasks")
    assert (group.name, group.total_pending) == ("workers", 10)
    (consumer,) = group.consumers
    assert (consumer.name, consumer.pending) == ("worker-1", 10)
    assert len(broker.xpending("tasks", "workers", "worker-1")) == 10
    assert int(broker.xtrim("tasks", 1000)) == 10
    assert broker.xlen("tasks") == 1000


def test_several_groups_see_events_from_now_on(broker: StreamBroker) -> None:  # SPEC J2
    broker.xadd("events", {"type": "before"})
    groups = ("analytics-processors", "notification-senders", "audit-loggers")
    for group in groups:
        broker.create_group("events", group, "$")
    broker.xadd("events", {"type": "signed-up", "payload": {"user": 1}})
    for group in groups:
        (event,) = broker.xreadgroup(group, "one", "events", 10)
        assert event.data == {"type": "signed-up", "payload": {"user": 1}}


def test_a_job_that_fails_is_claimed_later(broker: StreamBroker) -> None:  # SPEC J5
    broker.create_group("background-jobs", "job-processors", "$")
    broker.xadd("background-jobs", {"type": "report", "data": {"month": 1}})
    (message,) = broker.xreadgroup("job-processors", "worker-1", "background-jobs", 1, 5000)
    assert message.data["type"] == "report"
    # the handler raised, so it is not acknowledged
    again = broker.xautoclaim("background-jobs", "job-processors", "worker-2", 0, 10)
    assert [each.id for each in again] == [message.id]
