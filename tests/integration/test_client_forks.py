"""Clients in a process that was forked from the one that made them (SPEC A6)."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import suppress

import pytest

import nexo
from nexo import testing
from nexo.topics import AdminClient, Consumer, Producer

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

LIMIT_S = 20


def forked(work: Callable[[], object]) -> Callable[[], str]:
    """Run ``work`` in a child; returns what waits for what it returned or raised, as text."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        signal.alarm(LIMIT_S)  # one that hangs must not outlive the test
        try:
            said = str(work())
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)

    def result() -> str:
        with os.fdopen(reading, closefd=True) as pipe:
            said = pipe.read()
        assert os.waitpid(pid, 0)[1] == 0, "the child hung"
        return said

    return result


def test_parent_and_child_get_their_own_replies(client: nexo.Client) -> None:
    def read(who: str) -> set[object]:
        return {client.store.get(who) for _ in range(500)}

    client.store.mset({"parent": "of the parent", "child": "of the child"})
    child = forked(lambda: read("child"))
    assert read("parent") == {"of the parent"}
    assert child() == "{'of the child'}"


def test_a_child_has_subscriptions_of_its_own(client: nexo.Client) -> None:
    def subscribe() -> object:
        with client.pubsub.subscribe("child") as mine:
            client.pubsub.publish("child", "for the child")
            return mine.get(LIMIT_S).value

    ours = client.pubsub.subscribe("#")
    refused = "Conflict: the subscription was made before this process was forked: make one here"
    assert forked(lambda: ours.get(LIMIT_S))() == refused
    assert forked(lambda: list(ours))() == refused
    assert forked(subscribe)() == "for the child"
    assert ours.get(LIMIT_S).value == "for the child"


def test_closing_in_the_child_closes_nothing_of_the_parent(client: nexo.Client) -> None:
    subscription = client.pubsub.subscribe("a")
    admin = AdminClient(client)
    admin.create_topic("topic")
    with Consumer("topic", group_id="group", server=client) as consumer:
        consumer.join()
        assert forked(client.close)() == "None"
        assert admin.describe_group("group").members == (consumer.member_id,)
    assert client.pubsub.publish("a", 1) == 1
    assert subscription.get(LIMIT_S).value == 1


def test_a_consumer_is_not_shared_with_a_child(client: nexo.Client) -> None:
    stream = client.stream("records").create()
    stream.publish_many(["first", "second"])
    consumer = stream.consume("group")
    record = next(consumer)
    assert "made before this process was forked" in forked(lambda: next(consumer))()
    assert "made before this process was forked" in forked(record.ack)()
    record.ack()
    next(consumer).ack()
    assert stream.group("group").lag() == 0


def test_topics_are_produced_and_consumed_by_whom_it_was_begun(client: nexo.Client) -> None:
    AdminClient(client).create_topic("topic")
    producer = Producer(server=client, linger_ms=0)
    producer.send("topic", "before").result(LIMIT_S)
    refused = forked(lambda: producer.send("topic", "lost?").result(LIMIT_S))()
    assert refused == (
        "Conflict: the producer was made before this process was forked: make one here"
    )
    assert forked(producer.close)() == "None"
    producer.send("topic", "after").result(LIMIT_S)
    producer.close()

    consumer = Consumer("topic", group_id="group", server=client)
    message = consumer.poll(LIMIT_S)
    assert message is not None
    assert message.value == "before"
    assert "made before this process was forked" in forked(lambda: consumer.poll(1))()
    message = consumer.poll(LIMIT_S)
    assert message is not None
    assert message.value == "after"
    consumer.close()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_end_of_a_process_is_noticed_though_its_child_goes_on(
    url: str, asynchronous: bool
) -> None:
    """SPEC C5, D8: an inherited connection does not stay open."""

    def sync_parent() -> None:
        doomed = nexo.connect(url)
        doomed.pubsub.will("status", "gone")
        live_on()

    async def async_parent() -> None:
        doomed = await nexo.connect_async(url)
        await doomed.pubsub.will("status", "gone")
        live_on()

    def live_on() -> None:
        os.close(ended)
        if os.fork():
            os._exit(0)
        os.read(end, 1)
        os._exit(0)

    end, ended = os.pipe()
    with nexo.connect(url) as client, client.pubsub.subscribe("status") as watcher:
        pid = os.fork()
        if not pid:
            signal.alarm(LIMIT_S)
            with suppress(BaseException):
                asyncio.run(async_parent()) if asynchronous else sync_parent()
            os._exit(1)
        os.close(end)
        assert os.waitpid(pid, 0)[1] == 0
        assert watcher.get(LIMIT_S).value == "gone"
        os.close(ended)


async def test_an_async_client_says_that_it_is_the_parents(
    aclient: nexo.AsyncClient, nexo_server: testing.Server
) -> None:
    await aclient.store.set("key", "value")
    child = forked(lambda: asyncio.run(aclient.store.get("key")))
    assert "belongs to another event loop, or to the process" in await asyncio.to_thread(child)
    assert await aclient.store.get("key") == "value"
