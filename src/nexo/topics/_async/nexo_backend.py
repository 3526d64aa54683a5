"""Topics on a Nexo server: each is a stream, each group one of its ordered groups.

A real Kafka offers the same methods: `KafkaBackend`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from nexo.client._async.client import AsyncClient
from nexo.client._async.link.link import Link
from nexo.client._async.requests import request
from nexo.client._async.stream.groups import stream_names
from nexo.client._async.stream.stream import Stream
from nexo.client.stream_records import Record, key_text
from nexo.errors import InvalidInput, InvalidOption, NotFound
from nexo.model import Broker
from nexo.protocol import stream as wire
from nexo.protocol import stream_ordered as ordered
from nexo.protocol.frames import pack_str
from nexo.protocol.ops import Op
from nexo.topics._async.consumer.membership import Rebalanced
from nexo.topics._async.consumer.reader import NexoReader
from nexo.topics._async.kafka.backend import KafkaBackend, KafkaReader
from nexo.topics._async.producer.sender import NexoSender
from nexo.topics.model import (
    GroupDescription,
    PartitionDescription,
    ReaderOptions,
    SenderOptions,
    TopicDescription,
    TopicPartition,
    committed_of,
)
from nexo.topics.settings import check_more, stream_options, topic_config


class NexoTopicsBackend:
    """A cluster with topics, over a client's connection to the stream broker."""

    def __init__(self, client: AsyncClient, *, owned: bool) -> None:
        self._client = client
        self._owned = owned
        self._link: Link = client.link(Broker.STREAM)

    # -- topics

    async def create_topic(
        self, name: str, partitions: int, replication_factor: int, config: Mapping[str, Any]
    ) -> None:
        """Create the stream; `AlreadyExists` if there is one of that name."""
        if replication_factor != 1:
            raise InvalidOption(
                f"replication_factor = {replication_factor}: a Nexo server keeps one copy"
            )
        options = stream_options(config) | {"partitions": partitions}
        make = wire.Make(stream=name, options=options, fresh=True)
        await self._link.call(Op.S_MAKE, wire.pack(make))

    async def create_partitions(self, name: str, partitions: int) -> None:
        """Add partitions to the stream; `InvalidOption` if there are as many already."""
        now = len((await self.describe_topic(name)).partitions)
        check_more(name, now, partitions)
        ask = wire.Make(stream=name, options={"partitions": partitions})
        await self._link.call(Op.S_UPDATE, wire.pack(ask))

    async def list_topics(self) -> list[str]:
        """Every stream except the broker's own."""
        return [name for name in await stream_names(self._link.call) if not name.startswith("$")]

    async def describe_topic(self, name: str) -> TopicDescription:
        """The stream; `NotFound` if there is none."""
        ask = wire.StreamName(stream=name)
        info = await request(self._link.call, Op.S_DESCRIBE, ask, wire.StreamInfo)
        partitions = tuple(
            PartitionDescription(number, part.start_offset, part.next_offset, part.size_bytes)
            for number, part in enumerate(info.partitions)
        )
        return TopicDescription(name, partitions, topic_config(info.options))

    async def delete_topic(self, name: str) -> None:
        """Delete the stream, and what groups have stored for it."""
        try:
            await self._link.call(Op.S_DELETE, pack_str(name))
        except NotFound:
            raise NotFound(f"topic {name!r} not found") from None

    async def compact_topic(self, name: str) -> int:
        """Compact the stream, removing deletions at once."""
        return await request(self._link.call, Op.S_COMPACT, wire.StreamName(stream=name), int)

    async def newest(
        self, topic: str, key: bytes | None, type_: type[Any] | None
    ) -> Mapping[str | bytes, Record[Any]]:
        """The newest message of a key, or of every key, except deleted ones."""
        stream: Stream[Any] = Stream(self._link, topic, type_)
        if key is None:
            return await stream.state()
        found = await stream.get(key)
        return {} if found is None else {key_text(key): found}

    # -- groups

    async def describe_group(self, group_id: str) -> GroupDescription:
        """The ordered group; `NotFound` if there is none."""
        ask = ordered.OrderedAsk(group=group_id)
        infos = list[ordered.OrderedInfo]
        (info,) = await request(self._link.call, Op.S_ORDERED_GROUPS, ask, infos)
        return GroupDescription(
            group_id=group_id,
            generation=info.generation,
            leader=info.leader,
            members=tuple(info.members),
            assignment={TopicPartition(t, p): member for t, p, member in info.owners},
            committed=committed_of(info.offsets),
            lag=info.lag,
        )

    # -- producers and consumers

    def sender(self, options: SenderOptions, partitioner: Any) -> NexoSender:
        """Batches by partition."""
        return NexoSender(self._client, options, partitioner)

    def reader(self, options: ReaderOptions, listener: Rebalanced, type_: Any) -> NexoReader:
        """A member of an ordered group."""
        return NexoReader(self._link, options, listener, type_)

    async def close(self) -> None:
        """Close the client if it was made for this."""
        if self._owned:
            await self._client.close()


GroupReader: TypeAlias = NexoReader | KafkaReader
TopicsBackend: TypeAlias = NexoTopicsBackend | KafkaBackend


def backend_for(server: AsyncClient | str | None) -> TopicsBackend:
    """``nexo://``, ``nexos://`` or ``kafka://host:port,host:port``; a client is used as it is.

    The default is ``NEXO_URL``, then a local server.
    """
    if isinstance(server, AsyncClient):
        return NexoTopicsBackend(server, owned=False)
    url = url_of(server)
    if url is not None and urlsplit(url).scheme == "kafka":
        return KafkaBackend(url)
    return NexoTopicsBackend(AsyncClient(url), owned=True)


def url_of(server: str | None) -> str | None:
    """The given URL, or the environment's."""
    if server is not None and not isinstance(server, str):
        raise InvalidInput(f"server must be a client or a URL, not {server!r}")
    return server or os.environ.get("NEXO_URL")
