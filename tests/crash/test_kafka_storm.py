"""Kafka consumers that come, go and are killed, and a broker that is killed too (SPEC L2, L4).

Every group gets every record. A member that is assigned a partition goes on from what was
committed before; records come twice only if their commit was not acknowledged. Copies made in
transactions are there exactly once. ``SOAK=1`` goes on for a minute.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

import nexo
from nexo.testing import Process
from tests.kafka.ledger import shows
from tests.timing import wait_until

# ruff: noqa: T201 - the counts are to be seen

SOAK = bool(os.environ.get("SOAK"))
SECONDS, MEMBERS = (60.0, 3) if SOAK else (5.0, 2)
PARTITIONS, OUT_PARTITIONS = 6, 2
TRANSACTIONAL = "transactional"
GROUPS = {"range": "range", "roundrobin": "roundrobin", "cooperative": "cooperative-sticky",
          TRANSACTIONAL: "cooperative-sticky"}  # fmt: skip
PROGRAM = Path(__file__).parent / "kafka_member.py"
LIMIT_S = 120
QUIET = {"log_level": 0}


class Feeder(threading.Thread):
    """Produces numbers until it is stopped; what counts is what was acknowledged."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        self.acknowledged = 0
        self.stopped = threading.Event()
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True,
                                   "linger.ms": 5, **QUIET})  # fmt: skip

    def run(self) -> None:
        number = 0
        while not self.stopped.wait(0.02):
            for _ in range(10):
                self._producer.produce("in", str(number), str(number), on_delivery=self._delivered)
                number += 1
            self._producer.poll(0)
        assert self._producer.flush(LIMIT_S) == 0

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        assert error is None, error
        self.acknowledged += 1


@dataclass
class Group:
    """The processes of one group."""

    name: str
    folder: Path
    bootstrap: str
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)
    started: int = 0

    def start(self) -> None:
        self.started += 1
        name = f"{self.name}-{self.started}"
        given = {
            "bootstrap": self.bootstrap, "group": self.name, "name": name, "topic": "in",
            "strategy": GROUPS[self.name], "outputs": "out" if self.name == TRANSACTIONAL else "",
        }  # fmt: skip
        command = [sys.executable, str(PROGRAM), str(self.folder / name), json.dumps(given)]
        with (self.folder / "errors").open("ab") as errors:
            self.running.append(subprocess.Popen(command, stderr=errors))

    def end(self, chance: random.Random, *, kill: bool) -> None:
        one = self.running.pop(chance.randrange(len(self.running)))
        self.check(one)
        (one.kill if kill else one.terminate)()
        one.wait(60)

    def check(self, one: subprocess.Popen[bytes]) -> None:
        """Members end only when they are told to."""
        assert one.poll() is None, (self.folder / "errors").read_text()[-3_000:]

    def close(self) -> None:
        for one in self.running:
            one.kill()
            one.wait()

    def notes(self) -> Iterator[tuple[str, str, int, int, int]]:
        """Who, what, when, partition and offset; a line that a kill cut short is left out."""
        for file in self.folder.glob(f"{self.name}-*"):
            for line in file.read_text().splitlines():
                words = line.split()
                if len(words) == 4:
                    yield file.name, words[0], int(words[1]), int(words[2]), int(words[3])


@shows("confluent-kafka", "a storm of joins, leaves and kills, of clients and of the broker")
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_storm_of_rebalances_and_kills_loses_nothing(served: Process, tmp_path: Path) -> None:
    chance = random.Random(17)
    bootstrap = served.url.removeprefix("nexo://")
    with nexo.connect(served.url) as client:
        client.stream("in").create(partitions=PARTITIONS)
        client.stream("out").create(partitions=OUT_PARTITIONS)
    groups = [Group(name, tmp_path, bootstrap) for name in GROUPS]
    feeder = Feeder(bootstrap)
    did: Counter[str] = Counter()
    try:
        for group in groups:
            for _ in range(MEMBERS):
                group.start()
        feeder.start()
        _rage(served, groups, chance, did)
        feeder.stopped.set()
        feeder.join(LIMIT_S)
        ends = _ends(served.url, "in")
        assert sum(ends) >= feeder.acknowledged
        for group in groups:
            _wait_until_done(bootstrap, group, ends)
    finally:
        for group in groups:
            group.close()
    repeated = sum(_check(group, ends) for group in groups if group.name != TRANSACTIONAL)
    outputs = Counter(_values(bootstrap, "out"))
    inputs = Counter(_values(bootstrap, "in"))
    print(f"\n{dict(did)}, {sum(ends)} records, {repeated} delivered again, "
          f"{outputs.total()} outputs for {inputs.total()} inputs")  # fmt: skip
    assert inputs.keys() == set(map(str, range(feeder.acknowledged)))
    assert inputs.total() == feeder.acknowledged
    assert outputs == inputs


