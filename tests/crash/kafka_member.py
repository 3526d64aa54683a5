"""A member of a Kafka consumer group as a process, for the storm: it may be killed at any time.

``kafka_member.py FILE {JSON}``: appends what it does to FILE, one line each, with a time that all
processes share. ``a``: a partition was assigned; ``r``: a record was processed; ``c``: offsets
were committed. With ``outputs`` it copies records there, in transactions with their offsets.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterable
from typing import Any, TextIO

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

LIMIT_S = 10


class Storm:
    """One member."""

    def __init__(self, notes: TextIO, given: dict[str, Any]) -> None:
        self._notes = notes
        self._given = given
        self._common = {"bootstrap.servers": given["bootstrap"], "log_level": 0}
        self._producer: Producer | None = None
        self.stopped = False

    def run(self) -> None:
        """Until it is told to stop."""
        while not self.stopped:
            consumer = self._joined()
            self._read(consumer)
            consumer.close()

    def _joined(self) -> Consumer:
        consumer = Consumer({
            **self._common, "group.id": self._given["group"], "client.id": self._given["name"],
            "auto.offset.reset": "earliest", "enable.auto.commit": False,
            "isolation.level": "read_committed", "session.timeout.ms": 6_000,
            "heartbeat.interval.ms": 500, "max.poll.interval.ms": 60_000,
            "partition.assignment.strategy": self._given["strategy"],
        })  # fmt: skip
        consumer.subscribe([self._given["topic"]], on_assign=self._assigned)
        return consumer

    def _read(self, consumer: Consumer) -> None:
        """Until it is told to stop, or has to join again."""
        handle = self._transact if self._given["outputs"] else self._process
        goes_on = True
        while goes_on and not self.stopped:
            found = [each for each in consumer.consume(50, timeout=0.2) if each.error() is None]
            goes_on = handle(consumer, found) if found else True

    def _note(self, kind: str, rows: Iterable[tuple[int, int]]) -> None:
        now_ns = time.monotonic_ns()
        self._notes.write("".join(f"{kind} {now_ns} {at} {offset}\n" for at, offset in rows))
        self._notes.flush()

    def _assigned(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._note("a", [(each.partition, 0) for each in partitions])

    def _process(self, consumer: Consumer, found: list[Message]) -> bool:
        self._note("r", _places(found))
        try:
            consumer.commit(offsets=_after(found), asynchronous=False)
        except KafkaException:
            return True  # of another generation now, or the broker is away: delivered again
        self._note("c", [(at.partition, at.offset) for at in _after(found)])
        return True

    # -- transactions --------------------------------------------------------------------

    def _transact(self, consumer: Consumer, found: list[Message]) -> bool:
        try:
            producer = self._ready()
            producer.begin_transaction()
            for number, message in enumerate(found):
                producer.produce(self._given["outputs"], message.value(), partition=number % 2)
            group = consumer.consumer_group_metadata()
            producer.send_offsets_to_transaction(_after(found), group, LIMIT_S)
            producer.commit_transaction(LIMIT_S)
            self._note("r", _places(found))
        except KafkaException as caught:
            self._give_up(caught.args[0])
            return _rewind(consumer)
        return True

    def _ready(self) -> Producer:
        if self._producer is None:
            made = Producer({
                **self._common, "transactional.id": self._given["name"],
                "transaction.timeout.ms": 5_000,
            })  # fmt: skip
            made.init_transactions(LIMIT_S)
            self._producer = made
        return self._producer

    def _give_up(self, error: KafkaError) -> None:
        """Abort if that is enough, else start over with a new producer."""
        try:
            if self._producer is not None and error.txn_requires_abort():
                self._producer.abort_transaction(LIMIT_S)
                return
        except KafkaException:
            pass
        self._producer = None


def _places(found: list[Message]) -> list[tuple[int, int]]:
    return [(int(each.partition() or 0), int(each.offset() or 0)) for each in found]


def _after(found: list[Message]) -> list[TopicPartition]:
    """What to commit: one past the last record of each partition."""
    ends: dict[tuple[str, int], int] = {}
    for each in found:
        ends[str(each.topic()), int(each.partition() or 0)] = int(each.offset() or 0) + 1
    return [TopicPartition(topic, partition, end) for (topic, partition), end in ends.items()]


def _rewind(consumer: Consumer) -> bool:
    """Go on from what is committed, as what was read was not processed; whether that worked."""
    try:
        for each in consumer.committed(consumer.assignment(), timeout=LIMIT_S):
            each.offset = max(each.offset, 0)
            consumer.seek(each)
    except KafkaException:
        return False
    return True


def main() -> None:
    with open(sys.argv[1], "a", encoding="ascii") as notes:  # noqa: PTH123
        storm = Storm(notes, json.loads(sys.argv[2]))
        signal.signal(signal.SIGTERM, lambda *_: setattr(storm, "stopped", True))
        storm.run()


if __name__ == "__main__":
    main()
