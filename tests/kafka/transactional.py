"""What a transactional producer asks, one request each, of us or of a real Kafka."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from aiokafka.record.default_records import DefaultRecordBatchBuilder

from nexo.dialects.kafka.format.apis import ApiKey
from nexo.dialects.kafka.format.codec import KafkaMessage
from nexo.dialects.kafka.format.errors import Error

Producer: TypeAlias = tuple[int, int]
"""Id and epoch."""
Ask: TypeAlias = Callable[[ApiKey, int, KafkaMessage], KafkaMessage]
Pause: TypeAlias = Callable[[int], None]

NOBODY: Producer = (-1, -1)
_SETTLING = {3, 6, 14, 15, 16, Error.CONCURRENT_TRANSACTIONS}
"""Kafka still makes the topic, loads its coordinators or ends the last transaction: ask again."""


class TransactionalClient:
    """A producer with a topic and a group of its own; errors are answered by their names."""

    def __init__(self, ask: Ask, pause: Pause, name: str) -> None:
        self._ask, self.pause = ask, pause
        self.name = self.topic = self.group = name
        row = {"name": name, "partitions": 1, "replication": 1}
        ask(ApiKey.CREATE_TOPICS, 4, {"topics": [row], "timeout_ms": 9_000})
        for kind in (0, 1):
            while ask(ApiKey.FIND_COORDINATOR, 2, {"key": name, "key_type": kind})["error"]:
                pause(200)

    def _settled(self, ask: Callable[[], int]) -> str:
        code = ask()
        while code in _SETTLING:
            self.pause(200)
            code = ask()
        return named(code)

    def _mine(self, producer: Producer, **more: Any) -> KafkaMessage:
        who = {"transactional_id": self.name, "producer_id": producer[0], "epoch": producer[1]}
        return who | more

    def init(
        self, old: Producer = NOBODY, version: int = 4, timeout_ms: int = 60_000
    ) -> tuple[str, Producer]:
        got = NOBODY

        def ask() -> int:
            nonlocal got
            asked = self._mine(old, timeout_ms=timeout_ms)
            found = self._ask(ApiKey.INIT_PRODUCER_ID, version, asked)
            got = found["producer_id"], found["epoch"]
            return int(found["error"])

        return self._settled(ask), got

    def add_partitions(self, producer: Producer, version: int = 3) -> str:
        asked = self._mine(producer, topics=[{"name": self.topic, "partitions": [0]}])

        def ask() -> int:
            found = self._ask(ApiKey.ADD_PARTITIONS_TO_TXN, version, asked)
            return int(found["topics"][0]["partitions"][0]["error"])

        return self._settled(ask)

    def add_offsets(self, producer: Producer, version: int = 3) -> str:
        asked = self._mine(producer, group=self.group)
        return self._settled(lambda: self._ask(ApiKey.ADD_OFFSETS_TO_TXN, version, asked)["error"])

    def commit_offsets(self, producer: Producer, version: int = 3) -> str:
        row = {"partition": 0, "offset": 0, "metadata": ""}
        topics = [{"name": self.topic, "partitions": [row]}]
        asked = self._mine(producer, topics=topics, group=self.group, member="")

        def ask() -> int:
            found = self._ask(ApiKey.TXN_OFFSET_COMMIT, version, asked)
            return int(found["topics"][0]["partitions"][0]["error"])

        return self._settled(ask)

    def end(self, producer: Producer, *, committed: bool = True, version: int = 3) -> str:
        asked = self._mine(producer, committed=committed)
        return self._settled(lambda: self._ask(ApiKey.END_TXN, version, asked)["error"])

    def move_on(self, producer: Producer, *, committed: bool = True) -> tuple[str, Producer]:
        """End a transaction as clients of KIP-890 do: the answer says who they are from now on."""
        asked, got = self._mine(producer, committed=committed), NOBODY

        def ask() -> int:
            nonlocal got
            found = self._ask(ApiKey.END_TXN, 5, asked)
            got = found["producer_id"], found["epoch"]
            return int(found["error"])

        return self._settled(ask), got

    def produce(self, producer: Producer, sequence: int = 0, version: int = 9) -> str:
        partitions = [{"index": 0, "records": batch_of(producer, sequence)}]
        topics = [{"name": self.topic, "partitions": partitions}]
        asked = {"transactional_id": self.name, "acks": -1, "timeout_ms": 9_000, "topics": topics}

        def ask() -> int:
            found = self._ask(ApiKey.PRODUCE, version, asked)
            return int(found["topics"][0]["partitions"][0]["error"])

        return self._settled(ask)

    def time_out(self) -> Producer:
        """A producer whose transaction, of one record, has timed out."""
        error, producer = self.init(timeout_ms=1_000)
        assert (error, self.add_partitions(producer), self.produce(producer)) == ("NONE",) * 3
        self.pause(4_000)
        return producer


def batch_of(producer: Producer, sequence: int) -> bytes:
    """A transactional batch of one record."""
    builder = DefaultRecordBatchBuilder(2, 0, 1, *producer, sequence, 1_000)
    builder.append(0, 1_000, None, b"v", [])
    return bytes(builder.build())


def named(code: int) -> str:
    """An error by its name, or by its number."""
    return next((error.name for error in Error if error == code), str(code))
