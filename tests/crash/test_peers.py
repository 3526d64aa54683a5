"""Consumers that die, freeze or come back too late (SPEC D4, D8, F2; MEASURE, faults)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest

import nexo
from nexo.errors import LeaseLost, NexoError
from nexo.model import Broker
from nexo.protocol import queue, stream
from nexo.protocol.hello import Hello, encode_hello
from nexo.protocol.ops import Op
from nexo.protocol.values import decode_value
from nexo.testing import Process
from tests.raw_connection import RawConnection

WAIT_S = 20.0
LEASE_S = 1.0
MODES: tuple[Literal["file_sync", "file_async"], ...] = ("file_sync", "file_async")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    process = Process(tmp_path_factory.mktemp("peers") / "nexo", dashboard=False)
    process.start()
    yield process
    process.close()


@pytest.fixture
def client(served: Process) -> Iterator[nexo.Client]:
    with nexo.connect(served.url) as client:
        yield client


class Raw(RawConnection):
    """A consumer that can end its connection in any way."""

    def __init__(self, served: Process, broker: Broker) -> None:
        super().__init__(served.port)
        self.ask(Op.HELLO, encode_hello(broker, Hello("raw")))


ENDINGS: list[Callable[[Raw], None]] = [Raw.close, Raw.reset]


@pytest.mark.parametrize("end", ENDINGS, ids=["FIN", "RST"])
def test_a_queue_consumer_that_goes_away_releases_its_jobs_at_once(
    served: Process, client: nexo.Client, end: Callable[[Raw], None]
) -> None:
    jobs = client.queue(f"q-{end.__name__}").create(visibility_timeout=600)
    jobs.push_many(range(10))
    consumer = Raw(served, Broker.QUEUE)
    consumer.ask(Op.Q_POP, queue.encode(queue.PopJobs(jobs.name, 10, 0)))
    assert not jobs.pop(10)
    end(consumer)
    found = jobs.pop(10, wait=WAIT_S)  # the lease would be longer
    assert sorted(job.value for job in found) == list(range(10))


@pytest.mark.parametrize("end", ENDINGS, ids=["FIN", "RST"])
def test_a_stream_consumer_that_goes_away_releases_its_records_at_once(
    served: Process, client: nexo.Client, end: Callable[[Raw], None]
) -> None:
    name = f"s-{end.__name__}"
    records = client.stream(name).create()
    records.publish_many(range(10))
    consumer = Raw(served, Broker.STREAM)
    ask = stream.GroupJoin(stream=name, group="g", options={"ack_wait_ms": 600_000})
    joined = stream.unpack(stream.GroupJoined, consumer.ask(Op.S_GROUP_JOIN, stream.pack(ask))[1])
    take = stream.Take(name, "g", joined.consumer, 10, 0)
    assert len(consumer.ask(Op.S_TAKE, stream.pack(take))[1]) > 100
    end(consumer)
    with records.consume("g", wait=WAIT_S, ack_wait=600) as late:
        found = [record.value for record in late.fetch()]  # the lease would be longer
    assert found == list(range(10))


_WORKER = """
import sys, nexo
def held(client):
    if sys.argv[2] == "queue":
        (job,) = client.queue("frozen").pop(1, wait=10)
        return job.ack
    consumer = client.stream("frozen").consume("g", wait=10, ack_wait=1)
    records = list(consumer.fetch())
    return lambda: consumer.ack(*records)
with nexo.connect(sys.argv[1]) as client:
    ack = held(client)
    print("holding", flush=True)
    sys.stdin.readline()
    try:
        ack()
        print("acked", flush=True)
    except (nexo.errors.LeaseLost, nexo.errors.Fenced):
        print("refused", flush=True)
    except nexo.errors.NexoError as error:
        print(type(error).__name__, flush=True)
