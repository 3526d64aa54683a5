"""Clients that nobody closed: they say so, and leave no thread and no connection behind."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from queue import Queue
from typing import Any
from weakref import ref

import pytest

import nexo
from nexo import testing
from nexo.client._sync.pubsub.subscription import Subscription
from nexo.model import Broker
from tests.timing import wait_until


def collected(look: Callable[[], bool]) -> Callable[[], bool]:
    """Collect garbage before each look."""
    return lambda: gc.collect() >= 0 and look()


def threads() -> set[threading.Thread]:
    """Those that read from the pub/sub broker now, of all tests so far."""
    return {each for each in threading.enumerate() if each.name == "nexo-pubsub"}


def connections(observer: nexo.Client, broker: Broker) -> int:
    observer.info()  # its own connections are open then
    return int(getattr(observer.info(), broker.label).connections)


def dropped(work: Callable[[nexo.Client], Any], url: str) -> Any:
    """What ``work`` made of a client that is garbage afterwards."""
    client = nexo.connect(url)
    made = work(client)
    with pytest.warns(ResourceWarning, match=r"was not closed: `client\.close\(\)`, or use it in"):
        del client
    gc.collect()
    return made


def test_a_dropped_client_leaves_no_connection(nexo_server: testing.Server) -> None:  # SPEC K1
    with nexo.connect(nexo_server.url) as observer:
        before = connections(observer, Broker.QUEUE)
        dropped(lambda client: client.queues() and None, nexo_server.url)
        wait_until(collected(lambda: connections(observer, Broker.QUEUE) == before))


def test_a_dropped_subscription_leaves_no_thread(nexo_server: testing.Server) -> None:  # SPEC K1
    with nexo.connect(nexo_server.url) as observer:
        before, others = connections(observer, Broker.PUBSUB), threads()

        def subscribe(client: nexo.Client) -> None:
            client.pubsub.subscribe("t")
            assert threads() - others

        dropped(subscribe, nexo_server.url)
        wait_until(collected(lambda: not threads() - others))
        wait_until(collected(lambda: connections(observer, Broker.PUBSUB) == before))


def test_a_dropped_client_no_longer_looks_for_a_server_that_is_down() -> None:  # SPEC A5, K1
    others = threads()
    with testing.server() as url:
        client = nexo.connect(url)
        subscription = client.pubsub.subscribe("t")
    while client.link(Broker.PUBSUB).duplex().up:
        pass
    with pytest.warns(ResourceWarning, match="was not closed"):
        del client, subscription
    gc.collect()
    wait_until(collected(lambda: not threads() - others))


def test_handlers_go_on_without_their_client(nexo_server: testing.Server) -> None:  # SPEC K1
    got: Queue[object] = Queue()

    def start(client: nexo.Client) -> list[Any]:
        client.stream("s").create()
        client.queue("q").create()
        return [
            client.pubsub.subscribe("t", lambda message: got.put(message.value)),
            client.queue("q").subscribe(lambda job: got.put(job.value)),
            client.stream("s").subscribe("g", lambda record: got.put(record.value)),
        ]

    running = dropped(start, nexo_server.url)
    with nexo.connect(nexo_server.url) as client:
        for value in range(3):
            client.pubsub.publish("t", value)
            assert got.get(timeout=30) == value
            client.queue("q").push(value)
            assert got.get(timeout=30) == value
            client.stream("s").publish(value)
            assert got.get(timeout=30) == value
    for each in running:
        each.close()


def test_handlers_that_nobody_holds_go_on_too(nexo_server: testing.Server) -> None:  # SPEC K1
    got: Queue[object] = Queue()

    def start(client: nexo.Client) -> ref[Subscription[Any]]:
        return ref(client.pubsub.subscribe("t", lambda message: got.put(message.value)))

    found = dropped(start, nexo_server.url)
    with nexo.connect(nexo_server.url) as client:
        gc.collect()
        client.pubsub.publish("t", "still there")
        assert got.get(timeout=30) == "still there"
    found().close()
    wait_until(collected(lambda: found() is None))


def test_a_queue_works_without_its_client(nexo_server: testing.Server) -> None:  # SPEC K1
    queue = dropped(lambda client: client.queue("q").create(), nexo_server.url)
    queue.push(1)
    assert [job.value for job in queue.pop(1)] == [1]


def test_a_closed_client_has_nothing_to_say(nexo_server: testing.Server) -> None:  # SPEC K1
    with nexo.connect(nexo_server.url) as client:
        client.pubsub.subscribe("t")
    unused = nexo.Client(nexo_server.url)
    del client, unused
    gc.collect()  # a warning would be an error


async def test_a_dropped_async_client_says_so(nexo_server: testing.Server) -> None:  # SPEC K1
    client = await nexo.connect_async(nexo_server.url)
    links = [client.link(broker) for broker in Broker]
    with pytest.warns(ResourceWarning, match=r"`await client\.close\(\)`, or .* `async with"):
        del client
    for link in links:
        await link.close()
    async with nexo.AsyncClient(nexo_server.url) as closed:
        await closed.ping()
    del closed
    gc.collect()
