"""A leader that is paused for longer than every window, under load (SPEC N3, Q5; FINDINGS T1, T20).

Two writers per server speak to that server alone, in every broker and mode and as a transactional
Kafka producer, so that whoever acknowledges is seen. ``SOAK=1`` pauses 40 times, for 1 to 120 s;
the seed is printed.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import KafkaException, Producer

from nexo import Client
from nexo.errors import NexoError
from nexo.replication.fence import LEASES_KEPT
from nexo.testing import Process
from tests.crash.machine_load import PAIR
from tests.replicas import leads, ready
from tests.timing import wait_until

SOAK = bool(os.environ.get("SOAK"))
LEASE_S = 3.0 if SOAK else 0.6
SHORT_PAUSES_S = (LEASE_S / 2, 1.5 * LEASE_S, (LEASES_KEPT + 10) * LEASE_S / 3)
"""Within a lease, longer than one, and until no lease of the old leader would be kept."""
SEED = int(os.environ.get("SEED") or random.randrange(1 << 32))
TURN_S = 0.05 if SOAK else 0.005
KAFKA_PAIR = ("kafka-left", "kafka-right")
KAFKA_S = 5.0
KAFKA = {
    "transaction.timeout.ms": 5_000, "message.timeout.ms": 4_000, "socket.timeout.ms": 2_000,
    "reconnect.backoff.max.ms": 500, "linger.ms": 0, "log_level": 0,
}  # fmt: skip


class Ack(NamedTuple):
    """A write that was acknowledged, and when it was sent and answered."""

    sent_s: float
    acked_s: float
    kind: str
    value: str


class Writer(threading.Thread):
    """Writes to one server, in turn to each broker in each mode."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.acks: list[Ack] = []
        self._url = url
        self._ended = threading.Event()

    def end(self) -> None:
        self._ended.set()
        self.join()

    def run(self) -> None:
        numbers = itertools.count()
        while not self._ended.is_set():
            with (
                contextlib.suppress(NexoError),
                Client(f"{self._url}?while_down=fail&timeout=2") as client,
            ):
                writes = itertools.cycle(_writes(client).items())
                for number, (kind, write) in zip(numbers, writes, strict=False):
                    value, sent_s = f"{kind} {number} of {self._url}", time.monotonic()
                    write(value)
                    self.acks.append(Ack(sent_s, time.monotonic(), kind, value))
                    if self._ended.wait(TURN_S):
                        return
            self._ended.wait(0.02)


class KafkaWriter(Writer):
    """Writes pairs to one server as a transactional Kafka producer."""

    def run(self) -> None:
        numbers = itertools.count()
        while not self._ended.is_set():
            with contextlib.suppress(KafkaException):
                producer = Producer(KAFKA | {
                    "bootstrap.servers": self._url.removeprefix("nexo://"),
                    "transactional.id": f"writer of {self._url}",
                })  # fmt: skip
                producer.init_transactions(KAFKA_S)
                for number in numbers:
                    value, sent_s = f"kafka {number} of {self._url}", time.monotonic()
                    self._write(producer, value)
                    self.acks.append(Ack(sent_s, time.monotonic(), "kafka", value))
                    if self._ended.wait(TURN_S):
                        return
            self._ended.wait(0.02)

    def _write(self, producer: Producer, value: str) -> None:
        producer.begin_transaction()
        for topic in KAFKA_PAIR:
            producer.produce(topic, value)
        producer.commit_transaction(KAFKA_S)


def _writes(client: Client) -> dict[str, Callable[[str], object]]:
    """One of each kind."""

    def lock(value: str) -> None:
        with client.store.lock("lock", timeout=0):
            client.store.set("held", value)

    def pair(value: str) -> None:
        with client.transaction(timeout=10) as transaction:
            for name in PAIR:
                transaction.publish(name, value)

    return {
        "key": lambda value: client.store.set("key", value),
        "message": lambda value: client.pubsub.publish("topic", value),
        "synced": client.queue("synced").push,
        "job": client.queue("safe").push,
        "lock": lock,
        "quick": client.stream("quick").publish,
        "record": client.stream("safe").publish,
        "pair": pair,
    }


def create(url: str) -> None:
    """What the writers write to."""
    with Client(url) as client:
        client.queue("synced").create(persistence="file_sync")
        client.queue("safe").create(persistence="replicated")
        client.stream("quick").create(persistence="file_async")
        for name in ("safe", *PAIR, *KAFKA_PAIR):
            client.stream(name).create(persistence="replicated")


def two_at_once(one: list[Ack], other: list[Ack]) -> list[Ack]:
    """What one server acknowledged between two acknowledgements of the other.

    The lead does not come back within a lease, so two of these close together are one term.
    """
    found: list[Ack] = []
    times = sorted((ack.acked_s, ack.sent_s) for ack in other)
    for before, after in itertools.pairwise(times):
        if after[1] - before[0] < LEASE_S:
            found += [ack for ack in one if before[0] < ack.sent_s and ack.acked_s < after[1]]
    return found


