"""A member of a real Kafka's consumer group; heartbeats and rebalances are aiokafka's."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nexo.topics._async.consumer.membership import Rebalanced
from nexo.topics.kafka import library, row_of, translated
from nexo.topics.model import Commits, Committed, ReaderOptions, TopicMessage, TopicPartition
from nexo.topics.places import check_owned

_SLICE_MS = 200
"""How long one call to aiokafka waits, so that `interrupt` takes effect."""
_JOIN_S = 30.0


class KafkaReader:
    """As `NexoReader`, on an AIOKafkaConsumer."""

    def __init__(
        self,
        connection: dict[str, Any],
        options: ReaderOptions,
        listener: Rebalanced,
        type_: Any,
    ) -> None:
        self._connection = connection
        self._options = options
        self._listener = listener
        self._type = type_
        self._consumer: Any = None
        self._assigned = asyncio.Event()
        self._interrupted = False
        self._closed = False

    # -- membership

    @property
    def member(self) -> str:
        """Empty: aiokafka does not expose Kafka's member id."""
        return ""

    @property
    def generation(self) -> int:
        """Unknown: aiokafka does not expose it."""
        return -1

    @property
    def assignment(self) -> Sequence[TopicPartition]:
        """The partitions that it owns."""
        return () if self._consumer is None else _ours(self._consumer.assignment())

    async def join(self) -> None:
        """Join, and wait for the first assignment."""
        if self._consumer is None:
            self._consumer = self._make()
            with translated():
                await self._consumer.start()
                self._consumer.subscribe(
                    topics=list(self._options.topics),
                    listener=_listener(self._listener, self._assigned),
                )
        async with asyncio.timeout(_JOIN_S):
            await self._assigned.wait()

    def _make(self) -> Any:
        timing = {}
        if self._options.session_timeout_ms is not None:
            timing["session_timeout_ms"] = self._options.session_timeout_ms
            timing["heartbeat_interval_ms"] = max(1, self._options.session_timeout_ms // 3)
        if self._options.rebalance_timeout_ms is not None:
            timing["rebalance_timeout_ms"] = self._options.rebalance_timeout_ms
        return library().AIOKafkaConsumer(
            **self._connection,
            **timing,
            group_id=self._options.group_id,
            enable_auto_commit=False,
            isolation_level="read_committed",
            auto_offset_reset=self._options.reset,
            fetch_max_bytes=self._options.max_bytes,
            partition_assignment_strategy=[_assignor(self._options.strategy)],
        )

    # -- reading

    async def fetch(self, max_records: int, timeout_s: float) -> list[TopicMessage[Any]]:
        """The records that aiokafka has read ahead."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        self._interrupted = False
        while True:
            left_ms = max(0, int((deadline_s - loop.time()) * 1000))
            with translated():
                found = await self._consumer.getmany(
                    timeout_ms=min(left_ms, _SLICE_MS), max_records=max_records
                )
            if found or not left_ms or self._interrupted or self._closed:
                return [
                    TopicMessage(at.topic, at.partition, row_of(record), self._type)
                    for at, records in found.items()
                    for record in records
                ]

    async def is_up(self) -> bool:
        """Assumed: aiokafka does not expose it."""
        return True

    def interrupt(self) -> None:
        """Let a waiting fetch return."""
        self._interrupted = True

    # -- offsets

    async def commit(self, commits: Commits) -> None:
        """Commit; Kafka stores the next offset, not the last processed."""
        with translated():
            await self._consumer.commit(kafka_offsets(commits))

    async def committed(self, at: TopicPartition) -> Committed | None:
        """Without time or metadata, which aiokafka does not show."""
        with translated():
            following = await self._consumer.committed(library().TopicPartition(*at))
        return Committed(following - 1) if following else None

    async def bounds(self, at: TopicPartition) -> tuple[int, int]:
        """The first offset, and one past the last."""
        partition = library().TopicPartition(*at)
        with translated():
            first = await self._consumer.beginning_offsets([partition])
            end = await self._consumer.end_offsets([partition])
        return first[partition], end[partition]

    async def offset_at(self, at: TopicPartition, time_ms: int) -> int:
        """The offset of a time; the end if there is nothing that late."""
        partition = library().TopicPartition(*at)
        with translated():
            found = (await self._consumer.offsets_for_times({partition: time_ms}))[partition]
        return (await self.bounds(at))[1] if found is None else int(found.offset)

    async def seek(self, positions: Mapping[TopicPartition, int]) -> None:
        check_owned(positions, self.assignment)
        self.unread(positions)

    def unread(self, positions: Mapping[TopicPartition, int]) -> None:
        """Deliver again what lies from these offsets on."""
        owned = self.assignment
        for at, offset in positions.items():
            if at in owned:
                self._consumer.seek(library().TopicPartition(*at), offset)

    def pause(self, partitions: Sequence[TopicPartition], *, paused: bool) -> None:
        """Pause or resume delivery of these."""
        check_owned(partitions, self.assignment)
        named = [library().TopicPartition(*at) for at in partitions]
        (self._consumer.pause if paused else self._consumer.resume)(*named)

    async def close(self) -> None:
        """Leave the group."""
        self._closed = True
        if self._consumer is not None:
            with translated():
                await self._consumer.stop()


def kafka_offsets(commits: Commits) -> dict[Any, Any]:
    """Commits as Kafka takes them: the next offset, not the last processed."""
    structs = library("aiokafka.structs")
    return {
        structs.TopicPartition(*at): structs.OffsetAndMetadata(offset + 1, metadata)
        for at, (offset, metadata) in commits.items()
    }


def _assignor(strategy: str | None) -> Any:
    if strategy == "roundRobin":
        module = library("aiokafka.coordinator.assignors.roundrobin")
        return module.RoundRobinPartitionAssignor
    return library("aiokafka.coordinator.assignors.range").RangePartitionAssignor


def _ours(partitions: Iterable[Any]) -> tuple[TopicPartition, ...]:
    return tuple(sorted(TopicPartition(at.topic, at.partition) for at in partitions))


def _listener(listener: Rebalanced, joined: asyncio.Event) -> Any:
    base = library("aiokafka.abc").ConsumerRebalanceListener

    class RebalanceListener(base):  # type: ignore[misc, valid-type]
        async def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
            """Called before it joins again."""
            if revoked:
                await listener.revoked(_ours(revoked))

        async def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
            joined.set()
            if assigned:
                await listener.assigned(_ours(assigned))

    return RebalanceListener()
