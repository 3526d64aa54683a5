"""Reads the partitions a member of an ordered group owns, each in its turn (SPEC G4)."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from nexo.client._async import runtime
from nexo.client._async.link.link import Link
from nexo.client._async.requests import request
from nexo.client._async.stream.transaction import Transaction
from nexo.client.connecting import LATE_S
from nexo.client.replies import Reply
from nexo.client.stream_records import batches_in
from nexo.errors import ConnectionLost, Fenced, InvalidInput, NexoError, NotMember, NotOwner
from nexo.protocol import stream as wire
from nexo.protocol import stream_ordered as ordered
from nexo.protocol.ops import Op
from nexo.topics._async.consumer.membership import Membership, Rebalanced
from nexo.topics.model import (
    Commits,
    Committed,
    ReaderOptions,
    TopicMessage,
    TopicPartition,
    committed_of,
)
from nexo.topics.places import check_owned

log = logging.getLogger("nexo.topics")

_IDLE_S = 0.05
"""The pause between checks while nothing is owned."""
_LOOK_S = 0.5
"""The pause between checks for a close, while there is no connection."""
_MAX_WAIT_S = 600.0
"""Longest wait asked of the server at a time."""

_T = TypeVar("_T")


@dataclass(slots=True, eq=False)
class PartitionBuffer:
    """One partition: messages read ahead, and where reading continues."""

    at: TopicPartition
    next_fetch: int
    rows: deque[Sequence[Any]] = field(default_factory=deque)
    paused: bool = False

    def restart(self, offset: int) -> None:
        """Drop what was read, and continue elsewhere."""
        self.rows.clear()
        self.next_fetch = offset


class NexoReader:
    """A member of a group that reads the partitions it owns, on a Nexo server."""

    def __init__(
        self, link: Link, options: ReaderOptions, listener: Rebalanced, type_: Any = None
    ) -> None:
        self._link = link.duplex()
        self._options = options
        self._listener = listener
        self._type = type_
        self._members = Membership(self._link, options, self, self.interrupt)
        self._buffers: dict[TopicPartition, PartitionBuffer] = {}
        self._sought: set[TopicPartition] = set()
        """Where the user went back, so that commits may too."""
        self._poll: Any = None
        self._since_read = 0
        self._closed = False

    # -- membership

    @property
    def member(self) -> str:
        return self._members.member

    @property
    def generation(self) -> int:
        return self._members.generation

    @property
    def assignment(self) -> Sequence[TopicPartition]:
        return tuple(self._members.owned)

    async def join(self) -> None:
        await self._members.join()

    async def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """Called by the membership: stop reading these."""
        try:
            await self._listener.revoked(partitions)
        except NexoError as error:
            # They are lost in any case, and the next owner repeats what could not be committed.
            log.info("group %r: %s", self._options.group_id, error)
        for at in partitions:
            self._buffers.pop(at, None)
            self._sought.discard(at)

    async def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """Called by the membership: read these from the committed offset on."""
        stored = await self._stored(None)
        topics = {at.topic for at in partitions}
        infos = {topic: await self._partitions(topic) for topic in topics}
        starts = {
            at: self._start(stored.get(at), infos[at.topic][at.partition]) for at in partitions
        }
        if self._options.reset == "latest":
            # Otherwise the next owner would skip what arrives before the first commit. For a
            # partition that was always empty it is -1: nothing processed.
            begun = {at: (starts[at] - 1, "") for at in partitions if at not in stored}
            if begun:
                await self.commit(begun)
        self._buffers.update({at: PartitionBuffer(at, offset) for at, offset in starts.items()})
        await self._listener.assigned(partitions)

    def _start(self, stored: Committed | None, part: wire.PartitionInfo) -> int:
        first, end = part.start_offset, part.stable_offset
        if stored is not None:
            return min(max(stored.offset + 1, first), end)
        return first if self._options.reset == "earliest" else end

    # -- reading

    async def fetch(self, max_records: int, timeout_s: float) -> list[TopicMessage[Any]]:
        """The next messages, of every partition in turn; empty if none came in time.

        Those delivered before count as processed.
        """
        deadline_s = runtime.now_s() + timeout_s
        self._members.in_hand.clear()
        while True:
            found: list[TopicMessage[Any]] = []
            left_s = max(0.0, deadline_s - runtime.now_s())
            if await self.is_up(min(left_s, _LOOK_S)):
                found = await self._attempt(max_records, deadline_s)
            if found or self._closed or runtime.now_s() >= deadline_s:
                return found

    async def is_up(self, wait_s: float = 0) -> bool:
        """Whether there is a connection, waiting for one for a while."""
        return await self._link.ready(wait_s)

    async def _attempt(self, max_records: int, deadline_s: float) -> list[TopicMessage[Any]]:
        try:
            await self._members.join()
            await self._members.settle()
            if self._since_read >= max_records:
                await self._read(0.0)
            found = await self._hand_out(max_records)
            if not found and (left_s := deadline_s - runtime.now_s()) > 0:
                await self._read(min(left_s, _MAX_WAIT_S))
            return found or await self._hand_out(max_records)
        except (NotMember, ConnectionLost):
            self._members.lost()
        return []

    async def _hand_out(self, max_records: int) -> list[TopicMessage[Any]]:
        async with self._members.lock:
            found = self._pick(max_records)
            self._members.in_hand.update(message.topic_partition for message in found)
        self._since_read += len(found)
        return found

    def _pick(self, count: int) -> list[TopicMessage[Any]]:
        """One of each partition in turn; the first is last the next time."""
        found: list[TopicMessage[Any]] = []
        ready = deque(each for each in self._buffers.values() if each.rows and not each.paused)
        while ready and len(found) < count:
            buffer = ready.popleft()
            row = buffer.rows.popleft()
            found.append(TopicMessage(buffer.at.topic, buffer.at.partition, row, self._type))
            self._buffers[buffer.at] = self._buffers.pop(buffer.at)
            if buffer.rows:
                ready.append(buffer)
        return found

    async def _read(self, wait_s: float) -> None:
        """Read ahead where nothing is left; waits only if nothing is left anywhere."""
        if self._closed:
            return
        self._since_read = 0
        async with self._members.lock:
            buffers = [each for each in self._buffers.values() if not each.rows and not each.paused]
        if not buffers:
            await runtime.sleep(min(wait_s, _IDLE_S))
            return
        asked = [buffer.next_fetch for buffer in buffers]
        places = [(*buffer.at, offset) for buffer, offset in zip(buffers, asked, strict=True)]
        ask = wire.ReadMany(places, self._options.max_bytes, int(wait_s * 1000))
        self._poll = self._link.poll(Op.S_READ_MANY, wire.pack(ask), timeout_s=wait_s + LATE_S)
        if self._members.unsettled or self._closed:
            self.interrupt()
        try:
            reply = await self._poll.reply()
        finally:
            self._poll = None
        if reply:
            async with self._members.lock:
                self._lay(buffers, asked, reply)

    def _lay(self, buffers: list[PartitionBuffer], asked: list[int], reply: Reply) -> None:
        head, rest = wire.unpack_headed(wire.ReadManyReply, reply or b"")
        fresh = [
            self._buffers.get(each.at) is each and each.next_fetch == offset and not each.rows
            for each, offset in zip(buffers, asked, strict=True)
        ]
        for number, batch in zip(head.batches, batches_in(rest), strict=True):
            if fresh[number]:
                buffers[number].rows.extend(
                    row for row in batch.records() if row.offset >= asked[number]
                )
        for number, (_, _, following) in enumerate(head.heads):
            if fresh[number]:
                buffers[number].next_fetch = following

    def interrupt(self) -> None:
        """Let a waiting fetch check again."""
        poll = self._poll
        if poll is not None:
            poll.cancel()

    # -- offsets

    async def commit(self, commits: Commits) -> None:
        """Commit with the group's newest generation."""
        for rewind, rows in self._rows(commits):
            await self._commit(rows, rewind=rewind)
        self._sought.difference_update(commits)

    async def commit_within(self, transaction: Transaction, commits: Commits) -> None:
        """Commit with the group's newest generation: until then what it revokes is still owned."""
        generation = await self._members.refresh()
        for rewind, rows in self._rows(commits):
            transaction.commit_offsets(
                self._options.group_id, self.member, generation, rows, rewind=rewind
            )

    def _rows(self, commits: Commits) -> list[tuple[bool, list[ordered.OffsetRow]]]:
        """Offsets in wire form: those sought back separate from the others."""
        back = [(*at, *commits[at]) for at in commits if at in self._sought]
        on = [(*at, *commits[at]) for at in commits if at not in self._sought]
        return [(rewind, rows) for rewind, rows in ((True, back), (False, on)) if rows]

    async def _commit(self, rows: list[ordered.OffsetRow], *, rewind: bool) -> None:
        """What a newer generation revokes is still owned: it is committed with that one."""
        generation = self.generation
        while True:
            ask = ordered.Commit(
                group=self._options.group_id,
                offsets=rows,
                member=self.member,
                generation=generation,
                rewind=rewind,
            )
            try:
                await self._link.call(Op.S_COMMIT, wire.pack(ask))
                return
            except Fenced as error:
                if isinstance(error, NotMember | NotOwner):
                    raise
                # While many join and leave there may be another one already.
                known, generation = generation, await self._members.refresh()
                if generation == known:
                    raise

    async def committed(self, at: TopicPartition) -> Committed | None:
        found = (await self._stored(at.topic)).get(at)
        if found is None:
            await self.bounds(at)  # is there such a partition?
        return found

    async def _stored(self, topic: str | None) -> dict[TopicPartition, Committed]:
        ask = ordered.CommittedAsk(group=self._options.group_id, topic=topic)
        rows = list[ordered.CommittedAt]
        return committed_of(await request(self._link.call, Op.S_COMMITTED, ask, rows))

    async def bounds(self, at: TopicPartition) -> tuple[int, int]:
        """The offsets of a partition that readers may see."""
        part = _nth(await self._partitions(at.topic), at)
        return part.start_offset, part.stable_offset

    async def _partitions(self, topic: str) -> list[wire.PartitionInfo]:
        ask = wire.StreamName(stream=topic)
        return (await request(self._link.call, Op.S_DESCRIBE, ask, wire.StreamInfo)).partitions

    async def offset_at(self, at: TopicPartition, time_ms: int) -> int:
        ask = wire.OffsetsAt(stream=at.topic, time_ms=time_ms)
        return _nth(await request(self._link.call, Op.S_OFFSETS_AT, ask, list[int]), at)

    async def seek(self, positions: Mapping[TopicPartition, int]) -> None:
        """Continue reading there; the committed offset changes with the next commit."""
        check_owned(positions, self._buffers)
        starts: dict[TopicPartition, int] = {}
        for at, offset in positions.items():
            first, end = await self.bounds(at)
            if not 0 <= offset <= end:
                raise InvalidInput(f"{at.topic}/{at.partition}: offset {offset} is not in 0..{end}")
            starts[at] = max(offset, first)
        check_owned(positions, self._buffers)  # still
        for at, offset in starts.items():
            self._buffers[at].restart(offset)
            self._sought.add(at)
        self.interrupt()

    def unread(self, positions: Mapping[TopicPartition, int]) -> None:
        """Deliver these messages again, as if they never had been."""
        for at, offset in positions.items():
            if at in self._buffers:
                self._buffers[at].restart(offset)

    def pause(self, partitions: Sequence[TopicPartition], *, paused: bool) -> None:
        """Pause or resume delivery of these."""
        check_owned(partitions, self._buffers)
        for at in partitions:
            self._buffers[at].paused = paused
        self.interrupt()

    async def close(self) -> None:
        self._closed = True
        self.interrupt()
        try:
            await self._members.leave()
        except NexoError as error:
            log.info("group %r: %s", self._options.group_id, error)


def _nth(parts: Sequence[_T], at: TopicPartition) -> _T:
    """The part of this partition in a topic's list."""
    if not 0 <= at.partition < len(parts):
        raise InvalidInput(f"topic {at.topic!r} has no partition {at.partition}")
    return parts[at.partition]
