"""Topics on a real Kafka, through aiokafka: for those who outgrow one machine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from nexo.client.stream_records import key_text
from nexo.errors import AlreadyExists, InvalidOption, NotFound
from nexo.topics._async.consumer.membership import Rebalanced
from nexo.topics._async.kafka.reader import KafkaReader
from nexo.topics._async.kafka.sender import KafkaSender
from nexo.topics.kafka import connection_options, library, row_of, translated
from nexo.topics.model import (
    Committed,
    GroupDescription,
    PartitionDescription,
    ReaderOptions,
    SenderOptions,
    TopicDescription,
    TopicMessage,
    TopicPartition,
)
from nexo.topics.settings import check_more

__all__ = ["KafkaBackend", "KafkaReader", "KafkaSender"]

_OURS = "nexo."
_UNKNOWN_TOPIC, _TOPIC_EXISTS = 3, 36
_SETTLE_S = 10.0
"""How long a new topic may take to be known to the brokers."""


class KafkaBackend:
    """As `NexoTopicsBackend`, on a Kafka cluster."""

    def __init__(self, url: str) -> None:
        self._options = connection_options(url)
        library()

    @asynccontextmanager
    async def _admin(self) -> AsyncIterator[Any]:
        admin = library("aiokafka.admin").AIOKafkaAdminClient(**self._options)
        with translated():
            await admin.start()
            try:
                yield admin
            finally:
                await admin.close()

    @asynccontextmanager
    async def _consumer(self) -> AsyncIterator[Any]:
        """A consumer without a group, to inspect topics."""
        consumer = library().AIOKafkaConsumer(
            **self._options, enable_auto_commit=False, isolation_level="read_committed"
        )
        with translated():
            await consumer.start()
            try:
                yield consumer
            finally:
                await consumer.stop()

    # -- topics

    async def create_topic(
        self, name: str, partitions: int, replication_factor: int, config: Mapping[str, Any]
    ) -> None:
        """Create it on the cluster, with those of the settings that are Kafka's."""
        theirs = {key: str(value) for key, value in config.items() if not key.startswith(_OURS)}
        new = library("aiokafka.admin").NewTopic(
            name, partitions, replication_factor, topic_configs=theirs
        )
        async with self._admin() as admin:
            reply = await admin.create_topics([new])
            for topic, code, *text in reply.topic_errors:
                if code == _TOPIC_EXISTS:
                    raise AlreadyExists(f"topic {topic!r} exists")
                if code:
                    raise InvalidOption(f"topic {topic!r}: {text[0] if text else code}")
        await self._known(name)

    async def create_partitions(self, name: str, partitions: int) -> None:
        """Add partitions on the cluster; returns once it reports them."""
        now = len(await self._numbers(name))
        check_more(name, now, partitions)
        more = library("aiokafka.admin").NewPartitions(partitions)
        async with self._admin() as admin:
            await admin.create_partitions({name: more})
        async with asyncio.timeout(_SETTLE_S):
            while len(await self._numbers(name)) < partitions:
                await asyncio.sleep(0.05)

    async def _known(self, name: str) -> None:
        async with asyncio.timeout(_SETTLE_S):
            while name not in await self.list_topics():
                await asyncio.sleep(0.05)

    async def list_topics(self) -> list[str]:
        """All but Kafka's own."""
        async with self._admin() as admin:
            return sorted(name for name in await admin.list_topics() if not name.startswith("__"))

    async def describe_topic(self, name: str) -> TopicDescription:
        """Partitions and offsets; the configuration where the cluster reports it."""
        async with self._admin() as admin:
            (found,) = await admin.describe_topics([name])
            if found["error_code"] == _UNKNOWN_TOPIC:
                raise NotFound(f"topic {name!r} not found: create it first")
        numbers = sorted(part["partition"] for part in found["partitions"])
        partitions = [library().TopicPartition(name, number) for number in numbers]
        async with self._consumer() as consumer:
            first = await consumer.beginning_offsets(partitions)
            end = await consumer.end_offsets(partitions)
        return TopicDescription(
            name,
            tuple(PartitionDescription(at.partition, first[at], end[at]) for at in partitions),
        )

    async def delete_topic(self, name: str) -> None:
        """Delete it; Kafka removes what groups stored for it."""
        async with self._admin() as admin:
            reply = await admin.delete_topics([name])
            for topic, code, *_ in reply.topic_error_codes:
                if code == _UNKNOWN_TOPIC:
                    raise NotFound(f"topic {topic!r} not found")

    async def compact_topic(self, name: str) -> int:
        """Raise: Kafka decides itself when to compact."""
        raise InvalidOption("Kafka compacts by itself: it cannot be asked to do it now")

    async def newest(
        self, topic: str, key: bytes | None, type_: type[Any] | None
    ) -> dict[str | bytes, TopicMessage[Any]]:
        """The newest message by reading the whole topic: Kafka has no index of keys."""
        found: dict[str | bytes, TopicMessage[Any]] = {}
        async with self._consumer() as consumer:
            numbers = consumer.partitions_for_topic(topic) or await self._numbers(topic)
            partitions = [library().TopicPartition(topic, number) for number in sorted(numbers)]
            consumer.assign(partitions)
            await consumer.seek_to_beginning(*partitions)
            end = await consumer.end_offsets(partitions)
            while any([await consumer.position(at) < end[at] for at in partitions]):
                for records in (await consumer.getmany(timeout_ms=200)).values():
                    for record in records:
                        if key in (None, record.key) and record.key is not None:
                            found[key_text(record.key)] = TopicMessage(
                                topic, record.partition, row_of(record), type_
                            )
        return {name: message for name, message in found.items() if message.payload is not None}

    async def _numbers(self, topic: str) -> list[int]:
        return [part.partition for part in (await self.describe_topic(topic)).partitions]

    # -- groups

    async def describe_group(self, group_id: str) -> GroupDescription:
        """Members and stored offsets; Kafka reports neither generation nor leader."""
        async with self._admin() as admin:
            (reply,) = await admin.describe_consumer_groups([group_id])
            members = reply.groups[0][5]
            offsets = await admin.list_consumer_group_offsets(group_id)
        assignment = {
            TopicPartition(topic, number): member[0]
            for member in members
            for topic, numbers in _assignment(member[4])
            for number in numbers
        }
        committed = {
            TopicPartition(at.topic, at.partition): Committed(stored.offset - 1, stored.metadata)
            for at, stored in offsets.items()
            if stored.offset > 0
        }
        return GroupDescription(
            group_id,
            -1,
            "",
            tuple(member[0] for member in members),
            assignment,
            committed,
            await self._lag(committed),
        )

    async def _lag(self, committed: Mapping[TopicPartition, Committed]) -> int:
        partitions = [library().TopicPartition(*at) for at in committed]
        if not partitions:
            return 0
        async with self._consumer() as consumer:
            end = await consumer.end_offsets(partitions)
        return sum(end[at] - committed[TopicPartition(*at)].offset - 1 for at in partitions)

    # -- producers and consumers

    def sender(self, options: SenderOptions, partitioner: Any) -> KafkaSender:
        """An AIOKafkaProducer."""
        return KafkaSender(self._options, options, partitioner)

    def reader(self, options: ReaderOptions, listener: Rebalanced, type_: Any) -> KafkaReader:
        """An AIOKafkaConsumer."""
        return KafkaReader(self._options, options, listener, type_)

    async def close(self) -> None:
        """Nothing to do: each of its parts has its own connections."""


def _assignment(raw: bytes) -> list[tuple[str, list[int]]]:
    if not raw:
        return []
    protocol = library("aiokafka.coordinator.protocol")
    found = protocol.ConsumerProtocolMemberAssignment.decode(raw)
    return list(found.assignment)
