"""The rules of the stream broker: streams, producers, groups and transactions.

The owner calls `StreamEngine.drain` after every turn and makes those records durable before
it replies; published records are in their logs when `publish` returns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nexo.brokers.stream import publishing
from nexo.brokers.stream.groups.limits import MAX_GROUPS, check_number
from nexo.brokers.stream.groups.ordered import OrderedGroup, no_group
from nexo.brokers.stream.groups.shared import SharedGroup
from nexo.brokers.stream.producers import ProducerSession
from nexo.brokers.stream.publishing import Placed
from nexo.brokers.stream.records import (
    Aborted,
    Checked,
    Deleted,
    GroupChanged,
    GroupDropped,
    GroupMade,
    Hidden,
    JournalRecord,
    Opened,
    OrderedChanged,
    OrderedDropped,
    OrderedMade,
    PartitionsAdded,
    ProducerStarted,
    StreamCreated,
    StreamRange,
    StreamTrimmed,
    Tiered,
    TransactionCommitted,
    Updated,
)
from nexo.brokers.stream.registry import OpenLog, OpenStream
from nexo.brokers.stream.state import BrokerState
from nexo.brokers.stream.transactions import OpenTransaction
from nexo.errors import NexoError
from nexo.model import Persistence, check_name
from nexo.model.stream import Id
from nexo.options.stream import (
    OrderedOptions,
    SharedOptions,
    StreamOptions,
    check_same,
    options_from,
    updated,
)
from nexo.storage.header import SIZE

CHECKPOINT_BYTES = 64 * 1024**2
"""A partition's checkpoint is journalled after this many bytes, which bounds recovery."""