def _rage(served: Process, groups: list[Group], chance: random.Random, did: Counter[str]) -> None:
    end_s = time.monotonic() + SECONDS
    broker_s = time.monotonic() + SECONDS / 2 if not SOAK else time.monotonic() + 6
    while time.monotonic() < end_s:
        time.sleep(chance.uniform(0.2, 0.8))
        if time.monotonic() > broker_s:
            broker_s += SECONDS if not SOAK else 8
            served.kill()
            served.restart()
            did["kills of the broker"] += 1
        group = chance.choice(groups)
        what = chance.choice(["kills", "leaves", "joins"])
        if what != "joins":
            group.end(chance, kill=what == "kills")
        if what != "joins" or len(group.running) < MEMBERS + 1:
            group.start()
            did[what] += 1


def _ends(url: str, stream: str) -> list[int]:
    with nexo.connect(url) as client:
        return [part.next_offset for part in client.stream(stream).info().partitions]


def _wait_until_done(bootstrap: str, group: Group, ends: list[int]) -> None:
    """Wait until the group has committed everything."""
    options = {"bootstrap.servers": bootstrap, "group.id": group.name, **QUIET}
    asked = [TopicPartition("in", index) for index in range(PARTITIONS)]

    def is_done() -> bool:
        for one in group.running:
            group.check(one)
        try:
            found = watcher.committed(asked, timeout=20)
        except KafkaException:
            return False
        time.sleep(0.1)
        return [max(each.offset, 0) for each in found] == ends

    with closing(Consumer(options)) as watcher:
        wait_until(is_done, LIMIT_S)


def _check(group: Group, ends: list[int]) -> int:
    """Every record was processed; none that was committed before its reader was assigned it.

    Returns how often one came again.
    """
    seen: Counter[tuple[int, int]] = Counter()
    commits: dict[int, list[tuple[int, int]]] = defaultdict(list)
    assigned: dict[tuple[str, int], list[int]] = defaultdict(list)
    notes = sorted(group.notes(), key=lambda note: note[2])
    for who, what, when_ns, partition, offset in notes:
        if what == "c":
            commits[partition].append((when_ns, offset))
        elif what == "a":
            assigned[who, partition].append(when_ns)
    for who, what, when_ns, partition, offset in notes:
        if what != "r":
            continue
        seen[partition, offset] += 1
        since_ns = max(at_ns for at_ns in assigned[who, partition] if at_ns <= when_ns)
        before = [end for at_ns, end in commits[partition] if at_ns < since_ns]
        assert offset >= max(before, default=0), f"{group.name} {partition}:{offset} came again"
    expected = {(index, offset) for index in range(PARTITIONS) for offset in range(ends[index])}
    assert seen.keys() == expected, f"{group.name} lost {sorted(expected - seen.keys())[:9]}"
    return seen.total() - len(seen)


def _values(bootstrap: str, topic: str) -> list[str]:
    """All that is committed."""
    partitions = PARTITIONS if topic == "in" else OUT_PARTITIONS
    consumer = Consumer({
        "bootstrap.servers": bootstrap, "group.id": "check", "enable.partition.eof": True,
        "enable.auto.commit": False, **QUIET,
    })  # fmt: skip
    consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
    found: list[str] = []
    ended: set[int | None] = set()
    while len(ended) < partitions:
        message = consumer.poll(LIMIT_S)
        assert message is not None, "the end was not reached"
        if (error := message.error()) is not None:
            assert error.code() == KafkaError._PARTITION_EOF, error
            ended.add(message.partition())
        else:
            found.append((message.value() or b"").decode())
    consumer.close()
    return found
