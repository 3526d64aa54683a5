"""The shared groups of a stream: inspect and change them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Generic, TypeVar

from nexo.client._async.link.link import Link
from nexo.client._async.requests import Send, is_found, request
from nexo.client._async.stream.consumer import MAX_BATCH
from nexo.client.checks import each, text, whole
from nexo.client.stream_options import position
from nexo.client.stream_records import (
    ParkedRecord,
    Published,
    Record,
    RecordOrPlace,
    batches_in,
    gone,
)
from nexo.model.stream import GroupInfo, ParkedList, StartPosition
from nexo.protocol import stream as wire
from nexo.protocol.ops import Op

T = TypeVar("T")


class Group(Generic[T]):
    """A shared group: ``stream.group(name)``; making one sends nothing."""

    def __init__(self, link: Link, stream: str, name: str, type_: type[T] | None = None) -> None:
        self.stream = stream
        self.name = text(name, "a group's name")
        self._link = link
        self.parked: Parked[T] = Parked(link, stream, name, type_)
        """Records that were set aside after ``max_deliveries`` failures."""

    def __repr__(self) -> str:
        return f"<Group {self.name!r} of stream {self.stream!r}>"

    async def info(self) -> GroupInfo:
        """Consumers, lag, what is in flight and parked; `NotFound` if there is no such group."""
        ask = wire.GroupsAsk(stream=self.stream, group=self.name)
        return (await request(self._link.repeat, Op.S_GROUPS, ask, list[GroupInfo]))[0]

    async def lag(self) -> int:
        """The number of records that the group has not finished."""
        return (await self.info()).lag

    async def exists(self) -> bool:
        """Whether the stream has such a group."""
        ask = wire.GroupsAsk(stream=self.stream, group=self.name)
        return await is_found(self._link.repeat, Op.S_GROUPS, wire.pack(ask))

    async def delete(self) -> bool:
        """Delete the group and its position; returns whether it existed."""
        ask = wire.GroupName(stream=self.stream, group=self.name)
        return await is_found(self._link.call, Op.S_GROUP_DELETE, wire.pack(ask))

    async def seek(self, to: StartPosition | datetime) -> int:
        """Reset it to ``'beginning'``, ``'end'``, an offset, offsets by partition, or a time.

        Running consumers continue from there; earlier acks are rejected. Returns the group's new
        generation.
        """
        place, time_ms = position(to, "the position")
        ask = wire.GroupSeek(stream=self.stream, group=self.name, to=place, to_ms=time_ms)
        return await request(self._link.call, Op.S_GROUP_SEEK, ask, int)


class Parked(Generic[T]):
    """Records that a group parked (SPEC F3): ``stream.group(name).parked``.

    The same verbs as a queue's dead letters.
    """

    def __init__(self, link: Link, stream: str, group: str, type_: type[T] | None) -> None:
        self._link = link
        self._stream = stream
        self._group = group
        self._type = type_

    async def peek(self, limit: int = 100, offset: int = 0) -> list[ParkedRecord[T]]:
        """Parked records, newest first, without changing anything.

        Of one partition, that is from the highest offset down. Fewer than ``limit`` if they are
        large.
        """
        ask = wire.ListParked(
            stream=self._stream,
            group=self._group,
            limit=whole(limit, "limit", 1, MAX_BATCH),
            offset=whole(offset, "offset", 0),
        )
        reply = await self._link.repeat(Op.S_PARKED, wire.pack(ask))
        head, rest = wire.unpack_headed(ParkedList, reply or b"")
        rows = {
            (partition, row.offset): row
            for partition, batch in zip(head.partitions, batches_in(rest), strict=True)
            for row in batch.records()
        }
        return [
            ParkedRecord(
                info.partition, rows.get((info.partition, at)) or gone(at), self._type, info
            )
            for info in head.rows
            for at in reversed(range(info.first, info.end))
        ]

    async def count(self) -> int:
        info = await Group(self._link, self._stream, self._group).info()
        return sum(each.parked for each in info.partitions)

    async def replay(self, records: RecordOrPlace | Iterable[RecordOrPlace] | None = None) -> int:
        """Deliver one parked record, some, or all, again as if new; returns how many."""
        return await self._settle("replay", records)

    async def delete(self, record: RecordOrPlace) -> bool:
        """Delete a parked record; returns whether it was parked.

        The group never gets it again. The record itself stays in the stream.
        """
        return await self._settle("delete", record) > 0

    async def purge(self) -> int:
        """Delete all parked records, as `delete` does; returns how many."""
        return await self._settle("delete", None)

    async def _settle(
        self, verb: Any, records: RecordOrPlace | Iterable[RecordOrPlace] | None
    ) -> int:
        ranges = None
        if records is not None:
            chosen = [records] if isinstance(records, Record | Published) else records
            ranges = [(at.partition, at.offset, at.offset + 1) for at in each(chosen, "records")]
        ask = wire.ParkedSettle(stream=self._stream, group=self._group, verb=verb, ranges=ranges)
        return await request(self._link.call, Op.S_PARKED_SETTLE, ask, int)


async def stream_names(send: Send, prefix: str = "") -> list[str]:
    """The names of all streams that begin with ``prefix``, in order."""
    names: list[str] = []
    while True:
        ask = wire.ListAsk(prefix=prefix, after=names[-1] if names else "")
        page = await request(send, Op.S_LIST, ask, list[str])
        names += page
        if len(page) < ask.limit:
            return names
