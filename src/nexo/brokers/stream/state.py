"""The durable state of the stream broker, besides the records in their logs."""

from __future__ import annotations

from nexo.brokers.stream.groups.kafka.model import KeptGroup
from nexo.brokers.stream.groups.ordered import OrderedGroup
from nexo.brokers.stream.groups.shared import SharedGroup
from nexo.brokers.stream.producers import ProducerNames, ProducerSession
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
    RestingProducer,
    StreamChange,
    StreamCreated,
    StreamSnapshot,
    StreamTrimmed,
    Tiered,
    TransactionCommitted,
    Updated,
)
from nexo.brokers.stream.registry import OpenLog, OpenStream, StreamRegistry
from nexo.brokers.stream.transactions import Transactions


class BrokerState:
    """Streams, groups and producers: a snapshot, and the journalled changes since."""

    def __init__(self, open_log: OpenLog) -> None:
        self.streams = StreamRegistry(open_log, self._exposed_end)
        self.captured: dict[tuple[int, int], int] = {}
        """By stream number and partition: one past what change capture has seen."""
        self.transactions = Transactions()
        self.ordered: dict[str, OrderedGroup] = {}
        self._producers = ProducerNames()
        self.boot_id = ""
        """The machine's boot id at the last start; empty after a clean shutdown.

        All that recovery found is synced before `StreamEngine.opened` sets it.
        """
        self.cluster_id = ""
        """What Kafka's clients know this broker by; as unique and durable as its data."""
        self.resting: dict[str, RestingProducer] = {}
        """Transactional producers that had nothing open when the broker was last shut down."""
        self.kept_groups: dict[str, KeptGroup] = {}
        """Kafka's groups that had members then."""
        self._deleted: list[str] = []

    def _exposed_end(self, stream: OpenStream, index: int) -> int:
        at = stream.name, index
        stored = (group.offsets.get(at) for group in self.ordered.values())
        seen = (kept.offset + 1 for kept in stored if kept is not None and not kept.is_ahead)
        committed = max(seen, default=0)
        return max(committed, stream.known_end(index), self.captured.get((stream.id, index), 0))

    def take_deleted(self) -> list[str]:
        """Folders of streams that recovery found to be deleted; they may still exist."""
        folders, self._deleted = self._deleted, []
        return folders

    def apply(self, record: JournalRecord) -> None:
        """Apply a journalled change during recovery."""
        match record:
            case StreamCreated():
                self.streams.add(record)
            case Deleted(number):
                if (stream := self.streams.remove(number)) is not None:
                    self._deleted.append(stream.folder)
            case Opened(boot_id, cluster_id):
                self.boot_id = boot_id
                self.resting, self.kept_groups = {}, {}
                self.cluster_id = cluster_id or self.cluster_id
                self.transactions.started()
            case ProducerStarted():
                session = ProducerSession(record.producer, record.epoch)
                self._producers.started(record.name, session, record.started_ms, record.user)
            case TransactionCommitted():
                self._recommit(record)
            case Aborted(number):
                self.transactions.next_id = max(self.transactions.next_id, number + 1)
            case OrderedMade():
                self.ordered[record.group] = OrderedGroup.restore(record.state)
            case OrderedChanged():
                for move in record.records:
                    self.ordered[record.group].apply(move)
            case OrderedDropped():
                self.ordered.pop(record.group, None)
            case _:
                self._apply_to_stream(record)

    def _recommit(self, record: TransactionCommitted) -> None:
        self.transactions.next_id = max(self.transactions.next_id, record.transaction + 1)
        self.transactions.committed(record.transaction, record.user)
        for number, index, first, end in record.ranges:
            stream = self.streams.numbered(number)
            if stream is not None:
                stream.recommit(index, first, end)
        for change in record.changes:
            self.apply(change)

    def _apply_to_stream(self, record: StreamChange) -> None:
        stream = self.streams.numbered(record.stream)
        if stream is None:
            return
        match record:
            case Updated():
                stream.options = record.options
            case PartitionsAdded():
                stream.grow(record.options, record.ends)
            case Tiered():
                stream.tiered[record.partition] = record.offset
            case StreamTrimmed():
                stream.front = record.offset
            case Hidden():
                stream.rehide(record.partition, record.ranges)
            case Checked():
                stream.checkpoints[record.partition] = record.checkpoint
            case GroupMade():
                stream.groups[record.group] = SharedGroup.restore(record.state)
            case GroupDropped():
                stream.groups.pop(record.group, None)
            case GroupChanged():
                for change in record.records:
                    stream.groups[record.group].apply(change)

    def snapshot(self, *, synced: bool) -> StreamSnapshot:
        """Everything that `restore` needs to continue from here; see `OpenStream.state`."""
        return StreamSnapshot(
            self.streams.next_id,
            self.transactions.next_id,
            self._producers.next_id,
            {**self._producers.state()},
            [stream.state(synced=synced) for stream in self.streams],
            {name: group.snapshot() for name, group in self.ordered.items()},
            "" if synced else self.boot_id,
            self.transactions.outcomes(),
            self.streams.last_created_ms,
            dict(self._producers.owners),
            self.cluster_id,
            self.resting if synced else {},
            self.kept_groups if synced else {},
        )

    def restore(self, snapshot: StreamSnapshot) -> None:
        """Restore a snapshot; for a fresh engine only."""
        self.transactions.restore(snapshot.next_transaction, snapshot.outcomes)
        for name, (producer, epoch, *started_ms) in snapshot.producers.items():
            user = snapshot.producer_owners.get(name, "")
            session = ProducerSession(producer, epoch)
            self._producers.started(name, session, (started_ms or [0])[0], user)
        self._producers.next_id = snapshot.next_producer
        for state in snapshot.streams:
            self.streams.restore(state)
        self.streams.next_id = max(self.streams.next_id, snapshot.next_stream)
        self.streams.last_created_ms = max(self.streams.last_created_ms, snapshot.last_created_ms)
        self.boot_id = snapshot.boot_id
        self.cluster_id = snapshot.cluster_id
        self.resting, self.kept_groups = snapshot.resting, snapshot.kept_groups
        for name, group in snapshot.ordered.items():
            self.ordered[name] = OrderedGroup.restore(group)
