"""Has a consumer go on reading elsewhere than behind its last message (SPEC G4).

All partitions of one call move, or none. What the group has committed stays as it is until the
next commit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nexo.topics._async.subscription import Subscription
from nexo.topics.model import Position, TopicPartition
from nexo.topics.places import Partition
from nexo.topics.progress import Progress


class Seeking:
    """Without ``partitions``, all that the consumer owns are meant."""

    def __init__(self, subscription: Subscription, progress: Progress[Any]) -> None:
        self._subscription = subscription
        self._progress = progress

    async def to(self, place: Position) -> None:
        """The message at ``place`` is the next of its partition."""
        await self._seek({place.lane: place.offset})

    async def to_beginning(self, partitions: Sequence[Partition]) -> None:
        """The first message that is kept is the next."""
        reader, chosen = await self._subscription.chosen(partitions)
        await self._seek({at: (await reader.bounds(at))[0] for at in chosen})

    async def to_end(self, partitions: Sequence[Partition]) -> None:
        """The first message that comes from now on is the next."""
        reader, chosen = await self._subscription.chosen(partitions)
        await self._seek({at: (await reader.bounds(at))[1] for at in chosen})

    async def to_time(self, since_ms: int, partitions: Sequence[Partition]) -> None:
        """The first message of ``since_ms`` or later is the next."""
        reader, chosen = await self._subscription.chosen(partitions)
        await self._seek({at: await reader.offset_at(at, since_ms) for at in chosen})

    async def _seek(self, positions: Mapping[TopicPartition, int]) -> None:
        reader = await self._subscription.joined()
        await reader.seek(positions)
        self._progress.leave(positions)
