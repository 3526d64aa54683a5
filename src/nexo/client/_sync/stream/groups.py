# Generated from _async/stream/groups.py by tools/unasync.py; edit that file instead.
"""The groups of a stream, as its users look at and change them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from nexo.client._sync.link.link import Link
from nexo.client._sync.stream.consumer import MAX_BATCH
from nexo.client.checks import text, whole
from nexo.client.stream_options import MAX_OFFSET, position
from nexo.client.stream_records import Record, batches_in
from nexo.protocol import stream as wire
from nexo.protocol.frames import Buffer
from nexo.protocol.ops import Op


class ParkedRecord(Record[Any]):
    """A record that was set aside after too many deliveries."""

    __slots__ = ("parked_ms", "reason")

    def __init__(self, partition: int, row: Any, type_: Any, parked: wire.ParkedInfo) -> None:
        super().__init__(partition, row, type_, parked.deliveries)
        self.parked_ms = parked.parked_ms
        self.reason = parked.reason
        """Why it failed the last time."""


def gone(offset: int) -> tuple[object, ...]:
    """Stands for a record that is damaged or was removed by retention: its value is None."""
    return offset, 0, None, None, 0, b""


class StreamGroups:
    """What `Stream` does with shared groups as a whole."""

    _type: Any = None

    def __init__(self, link: Link, name: str) -> None:
        self._link = link
        self.name = text(name, "a stream's name")

    def _ask(self, op: Op, message: object) -> Buffer:
        return self._link.call(op, wire.pack(message)) or b""

    def groups(self) -> list[wire.GroupInfo]:
        """Every shared group: consumers, lag, what is in flight and parked."""
        reply = self._ask(Op.S_GROUPS, wire.GroupsAsk(stream=self.name))
        return wire.unpack(list[wire.GroupInfo], reply)

    def group(self, group: str) -> wire.GroupInfo:
        """One shared group."""
        reply = self._ask(Op.S_GROUPS, wire.GroupsAsk(stream=self.name, group=group))
        return wire.unpack(list[wire.GroupInfo], reply)[0]

    def lag(self, group: str) -> int:
        """How many records the group has not finished."""
        return (self.group(group)).lag

    def delete_group(self, group: str) -> None:
        """Forget a group and where it was."""
        self._ask(Op.S_GROUP_DELETE, wire.GroupName(stream=self.name, group=group))

    def seek(self, group: str, to: wire.Position | datetime) -> int:
        """Reset a group to ``'beginning'``, ``'end'``, an offset, offsets by partition, or a time.

        Running consumers go on from there; acks from before are refused. Returns the group's
        new generation.
        """
        place, time_ms = position(to, "the position")
        ask = wire.GroupSeek(stream=self.name, group=group, to=place, to_ms=time_ms)
        return wire.unpack(int, self._ask(Op.S_GROUP_SEEK, ask))

    def parked(self, group: str, *, limit: int = 100, skip: int = 0) -> list[ParkedRecord]:
        """Records that were set aside after ``max_deliveries`` failures."""
        ask = wire.ParkedAsk(
            stream=self.name,
            group=group,
            limit=whole(limit, "limit", 1, MAX_BATCH),
            skip=whole(skip, "skip", 0, MAX_OFFSET),
        )
        head, rest = wire.unpack_headed(wire.ParkedList, self._ask(Op.S_PARKED, ask))
        rows = {
            (partition, row.offset): row
            for partition, batch in zip(head.partitions, batches_in(rest), strict=True)
            for row in batch.records()
        }
        return [
            ParkedRecord(
                info.partition, rows.get((info.partition, offset)) or gone(offset), self._type, info
            )
            for info in head.rows
            for offset in range(info.first, info.end)
        ]

    def replay_parked(self, group: str, records: Iterable[Record[Any]] | None = None) -> int:
        """Deliver parked records again, all of them or these; returns how many."""
        return self._settle_parked(group, "replay", records)

    def discard_parked(self, group: str, records: Iterable[Record[Any]] | None = None) -> int:
        """Forget parked records, all of them or these; returns how many."""
        return self._settle_parked(group, "discard", records)

    def _settle_parked(self, group: str, verb: Any, records: Iterable[Record[Any]] | None) -> int:
        spans = None
        if records is not None:
            spans = [(r.partition, r.offset, r.offset + 1) for r in records]
        ask = wire.ParkedSettle(stream=self.name, group=group, verb=verb, spans=spans)
        return wire.unpack(int, self._ask(Op.S_PARKED_SETTLE, ask))


def stream_names(link: Link, prefix: str = "") -> list[str]:
    """The names of all streams that begin with ``prefix``, in order."""
    names: list[str] = []
    while True:
        ask = wire.ListAsk(prefix=prefix, after=names[-1] if names else "")
        page = wire.unpack(list[str], link.call(Op.S_LIST, wire.pack(ask)) or b"")
        names += page
        if len(page) < ask.limit:
            return names