"""


class Frozen:
    """A worker that holds one item, is stopped, and tries to acknowledge it when it wakes up."""

    def __init__(self, served: Process, broker: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _WORKER, served.url, broker],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._said() == "holding"
        os.kill(self._process.pid, signal.SIGSTOP)

    def wake(self) -> str:
        """What became of its ack."""
        os.kill(self._process.pid, signal.SIGCONT)
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return self._said()

    def _said(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


def test_a_consumer_frozen_beyond_its_lease_cannot_ack_any_more(
    served: Process, client: nexo.Client
) -> None:
    jobs = client.queue("frozen").create(visibility_timeout=LEASE_S, max_retries=10)
    jobs.push("precious")
    worker = Frozen(served, "queue")
    try:
        (second,) = jobs.pop(1, wait=WAIT_S, lease=60)
        assert second.value == "precious"
        assert second.attempt == 2
        assert worker.wake() == "refused"
        second.ack()
        assert not jobs.pop(1, wait=0)
    finally:
        worker.end()


def test_a_stream_consumer_frozen_beyond_its_lease_cannot_ack_any_more(
    served: Process, client: nexo.Client
) -> None:
    client.stream("frozen").create().publish("precious")
    worker = Frozen(served, "stream")
    try:
        with client.stream("frozen").consume("g", wait=WAIT_S, ack_wait=1) as consumer:
            (record,) = consumer.fetch()
            assert (record.value, record.attempt) == ("precious", 2)
            assert worker.wake() != "acked"
    finally:
        worker.end()


def test_a_late_ack_harms_nobody(client: nexo.Client) -> None:
    jobs = client.queue("late").create(visibility_timeout=0.2, max_retries=10)
    jobs.push("precious")
    (first,) = jobs.pop(1)
    (second,) = jobs.pop(1, wait=WAIT_S, lease=60)
    with pytest.raises(LeaseLost):
        first.ack()
    second.ack()
    assert jobs.info().working == 0


def test_all_of_200_writes_survive_a_sigterm(tmp_path: Path) -> None:  # SPEC A7
    process = Process(tmp_path / "nexo", dashboard=False, store_snapshot_ms=3_600_000)
    try:
        process.start()
        with nexo.connect(process.url) as client:
            for mode in MODES:
                client.queue(mode).create(persistence=mode)
                client.stream(mode).create(persistence=mode)
            for number in range(200):
                client.store.set(f"k{number}", number)
                client.pubsub.publish(f"t/{number}", number, retain=True)
                for mode in MODES:
                    client.queue(mode).push(number)
                    client.stream(mode).publish(number)
        assert process.terminate() == 0
        process.start()
        everything = list(range(200))
        with nexo.connect(process.url) as client:
            assert client.store.mget([f"k{n}" for n in everything]) == everything
            for mode in MODES:
                assert [job.value for job in client.queue(mode).pop(500)] == everything
                assert [record.value for record in client.stream(mode).read(0, 0)] == everything
            with client.pubsub.subscribe("t/#") as retained:
                assert {retained.get(WAIT_S).value for _ in everything} == set(everything)
    finally:
        process.close()


def test_a_frozen_broker_does_not_stop_the_others(served: Process, client: nexo.Client) -> None:
    """SPEC A2: the queue's process stands still, the store answers."""
    client.store.set("k", 1)
    client.queue("still").create()
    pid = _pid(client, Broker.QUEUE)
    os.kill(pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        for _ in range(100):
            assert client.store.get("k") == 1
        assert time.monotonic() - began < WAIT_S
        impatient = f"{served.url}?timeout=0.5&connect_timeout=0.5&while_down=fail"
        with nexo.Client(impatient) as late, pytest.raises(NexoError):
            late.queue("still").push(1)
    finally:
        os.kill(pid, signal.SIGCONT)
    client.queue("still").push(2)


def _pid(client: nexo.Client, broker: Broker) -> int:
    payload = client.link(broker).call(Op.STATUS, bytes((broker,)))
    pid: int = decode_value(bytes(payload or b""))["process"]["pid"]
    return pid
