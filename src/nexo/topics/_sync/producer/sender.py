# Generated from _async/producer/sender.py by tools/unasync.py; edit that file instead.
"""Gathers messages into batches by partition, and decides when each is sent (SPEC G3).

A batch is sent when it is full or when its first message has waited for the linger time.
Each partition has one batch in flight at a time, so that writing it again after a lost
connection keeps the order.

A batch carries the partition count by which its partition was chosen. If the topic was
created again with another count the broker rejects it, and all waiting messages are placed
again.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock

from nexo.client._sync import runtime
from nexo.client._sync.client import Client
from nexo.client.forks import from_before, on_fork
from nexo.client.stream_records import BATCH_BYTES
from nexo.errors import (
    ClientClosed,
    Conflict,
    Fenced,
    InvalidInput,
    NexoError,
    PartitionsChanged,
    PayloadTooLarge,
)
from nexo.topics._sync.producer.batch_writer import BatchWriter
from nexo.topics._sync.producer.delivery import Delivery
from nexo.topics.model import ProducerRecord, RecordMetadata, SenderOptions, TopicPartition
from nexo.topics.packing import Chooser, FailedSends, Packed, PartitionBacklog, Partitioner

_CONCURRENT = 8
"""Partitions with a batch in flight at once."""
_LOOK_S = 0.05
"""The pause between checks whether everything is decided."""


class NexoSender:
    """Gathers messages for a Nexo server."""

    def __init__(self, client: Client, options: SenderOptions, partitioner: Partitioner) -> None:
        self._writer = BatchWriter(client, options)
        self._options = options
        self._chooser = Chooser(partitioner)
        self._counts: dict[str, int] = {}
        self._unplaced: dict[str, list[Packed[Delivery]]] = {}
        """Messages of topics whose partition count is not known, or no longer."""
        self._backlogs: dict[TopicPartition, PartitionBacklog[Delivery]] = {}
        self._guard = Lock()
        """Any thread may send, in the sync client."""
        self._open = 0
        """Messages not decided yet."""
        self._wake = runtime.Event()
        self._idle = runtime.Event()
        self._flushing = 0
        self._closed = False
        self._fatal: NexoError | None = None
        self._failed = FailedSends()
        self._workers = runtime.Workers(_CONCURRENT, name="nexo-producer")
        self._task: runtime.Task | None = None
        on_fork(self)

    def forked(self) -> None:
        """After a fork both processes would continue the sequence, and the
        server would take the messages of one for repeats.
        """
        self._guard, self._wake, self._idle = Lock(), runtime.Event(), runtime.Event()
        self._task, self._open, self._unplaced, self._backlogs = None, 0, {}, {}
        self._fatal = Conflict(from_before("the producer"))

    # -- taking messages in

    def send(self, topic: str, record: ProducerRecord) -> Delivery:
        """Add a message to its partition's batch."""
        if self._closed:
            raise Conflict("the producer is closed")
        if self._fatal is not None:
            raise self._fatal
        if not isinstance(topic, str):
            raise InvalidInput(f"topic {topic!r} is not a name: give a text")
        packed = Packed(record, Delivery())
        with self._guard:
            self._open += 1
            if topic in self._counts:
                self._place(topic, packed)
            else:
                self._unplaced.setdefault(topic, []).append(packed)
                self._wake.set()
            if self._task is None:
                self._task = runtime.spawn(self._run, name="nexo-producer")
        return packed.delivery

    def _place(self, topic: str, packed: Packed[Delivery]) -> None:
        count = self._counts[topic]
        try:
            partition = self._chooser.partition_of(topic, packed.partition, packed.key, count)
        except Exception as error:  # whatever a custom partitioner raises
            self._failed.add([packed.delivery], error)
            self._settled(1)
            return
        at = TopicPartition(topic, partition)
        backlog = self._backlogs.get(at)
        if backlog is None:
            backlog = self._backlogs[at] = PartitionBacklog(at)
        if not backlog.waiting:
            backlog.first_s = runtime.now_s()
        backlog.waiting.append(packed)
        backlog.count = count
        if len(backlog.waiting) in (1, self._options.batch_size):
            self._wake.set()

    def flush(self) -> None:
        """Send everything at once, and wait for it."""
        self._flushing += 1
        try:
            while self._open:
                self._idle.clear()
                self._wake.set()
                self._idle.wait(_LOOK_S)
        finally:
            self._flushing -= 1

    def close(self) -> None:
        """Flush, and send nothing more; raises a failure that nobody has asked for."""
        self.flush()
        self._closed = True
        self._writer.close()
        self._wake.set()
        if self._task is not None:
            self._task.join()
        self._failed.raise_unasked()

    # -- sending

    def _run(self) -> None:
        try:
            self._send_all()
        finally:
            if not self._closed:  # otherwise senders would wait for ever
                text = (
                    "the producer has ended with the event loop or thread it ran on: make another"
                )
                self._fatal, self._open = Conflict(text), 0

    def _send_all(self) -> None:
        while not self._closed:
            self._wake.wait(self._pause_s())
            self._wake.clear()
            for topic in list(self._unplaced):
                if not any(backlog.busy for backlog in self._backlogs_of(topic)):
                    self._learn(topic)
            for backlog in list(self._backlogs.values()):
                if not backlog.busy and self._due(backlog):
                    backlog.busy = True
                    self._workers.start(self._work, backlog)
        self._workers.drain()

    def _pause_s(self) -> float | None:
        """Time until the next batch is due."""
        backlogs = list(self._backlogs.values())  # other threads add to it
        waiting = [each.first_s for each in backlogs if self._may_go(each) and not each.busy]
        if not waiting:
            return None
        return max(0.0, min(waiting) + self._options.linger_ms / 1000 - runtime.now_s())

    def _may_go(self, backlog: PartitionBacklog[Delivery]) -> bool:
        """Whether something waits, and its place is certain."""
        return bool(backlog.waiting) and backlog.at.topic in self._counts

    def _due(self, backlog: PartitionBacklog[Delivery]) -> bool:
        if not self._may_go(backlog):
            return False
        waited_s = runtime.now_s() - backlog.first_s
        return (
            len(backlog.waiting) >= self._options.batch_size
            or self._flushing > 0
            or waited_s >= self._options.linger_ms / 1000
        )

    def _backlogs_of(self, topic: str) -> list[PartitionBacklog[Delivery]]:
        return [backlog for backlog in list(self._backlogs.values()) if backlog.at.topic == topic]

    def _learn(self, topic: str) -> None:
        """Look up a topic's partition count, and place what waits for it, in order."""
        try:
            count = self._writer.insist(lambda: self._writer.count(topic))
        except Exception as error:  # these messages fail; those of other topics continue
            with self._guard:
                waiting = self._take_back(topic)
            self._decided(waiting, error)
            return
        with self._guard:
            self._counts[topic] = count
            for packed in self._take_back(topic):
                self._place(topic, packed)

    def _take_back(self, topic: str) -> list[Packed[Delivery]]:
        """The waiting messages of a topic, those placed before first: in order per key."""
        found: list[Packed[Delivery]] = []
        for backlog in self._backlogs_of(topic):
            found += backlog.waiting
            backlog.waiting.clear()
        return found + self._unplaced.pop(topic)

    def _forget_count(self, topic: str) -> None:
        """The topic was created again: place waiting messages again once nothing is in flight."""
        self._counts.pop(topic, None)
        self._unplaced.setdefault(topic, [])
        self._wake.set()

    def _work(self, backlog: PartitionBacklog[Delivery]) -> None:
        """Send a partition's batches while they are due."""
        while True:
            again = self._send(backlog, self._cut(backlog))
            with self._guard:
                if again:
                    backlog.waiting.extendleft(reversed(again))
                    self._forget_count(backlog.at.topic)
                if not self._due(backlog):
                    backlog.busy = False
                    self._wake.set()
                    return

    def _cut(self, backlog: PartitionBacklog[Delivery]) -> list[Packed[Delivery]]:
        with self._guard:
            batch, size_bytes = [backlog.waiting.popleft()], 0
            while backlog.waiting and len(batch) < self._options.batch_size:
                size_bytes += batch[-1].size_bytes
                if size_bytes + backlog.waiting[0].size_bytes > BATCH_BYTES:
                    break
                batch.append(backlog.waiting.popleft())
            backlog.first_s = runtime.now_s()
            return batch

    def _send(
        self, backlog: PartitionBacklog[Delivery], batch: list[Packed[Delivery]]
    ) -> list[Packed[Delivery]]:
        """Send a batch; returns what has to be placed again."""
        try:
            first = self._writer.write(backlog.at, backlog.count, batch)
        except PayloadTooLarge as error:
            return self._send_halves(backlog, batch, error)
        except PartitionsChanged:
            return batch
        except Exception as error:  # these messages fail; those after them continue
            if isinstance(error, Fenced):
                self._fatal = error
            self._decided(batch, error)
            return []
        for number, packed in enumerate(batch):
            packed.delivery.settle(RecordMetadata(*backlog.at, first + number))
        self._finished(len(batch))
        return []

    def _send_halves(
        self,
        backlog: PartitionBacklog[Delivery],
        batch: list[Packed[Delivery]],
        error: PayloadTooLarge,
    ) -> list[Packed[Delivery]]:
        """Send it again in halves, so that only the message that is too large fails."""
        middle = len(batch) // 2
        if not middle:
            self._decided(batch, error)
            return []
        again = self._send(backlog, batch[:middle])
        if again:
            return again + batch[middle:]
        return self._send(backlog, batch[middle:])

    # -- what became of messages

    def _decided(self, batch: list[Packed[Delivery]], error: BaseException) -> None:
        if isinstance(error, ClientClosed):
            error = ClientClosed(
                "the producer's client was closed before it: close the producer first"
            )
        self._failed.add([packed.delivery for packed in batch], error)
        self._finished(len(batch))

    def _finished(self, count: int) -> None:
        with self._guard:
            self._settled(count)

    def _settled(self, count: int) -> None:
        self._open -= count
        if not self._open:
            self._idle.set()

    # -- all or none

    def send_together(self, topic: str, records: Sequence[ProducerRecord]) -> list[RecordMetadata]:
        """Send all of them or none."""
        packed = [Packed(record, None) for record in records]
        if not packed:
            return []
        try:
            return self._store_together(topic, packed)
        except PartitionsChanged:  # nothing is stored
            with self._guard:
                self._forget_count(topic)
            return self._store_together(topic, packed)

    def _store_together(self, topic: str, packed: list[Packed[None]]) -> list[RecordMetadata]:
        count = self._counts.get(topic) or self._known_count(topic)
        partitions = [
            self._chooser.partition_of(topic, each.partition, each.key, count) for each in packed
        ]
        return self._writer.write_together(topic, partitions, count, packed)

    def _known_count(self, topic: str) -> int:
        count = self._writer.count(topic)
        with self._guard:
            if topic not in self._unplaced:  # otherwise `_learn` reports it
                self._counts.setdefault(topic, count)
        return count
