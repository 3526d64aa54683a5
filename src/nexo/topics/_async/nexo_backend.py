"""Topics on a Nexo server: each is a stream, each group one of its ordered groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nexo.client._async.client import AsyncClient
from nexo.client._async.link.link import Link
from nexo.client.stream_records import batches_in, key_text
from nexo.errors import InvalidOption, NotFound
from nexo.model import Broker, Buffer
from nexo.protocol import stream as wire
from nexo.protocol import stream_ordered as ordered
from nexo.protocol.frames import pack_str
from nexo.protocol.ops import Op
from nexo.topics._async.consumer.reader import NexoReader
from nexo.topics._async.ports import GroupReader, Rebalanced, Sender
from nexo.topics._async.producer.sender import NexoSender
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
from nexo.topics.settings import stream_options, topic_config

_PAGE = 1_000


class NexoTopicsBackend:
    """`TopicsBackend` over a client's connection to the stream broker."""

    def __init__(self, client: AsyncClient, *, owned: bool) -> None:
        self._client = client
        self._owned = owned
        self._link: Link = client.link(Broker.STREAM)

    async def _ask(self, op: Op, message: object) -> Buffer:
        return await self._link.call(op, wire.pack(message)) or b""

    # -- topics

    async def create_topic(
        self, name: str, partitions: int, replication_factor: int, config: Mapping[str, Any]
    ) -> None:
        """Create the stream."""
        if replication_factor != 1:
            raise InvalidOption(
                f"replication_factor = {replication_factor}: a Nexo server keeps one copy"
            )
        options = stream_options(config) | {"partitions": partitions}
        await self._ask(Op.S_MAKE, wire.Make(stream=name, options=options, fresh=True))

    async def list_topics(self) -> list[str]:
        """Every stream except the broker's own."""
        found: list[str] = []
        while True:
            ask = wire.ListAsk(after=found[-1] if found else "", limit=_PAGE)
            page = wire.unpack(list[str], await self._ask(Op.S_LIST, ask))
            found += page
            if len(page) < _PAGE:
                return [name for name in found if not name.startswith("$")]

    async def describe_topic(self, name: str) -> TopicDescription:
        """The stream."""
        reply = await self._ask(Op.S_DESCRIBE, wire.StreamName(stream=name))
        info = wire.unpack(wire.StreamInfo, reply)
        partitions = tuple(
            PartitionDescription(number, part.start_offset, part.next_offset, part.size_bytes)
            for number, part in enumerate(info.partitions)
        )
        return TopicDescription(name, partitions, topic_config(info.options))

    async def delete_topic(self, name: str) -> None:
        """Delete the stream."""
        try:
            await self._link.call(Op.S_DELETE, pack_str(name))
        except NotFound:
            raise NotFound(f"topic {name!r} not found") from None

    async def compact_topic(self, name: str) -> int:
        """Compact the stream, removing deletions at once."""
        return wire.unpack(int, await self._ask(Op.S_COMPACT, wire.StreamName(stream=name)))

    async def newest(
        self, topic: str, key: bytes | None, type_: type[Any] | None
    ) -> dict[str | bytes, TopicMessage[Any]]:
        """The newest messages, by the broker's index of keys."""
        if key is None:
            return await self._all_newest(topic, type_)
        return await self._newest_of(topic, key, type_)

    async def _newest_of(
        self, topic: str, key: bytes, type_: type[Any] | None
    ) -> dict[str | bytes, TopicMessage[Any]]:
        reply = await self._link.call(Op.S_GET, wire.pack(wire.Get(stream=topic, key=key)))
        if reply is None:
            return {}
        partition, rest = wire.unpack_headed(int, reply)
        row = next(next(batches_in(rest)).records())
        return {key_text(key): TopicMessage(topic, partition, row, type_)}

    async def _all_newest(
        self, topic: str, type_: type[Any] | None
    ) -> dict[str | bytes, TopicMessage[Any]]:
        found: dict[str | bytes, TopicMessage[Any]] = {}
        at: tuple[int, int] | None = (0, 0)
        while at is not None:
            ask = wire.StateAsk(stream=topic, partition=at[0], offset=at[1])
            head, rest = wire.unpack_headed(wire.StateReply, await self._ask(Op.S_STATE, ask))
            for partition, batch in zip(head.partitions, batches_in(rest), strict=True):
                for row in batch.records():
                    message: TopicMessage[Any] = TopicMessage(topic, partition, row, type_)
                    found[message.key or ""] = message
            at = head.following
        return found

    # -- groups

    async def describe_group(self, group_id: str) -> GroupDescription:
        """The ordered group."""
        reply = await self._ask(Op.S_ORDERED_GROUPS, ordered.OrderedAsk(group=group_id))
        (info,) = wire.unpack(list[ordered.OrderedInfo], reply)
        return GroupDescription(
            group_id=group_id,
            generation=info.generation,
            leader=info.leader,
            members=tuple(info.members),
            assignment={TopicPartition(t, p): member for t, p, member in info.owners},
            committed={
                TopicPartition(at.topic, at.partition): Committed.at(
                    at.offset, at.metadata, at.committed_ms
                )
                for at in info.offsets
            },
            lag=info.lag,
        )

    # -- producers and consumers

    def sender(self, options: SenderOptions, partitioner: Any) -> Sender:
        """Batches by partition."""
        return NexoSender(self._client, options, partitioner)

    def reader(self, options: ReaderOptions, told: Rebalanced, type_: Any) -> GroupReader:
        """A member of an ordered group."""
        return NexoReader(self._link, options, told, type_)

    async def close(self) -> None:
        """Close the client if it was made for this."""
        if self._owned:
            await self._client.close()
