"""Pub/Sub as real processes: kill -9 and a subscriber that never reads (SPEC C3, C4)."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from nexo.client._sync.link.link import Link
from nexo.client._sync.pubsub.pubsub import PubSub
from nexo.client.address import parse_url
from nexo.errors import NexoError
from nexo.model import Broker
from nexo.model.pubsub import Subscribe
from nexo.protocol.frames import FrameKind, Status, frame
from nexo.protocol.hello import Hello, encode_hello
from nexo.protocol.messages import pack
from nexo.protocol.ops import Op
from nexo.testing import Process
from tests.processes import pids

WAIT_S = 30.0


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Process]:
    process = Process(tmp_path / "data", dashboard=False)
    process.start()
    yield process
    process.close()


def connected(served: Process) -> tuple[Link, PubSub]:
    link = Link(parse_url(served.url), Broker.PUBSUB)
    return link, PubSub(link)


@pytest.mark.slow
def test_no_acknowledged_retained_message_is_lost_by_kill_9(served: Process) -> None:
    acknowledged: dict[str, int] = {}  # SPEC C3
    for life in range(3):
        link, pubsub = connected(served)
        for number in range(300):
            topic = f"t/{life}/{number % 50}"
            pubsub.publish(topic, number, retain=True)
            acknowledged[topic] = number
        served.kill()
        with pytest.raises(NexoError):
            pubsub.publish("t/late", 0, retain=True)
        link.close()
        served.start()
        link, pubsub = connected(served)
        with pubsub.subscribe("t/#") as subscription:
            found = [subscription.get(WAIT_S) for _ in acknowledged]
        assert {message.topic: message.value for message in found} == acknowledged
        link.close()


@pytest.mark.slow
def test_a_subscriber_that_never_reads_costs_bounded_memory(served: Process) -> None:
    with socket.create_connection(("127.0.0.1", served.port)) as stalled:  # SPEC C4
        hello = encode_hello(Broker.PUBSUB, Hello("stalled"))
        command = pack(Subscribe("load"))
        stalled.sendall(frame(FrameKind.REQUEST, Op.HELLO, 0, hello))
        stalled.sendall(frame(FrameKind.REQUEST, Op.SUBSCRIBE, 1, command))
        heard = b""
        while not heard.endswith(frame(FrameKind.RESPONSE, Status.OK, 1)):
            heard += stalled.recv(4096)
        link, pubsub = connected(served)
        before = peak_bytes(served)
        value, total = b"x" * 4096, 100_000
        for _ in range(total // 1_000):
            assert pubsub.publish_many("load", [value] * 1_000) == [1] * 1_000
        (row,) = pubsub.subscriptions()
        assert row.dropped > total // 2
        assert row.waiting_bytes <= 8 * 1024 * 1024
        assert peak_bytes(served) - before < 64 * 1024 * 1024
        link.close()


def peak_bytes(served: Process) -> int:
    """The most memory any of the server's processes has used."""
    return max(_peak(pid) for pid in pids(served))


def _peak(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024