def lost(client: Client, acks: list[Ack]) -> dict[str, list[str]]:
    """What was acknowledged as replicated, and is not there, by kind."""
    pairs = [values_of(client, name) for name in (*PAIR, *KAFKA_PAIR)]
    assert pairs[0] == pairs[1], "half a transaction"
    assert pairs[2] == pairs[3], "half a Kafka transaction"
    there = {
        "job": jobs_of(client, "safe"),
        "record": values_of(client, "safe"),
        "pair": pairs[0],
        "kafka": pairs[2],
    }
    return {
        kind: gone
        for kind, values in there.items()
        if (gone := [ack.value for ack in acks if ack.kind == kind and ack.value not in values])
    }


def values_of(client: Client, name: str) -> set[str]:
    """Every value that a reader finds in a stream."""
    values, offset = set(), 0
    while records := client.stream(name).read(0, offset):
        values |= {str(_text(record.value)) for record in records}
        offset = records[-1].offset + 1
    return values


def jobs_of(client: Client, name: str) -> set[str]:
    values: set[str] = set()
    while batch := client.queue(name).pop(1_000):
        values |= {job.value for job in batch}
        batch.ack()
    return values


def _text(value: object) -> object:
    return value.decode() if isinstance(value, bytes) else value


def pauses_s() -> Iterator[float]:
    if not SOAK:
        yield from SHORT_PAUSES_S
        return
    chance = random.Random(SEED)
    for _ in range(40):
        yield float(120 ** chance.random())


@pytest.mark.timeout(6_000 if SOAK else 240)
def test_a_leader_that_was_paused_acknowledges_nothing_beside_its_successor(tmp_path: Path) -> None:
    print(f"SEED={SEED}")  # noqa: T201
    servers = [_server(tmp_path / name) for name in ("one", "two")]
    writers = [kind(server.url) for kind in (Writer, KafkaWriter) for server in servers]
    took_over = 0
    try:
        servers[0].start()
        create(servers[0].url)
        servers[1].start()
        for writer in writers:
            writer.start()
        for pause_s in pauses_s():
            leader = _settled_leader(servers)
            _pause(leader, pause_s)
            last = _settled_leader(servers)
            took_over += last is not leader
        for writer in writers:
            writer.end()
        one, two, *kafka = [writer.acks for writer in writers]
        acks = [one + kafka[0], two + kafka[1]]
        with Client(f"{last.url}?timeout=60") as client:
            gone = lost(client, acks[0] + acks[1])
    finally:
        for server in servers:
            with contextlib.suppress(OSError):
                os.killpg(server.pid, signal.SIGCONT)
            server.close()
    kinds = Counter(ack.kind for each in acks for ack in each)
    print(f"{took_over} takeovers; acknowledged: {dict(kinds)}")  # noqa: T201
    assert took_over
    assert len(kinds) == 9, "some kind of write was never acknowledged"
    assert not two_at_once(acks[0], acks[1])[:5]
    assert not two_at_once(acks[1], acks[0])[:5]
    assert not gone


def _server(folder: Path) -> Process:
    return Process(
        folder, replicate=f"file://{folder.with_name('store')}", dashboard=False,
        replicate_lease_ms=int(LEASE_S * 1000), replicate_ms=50,
    )  # fmt: skip


def _settled_leader(servers: list[Process]) -> Process:
    """The leader, once it knows the other as its standby, which is prepared."""
    found: list[Process] = []

    def settled() -> bool:
        found[:] = [server for server in servers if leads(server)]
        others = [server for server in servers if server not in found]
        return (
            len(found) == len(others) == 1
            and bool(ready(found[0])["replica"]["standbys"])
            and bool(ready(others[0]).get("replica", {}).get("prepared"))
        )

    wait_until(settled, 120)
    return found[0]


def _pause(server: Process, pause_s: float) -> None:
    until_s = time.monotonic() + pause_s
    os.killpg(server.pid, signal.SIGSTOP)
    try:
        wait_until(lambda: time.monotonic() > until_s, pause_s + 60)
    finally:
        os.killpg(server.pid, signal.SIGCONT)
    wait_until(lambda: bool(ready(server)), 60)


def test_the_check_sees_two_that_acknowledge() -> None:
    one = [Ack(at, at + 0.1, "key", str(at)) for at in (1.0, 1.2, 1.4)]
    other = [Ack(1.15, 1.18, "key", "beside")]
    assert two_at_once(other, one) == other
    assert not two_at_once([Ack(9.0, 9.1, "key", "later")], one)
