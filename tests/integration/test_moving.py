"""A connection that mixes brokers lives where most of its requests are run (DESIGN §1)."""

from __future__ import annotations

import os
import random
import signal
import socket
import struct
from collections.abc import Iterator
from typing import Any, cast

import pytest

import nexo
from nexo.dialects.nexo.moving import WINDOW
from nexo.model import Broker
from nexo.protocol.ops import Op
from nexo.protocol.values import decode_value
from nexo.testing import Process, process
from tests.integration.classic import DATA, Classic, Refused, text, value
from tests.processes import broker_pids
from tests.timing import wait_until

MANY = 3 * WINDOW
GET, PUSH, PUB, CONSUME = 0x03, 0x11, 0x31, 0x12


@pytest.fixture(scope="module")
def served() -> Iterator[Process]:
    with process(dashboard=False) as running:
        yield running


@pytest.fixture
def classic(served: Process) -> Iterator[Classic]:
    with Classic("127.0.0.1", served.port) as client:
        yield client


def peers(served: Process, broker: Broker) -> list[dict[str, Any]]:
    """The connections of a broker's process."""
    with nexo.Client(served.url) as asking:
        reply = asking.link(broker).call(Op.PEERS, bytes((broker,)))
        return cast("list[dict[str, Any]]", decode_value(reply or b""))


def home(served: Process, client: Classic) -> Broker:
    """The broker in whose process the client's own socket is."""
    name = "{}:{}".format(*client.sock.getsockname()[:2])
    (broker,) = (
        broker
        for broker in Broker
        for row in peers(served, broker)
        if row["name"] == name and not row["internal"]
    )
    return broker


def publish(client: Classic, stream: str, count: int) -> list[int]:
    return [client.s_pub(stream, n) for n in range(count)]


def test_it_moves_to_where_its_requests_are_run(served: Process, classic: Classic) -> None:
    classic.map_set("home", 1)
    assert home(served, classic) is Broker.STORE
    classic.s_create("moves")
    assert publish(classic, "moves", MANY) == list(range(1, MANY + 1))
    assert home(served, classic) is Broker.STREAM
    assert classic.map_get("home") == 1
    classic.q_create("moves")
    for n in range(MANY):
        classic.q_push("moves", n)
    assert home(served, classic) is Broker.QUEUE
    assert classic.s_pub("moves", "last") == MANY + 1
    for _ in range(MANY):
        classic.map_get("home")
    assert home(served, classic) is Broker.STORE
    assert all(len(peers(served, broker)) <= 3 for broker in Broker), "the others are known again"


def test_one_that_mixes_evenly_stays(served: Process, classic: Classic) -> None:
    classic.s_create("even")
    begins = home(served, classic)
    assert begins is Broker.STREAM
    for n in range(MANY):
        assert classic.s_pub("even", n) == n + 1
        assert classic.map_get("even") is None
    assert home(served, classic) is Broker.STREAM


def test_what_it_held_before_it_is_still_its_own(served: Process, classic: Classic) -> None:
    """SPEC D8: jobs come back when the client ends, not when it moves."""
    classic.q_create("held")
    for n in range(2):
        classic.q_push("held", n)
    (first, _), (_, second) = classic.q_consume("held", batchSize=2, waitMs=0)
    classic.s_create("held")
    publish(classic, "held", MANY)
    assert home(served, classic) is Broker.STREAM
    classic.q_ack("held", first)
    with Classic("127.0.0.1", served.port) as other:
        assert other.q_consume("held", waitMs=0) == []
        classic.sock.shutdown(socket.SHUT_RDWR)
        [(_, job)] = other.q_consume("held", waitMs=30_000)
        assert job == second


def test_a_long_poll_is_answered_where_the_client_is(served: Process, classic: Classic) -> None:
    classic.q_create("polled")
    poll = classic.send(CONSUME, text("polled") + text('{"batchSize": 1, "waitMs": 30000}'))
    classic.s_create("polled")
    publish(classic, "polled", MANY)
    assert home(served, classic) is Broker.STREAM
    with Classic("127.0.0.1", served.port) as other:
        other.q_push("polled", "job")
    status, payload = classic.reply(poll)
    assert (status, payload[:4]) == (DATA, struct.pack(">I", 1))


def test_subscriptions_go_on(served: Process, classic: Classic) -> None:
    classic.sub("news/#")
    assert home(served, classic) is Broker.PUBSUB
    classic.s_create("news")
    publish(classic, "news", MANY)
    assert home(served, classic) is Broker.STREAM
    with Classic("127.0.0.1", served.port) as other:
        other.pub("news/a", 1)
    assert classic.push() == ("news/a", 1)
    classic.pub("news/b", 2)
    assert classic.push() == ("news/b", 2)


def test_whatever_it_mixes_is_answered_once_and_in_order(served: Process) -> None:
    """SPEC A3, through several moves, with bursts in between."""
    with Classic("127.0.0.1", served.port) as client:
        client.s_create("mixed")
        client.q_create("mixed")
        chosen = random.Random(1)
        published = 0
        for _ in range(12):
            op = chosen.choice((GET, PUSH, PUB))
            payload = {
                GET: text("mixed"),
                PUSH: text("mixed") + text("{}") + value("job"),
                PUB: text("mixed") + value("record"),
            }[op]
            for _ in range(2 * WINDOW):
                burst = [client.send(op, payload) for _ in range(chosen.choice((1, 1, 1, 40)))]
                client.arrived.clear()
                replies = [client.reply(each) for each in burst]
                assert client.arrived == burst
                if op == PUB:
                    found = [int.from_bytes(data, "big") for _, data in replies]
                    published += len(found)
                    assert found == list(range(published - len(found) + 1, published + 1))


def test_a_client_with_tls_or_hello_stays(served: Process) -> None:
    """Ours have a connection for each broker anyhow."""
    with nexo.connect(served.url) as client:
        client.store.set("mine", 1)
        link = client.link(Broker.STORE)
        client.stream("mine").create()
        asked = text("mine") + value(1)
        for _ in range(MANY):
            link.call(Op.S_PUB, asked)
        assert any(row["requests"] > MANY for row in peers(served, Broker.STORE))


def test_the_death_of_its_former_process_ends_only_what_waits_there() -> None:
    with process(dashboard=False) as served, Classic("127.0.0.1", served.port) as client:
        client.q_create("former")
        poll = client.send(CONSUME, text("former") + text('{"batchSize": 1, "waitMs": 60000}'))
        client.s_create("former")
        publish(client, "former", MANY)
        assert home(served, client) is Broker.STREAM
        os.kill(broker_pids(served)["queue"], signal.SIGKILL)
        status, payload = client.reply(poll)
        assert status == 1
        assert b"restarting" in payload
        assert client.s_pub("former", "more") == MANY + 1

        def pushes() -> bool:
            try:
                client.q_push("former", 1)
            except Refused:
                return False
            return True

        wait_until(pushes)