class StreamEngine(BrokerState):
    """All streams of the broker. Not durable by itself: see the module."""

    def __init__(self, open_log: OpenLog, defaults: StreamOptions) -> None:
        super().__init__(open_log)
        self.defaults = defaults
        self.published = 0
        """Records accepted since the start."""
        self._journal: list[JournalRecord] = []
        self._changed: dict[tuple[int, str], SharedGroup] = {}
        self._reordered: dict[str, OrderedGroup] = {}
        self._unchecked: dict[tuple[int, int], int] = {}
        self.wanted: dict[tuple[int, int], OpenStream] = {}
        """Partitions that want a checkpoint, by stream number and partition."""
        self._grown: dict[int, OpenStream] = {}

    # -- starting ------------------------------------------------------------------

    def lost_power(self, boot_id: str) -> list[OpenStream]:
        """The streams that need `jump_ahead`, if the machine was restarted since.

        Then ``file_async`` may have lost offsets that only their producers know. A boot id may
        name a line of replicas after a slash: on another line every stream may have lost some.
        """
        if self.boot_id in {"", boot_id}:
            return []
        if self.boot_id.partition("/")[2] != boot_id.partition("/")[2]:
            return list(self.streams)
        loose = Persistence.FILE_ASYNC
        return [stream for stream in self.streams if stream.options.persistence is loose]

    def jump_ahead(self, stream: OpenStream) -> None:
        """Continue a stream after every offset ever exposed. Not durable by itself."""
        for index, first, end in stream.jump_ahead():
            self.skip(stream, index, [(first, end)])

    def opened(self, boot_id: str, new_cluster_id: str) -> None:
        """Record that offsets are exposed from now on; this must be durable before the first one.

        By then, everything that recovery found and every skipped gap must be synced. The cluster
        gets the id at its first start.
        """
        self._log(Opened(boot_id, self.cluster_id or new_cluster_id))

    # -- streams -----------------------------------------------------------------

    def create(self, name: str, given: Mapping[str, Any], now_ms: int) -> OpenStream:
        """Create a stream, or return it if its options match; else it is a conflict (SPEC E1)."""
        check_name(name, "stream")
        if name not in self.streams:
            return self.add(name, options_from(given, self.defaults), now_ms)
        stream = self.streams.get(name)
        check_same(name, stream.options, options_from(given, stream.options))
        return stream

    def add(
        self, name: str, options: StreamOptions, now_ms: int, number: int | None = None
    ) -> OpenStream:
        """Add a stream under a name known to be free; ``number`` is given if its logs exist."""
        created = StreamCreated(
            self.streams.next_id if number is None else number,
            name,
            options,
            max(now_ms, self.streams.last_created_ms + 1),
        )
        self._journal.append(created)
        return self.streams.add(created)

    def update(self, name: str, given: Mapping[str, Any], now_ms: int) -> OpenStream:
        """Change options of a stream while it runs."""
        stream = self.streams.get(name)
        options = updated(stream.options, given)
        if options.partitions > stream.options.partitions:
            stream.check_growable()
            self.grow(stream, options, [part.next_offset for part in stream.partitions()], now_ms)
        else:
            stream.options = options
            self._journal.append(Updated(stream.id, options))
        return stream

    def grow(
        self, stream: OpenStream, options: StreamOptions, ends: list[int], now_ms: int
    ) -> None:
        """Give a stream more partitions; those that it has end at ``ends``."""
        self.drain_groups()
        self._log(PartitionsAdded(stream.id, options, ends))
        stream.growths.first_transaction = self.transactions.next_id
        for name, group in self.ordered.items():
            group.grow(stream.name, len(ends), options.partitions, now_ms)
            self.reordered(name, group)

    def delete(self, name: str, now_ms: int) -> OpenStream:
        """Delete a stream and its groups; the owner removes its folder once that is durable."""
        stream = self.streams.get(name)
        stream.check_writable()
        for group_name, group in self.ordered.items():
            group.forget(name, now_ms)
            self.reordered(group_name, group)
        for transaction in self.transactions.touching(stream.id):
            self.abort(transaction)
        self.streams.remove(stream.id)
        stream.close()
        self._journal.append(Deleted(stream.id))
        return stream

    def tiered(self, stream: OpenStream, partition: int, offset: int) -> None:
        """Note that the lake holds everything below ``offset``: retention may free it (SPEC E4)."""
        stream.partition(partition).check_offset(offset)
        if offset > stream.tiered[partition]:
            stream.tiered[partition] = offset
            self._journal.append(Tiered(stream.id, partition, offset))

    def trimmed(self, stream: OpenStream, offset: int) -> None:
        """Messages below ``offset`` stay deleted though the log must keep them (SPEC I2)."""
        if offset > stream.front:
            stream.front = offset
            self._journal.append(StreamTrimmed(stream.id, offset))

    # -- producing -----------------------------------------------------------------

    def producer_owner(self, name: str) -> str:
        """The user whose producer has this name; empty if it is nobody's."""
        return self._producers.owners.get(name, "")

    def current_producer(self, name: str) -> ProducerSession | None:
        """The last session of a name."""
        return self._producers.current(name)

    def start_producer(self, name: str, now_ms: int, user: str = "") -> ProducerSession:
        """A producer id and epoch; a known name keeps its id and gets the next epoch (SPEC G3)."""
        session = self._producers.next_session(name, now_ms)
        self._log(ProducerStarted(*session, name, now_ms, user))
        return session

    def publish(
        self,
        stream: OpenStream,
        partition: int,
        entry: bytes,
        now_ms: int,
        transaction: OpenTransaction | None = None,
    ) -> list[Placed]:
        """Store a batch completely or not at all; see `nexo.brokers.stream.publishing.publish`."""
        stream.check_writable()
        placed: list[Placed] = []
        try:
            publishing.publish(stream, partition, entry, now_ms, transaction, placed)
        except (NexoError, OSError):
            for place in placed:  # the disk accepted only some of the partitions' parts
                self.hide(stream, place.partition, [(place.offset, place.offset + place.count)])
            raise
        for place in placed:
            self.published += place.count if place.new else 0
            self.grown(stream, place.partition, len(entry))
        return placed

    def publish_plain(
        self,
        stream: OpenStream,
        partition: int,
        values: Sequence[bytes],
        types: Sequence[int],
        now_ms: int,
    ) -> Placed:
        """Store records that arrived without a batch around them, as one."""
        stream.check_writable()
        offset = stream.partition(partition).add(values, types, now_ms)
        self.published += len(values)
        self.grown(stream, partition, sum(map(len, values)) + SIZE)
        return Placed(partition, offset, len(values), True)

    def grown(self, stream: OpenStream, partition: int, size_bytes: int) -> None:
        """Request a checkpoint from time to time, so that recovery reads only the log's tail."""
        key = stream.id, partition
        grown = self._unchecked.get(key, 0) + size_bytes
        self._unchecked[key] = grown
        if grown >= CHECKPOINT_BYTES:
            self.checkpoint(stream, partition)
            self._grown[stream.id] = stream

    def checkpoint(self, stream: OpenStream, partition: int) -> None:
        """Request a checkpoint of this partition from `take_checkpoints`."""
        self._unchecked.pop((stream.id, partition), None)
        self.wanted[stream.id, partition] = stream

    def checkpoint_all(self) -> None:
        """Request checkpoints of all partitions that have grown since their last one."""
        for stream in self.streams:
            for partition in stream.unchecked():
                self.checkpoint(stream, partition)

    def take_checkpoints(self) -> list[Checked]:
        """Where recovery of some partitions may start.

        Pass them to `checked` once everything written before this call is synced: a checkpoint must
        never cover records that a power loss can still remove.
        """
        wanted, self.wanted = self.wanted, {}
        return [
            Checked(number, index, stream.partition(index).checkpoint())
            for (number, index), stream in wanted.items()
        ]

    def take_grown(self) -> list[OpenStream]:
        """The streams that grew by a checkpoint's worth since the last call."""
        grown, self._grown = self._grown, {}
        return list(grown.values())

    def checked(self, record: Checked) -> None:
        """Journal a checkpoint."""
        stream = self.streams.numbered(record.stream)
        if stream is not None:
            stream.checkpoints[record.partition] = record.checkpoint
            stream.partition(record.partition).checked(record.checkpoint.offset)
            self._journal.append(record)

    # -- groups --------------------------------------------------------------------

    def make_group(
        self,
        stream: OpenStream,
        name: str,
        starts: Mapping[int, int],
        options: SharedOptions,
        after_id: Id | None = None,
    ) -> SharedGroup:
        """A new shared group, from an offset per partition on; for ``after_id`` see `Claims`."""
        check_name(name, "group")
        check_number(f"groups of stream {stream.name!r}", len(stream.groups), MAX_GROUPS)
        group = SharedGroup([starts.get(i, 0) for i in range(stream.options.partitions)], options)
        for index, partition in enumerate(stream.partitions()):
            group.skip([(index, first, end) for first, end in partition.aborted])
        group.drain()
        if group.claims is not None:
            group.claims.after_id = after_id
        stream.groups[name] = group
        self._journal.append(GroupMade(stream.id, name, group.snapshot()))
        return group

    def drop_group(self, stream: OpenStream, name: str) -> None:
        stream.group(name)
        del stream.groups[name]
        self._changed.pop((stream.id, name), None)
        self._journal.append(GroupDropped(stream.id, name))

    def changed(self, stream: OpenStream, name: str, group: SharedGroup) -> None:
        """Journal the changes of a group with this turn."""
        self._changed[stream.id, name] = group

    def make_ordered(self, name: str, options: OrderedOptions) -> OrderedGroup:
        """A new ordered group under a name known to be free."""
        check_name(name, "group")
        check_number("ordered groups", len(self.ordered), MAX_GROUPS)
        group = self.ordered[name] = OrderedGroup(options)
        self._journal.append(OrderedMade(name, group.snapshot()))
        return group

    def find_ordered(self, name: str) -> OrderedGroup:
        """An ordered group; `NotFound` if there is none."""
        if name not in self.ordered:
            raise no_group(name)
        return self.ordered[name]

    def drop_ordered(self, name: str) -> None:
        """Delete an ordered group and its offsets."""
        self.find_ordered(name)
        del self.ordered[name]
        self._reordered.pop(name, None)
        self._journal.append(OrderedDropped(name))

    def reordered(self, name: str, group: OrderedGroup) -> None:
        """Journal the changes of an ordered group with this turn."""
        self._reordered[name] = group

    # -- transactions --------------------------------------------------------------

    def commit(
        self, transaction: OpenTransaction, changes: list[GroupChanged | OrderedChanged]
    ) -> None:
        """Journal the decision; `settle` shows its writes once that is durable."""
        ranges = [
            (stream.id, index, first, end)
            for (_, index), stream in transaction.touched.items()
            for first, end in stream.partition(index).commit(transaction.id)
        ]
        transaction.decided = True
        self.transactions.committed(transaction.id, transaction.user)
        self._journal.append(
            TransactionCommitted(transaction.id, ranges, changes, transaction.user)
        )

    def abort(self, transaction: OpenTransaction) -> None:
        """Hide everything it wrote, permanently."""
        ranges: list[StreamRange] = []
        for (_, index), stream in transaction.touched.items():
            hidden = stream.partition(index).abort(transaction.id)
            ranges += [(stream.id, index, first, end) for first, end in hidden]
            self.skip(stream, index, hidden)
        if ranges:
            self._journal.append(Aborted(transaction.id, ranges))
        self.settle(transaction)

    def settle(self, transaction: OpenTransaction) -> None:
        """Let readers see what the transaction wrote."""
        for (_, index), stream in transaction.touched.items():
            stream.partition(index).settle(transaction.id)
        self.transactions.end(transaction)

    def hide(self, stream: OpenStream, partition: int, ranges: list[tuple[int, int]]) -> None:
        """Delete single records permanently: readers never see them again, even after a crash."""
        if ranges:
            stream.partition(partition).hide(ranges)
            self._journal.append(Hidden(stream.id, partition, ranges))
            self.skip(stream, partition, ranges)

    def skip(
        self,
        stream: OpenStream,
        partition: int,
        ranges: list[tuple[int, int]],
        *,
        in_lake: bool = False,
    ) -> None:
        """Mark these offsets as empty in every group of the stream.

        What is ``in_lake`` can still be read, except by groups with claims, which only read logs.
        """
        skipped = [(partition, first, end) for first, end in ranges]
        for name, group in stream.groups.items():
            if skipped and not (in_lake and group.claims is None):
                group.skip(skipped)
                self.changed(stream, name, group)

    # -- the journal -----------------------------------------------------------------

    def _log(self, record: JournalRecord) -> None:
        self.apply(record)
        self._journal.append(record)

    def drain(self) -> list[JournalRecord]:
        """The records of this turn; they take effect once they are durable."""
        self.drain_groups()
        records, self._journal = self._journal, []
        return records

    def drain_groups(self) -> None:
        """Record what groups did so far, so that later records follow it."""
        for (number, name), group in self._changed.items():
            if changes := group.drain():
                self._journal.append(GroupChanged(number, name, changes))
        self._changed.clear()
        for name, ordered in self._reordered.items():
            if moves := ordered.drain():
                self._journal.append(OrderedChanged(name, moves))
        self._reordered.clear()

    def undone(self, records: list[JournalRecord]) -> None:
        """Put back records that could not be written: `drain` returns them first."""
        self._journal[:0] = records

    def find(self, stream: str, group: str) -> tuple[OpenStream, SharedGroup]:
        """A stream and a shared group of it, by name; `NotFound` if there is none."""
        found = self.streams.get(stream)
        return found, found.group(group)
