"""Kafka Streams with `exactly_once_v2`: paused longer than its transaction may be open (SPEC L4).

Its producer is fenced then, and it goes on without a person. ``SOAK=1`` runs it, with jars that
Maven fetches.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.kafka.jars import PROGRAMS, fetched
from tests.kafka.ledger import program, shows
from tests.timing import wait_until

VERSION = "4.3.0"
PARTITIONS = 4
EACH_S = 0.004
"""Between two records, so that a transaction is open nearly always."""


@contextmanager
def copying(
    bootstrap: str, source: str, sink: str, folder: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """The program, while it runs."""
    jars = fetched("org.apache.kafka", "kafka-streams", VERSION)
    command = [program("java"), "-Xmx256m", "-XX:+UseSerialGC", "-cp", f"{jars}/*"]
    words = [str(PROGRAMS / "StreamsCopy.java"), bootstrap, source, sink, str(folder)]
    with (folder / "streams.log").open("wb") as log:
        running = subprocess.Popen([*command, *words], stdout=log, stderr=log)
    try:
        yield running
    finally:
        running.kill()
        running.wait()


def feed(bootstrap: str, topic: str, until: threading.Event, sent: list[int]) -> None:
    """One record after the other, until told to end."""
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    while not until.wait(EACH_S):
        producer.produce(topic, str(sent[0]), partition=sent[0] % PARTITIONS)
        producer.poll(0)
        sent[0] += 1
    producer.flush(60)


class Copy:
    """What was copied so far, read as a consumer that sees committed records."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        options = {"bootstrap.servers": bootstrap, "group.id": "check"}
        self._consumer = confluent_kafka.Consumer(options | {"enable.auto.commit": False})
        places = [confluent_kafka.TopicPartition(topic, at, 0) for at in range(PARTITIONS)]
        self._consumer.assign(places)
        self.seen: Counter[int] = Counter()

    def count(self) -> int:
        """How many records there are."""
        for message in self._consumer.consume(10_000, timeout=1):
            if not message.error():
                self.seen[int(message.value() or b"-1")] += 1
        return self.seen.total()

    def has(self, goal: int) -> bool:
        """Whether there are so many."""
        return self.count() >= goal


@pytest.mark.skipif(not os.environ.get("SOAK"), reason="takes minutes: SOAK=1")
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("pause_s", "times"), [(20, 5), (120, 1)])
@shows("Kafka Streams", "`exactly_once_v2`, paused for 20 s and 120 s: goes on, each record once")
def test_a_paused_application_goes_on_and_copies_each_record_once(
    bootstrap: str, topic: str, tmp_path: Path, pause_s: int, times: int
) -> None:
    source, sink = f"{topic}-in", f"{topic}-out"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    made = admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in (source, sink)])
    for each in made.values():
        each.result(30)
    sent, enough, copy = [0], threading.Event(), Copy(bootstrap, sink)
    feeding = threading.Thread(target=feed, args=(bootstrap, source, enough, sent))
    feeding.start()
    with copying(bootstrap, source, sink, tmp_path) as application:
        try:
            for _ in range(times):
                wait_until(partial(copy.has, copy.count() + 200), 60)
                application.send_signal(signal.SIGSTOP)
                time.sleep(pause_s)  # on the application's own clock and the server's
                application.send_signal(signal.SIGCONT)
        finally:
            enough.set()
            feeding.join()
        wait_until(partial(copy.has, sent[0]), 120)
        assert application.poll() is None, (tmp_path / "streams.log").read_text()[-3000:]
    assert copy.seen == Counter(range(sent[0]))
