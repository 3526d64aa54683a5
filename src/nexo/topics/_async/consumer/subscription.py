"""The topics a consumer reads, and the member of its group that reads them (SPEC G4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from nexo.client.forks import from_before, on_fork
from nexo.errors import Conflict, NexoError
from nexo.topics._async.consumer.membership import Rebalanced
from nexo.topics._async.nexo_backend import GroupReader, TopicsBackend
from nexo.topics.model import ReaderOptions, TopicPartition
from nexo.topics.places import PartitionOrNumber, topic_partitions_of


class ConsumerSubscription:
    """Creates the member when it is first needed, and another one after it left."""

    def __init__(
        self,
        backend: TopicsBackend,
        options: ReaderOptions,
        listener: Rebalanced,
        type_: Any,
    ) -> None:
        self.reader: GroupReader | None = None
        """The member; None before it joins, and after it left."""
        self.closed = False
        """Whether nobody may join any more."""
        self._backend = backend
        self._options = options
        self._listener = listener
        self._type = type_
        self._inherited = False
        on_fork(self)

    def forked(self) -> None:
        """After a fork, joining creates another member."""
        self.reader, self._inherited = None, True

    @property
    def topics(self) -> tuple[str, ...]:
        return self._options.topics

    async def change(self, topics: tuple[str, ...]) -> None:
        """Join for these topics; if that fails, the previous ones stay."""
        before, self._options = self._options, replace(self._options, topics=topics)
        try:
            await self.join()
        except NexoError:
            if topics != before.topics:
                self._options, self.reader = before, None
            raise

    async def join(self) -> None:
        if self.closed:
            raise Conflict("the consumer is closed")
        if self._inherited:
            raise Conflict(from_before("the consumer"))
        if not self.topics:
            raise Conflict("the consumer has no topic: subscribe it to one")
        if self.reader is None:
            self.reader = self._backend.reader(self._options, self._listener, self._type)
        await self.reader.join()

    async def joined(self) -> GroupReader:
        """The member, which owns partitions if there are any for it."""
        reader = self.reader
        if reader is None or not reader.assignment:
            await self.join()
            reader = self.reader
        if reader is None:
            raise Conflict("the consumer is closed")
        return reader

    async def reading(self) -> GroupReader:
        """The member; one that lost its place joins again while it reads."""
        if self.reader is not None and self.reader.member:
            return self.reader
        return await self.joined()

    async def chosen(
        self, partitions: Sequence[PartitionOrNumber]
    ) -> tuple[GroupReader, Sequence[TopicPartition]]:
        """The member, and those of its partitions that are named, or all."""
        named = topic_partitions_of(partitions, self.topics)
        reader = await self.joined()
        return reader, named or reader.assignment

    async def leave(self) -> None:
        """Give up everything it owns."""
        if (reader := self.reader) is not None:
            await reader.close()
            self.reader = None
