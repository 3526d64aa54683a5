# Generated from _async/consumer/consumer.py by tools/unasync.py; edit that file instead.
"""Consumers: messages one by one or in batches, and their commits (SPEC G4, G5)."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from threading import Lock
from typing import Any, Generic, Literal

from nexo.client._sync import runtime
from nexo.client._sync.client import Client
from nexo.client.checks import not_keywords, text, whole
from nexo.client.forks import on_fork
from nexo.errors import (
    Conflict,
    ConnectionLost,
    Fenced,
    InvalidInput,
    InvalidOption,
    OutcomeUnknown,
    Unavailable,
)
from nexo.options.stream import Strategy
from nexo.options.units import Duration, millis
from nexo.topics._sync.consumer.message_source import Doubts, MessageSource
from nexo.topics._sync.consumer.subscription import ConsumerSubscription
from nexo.topics._sync.nexo_backend import GroupReader, backend_for
from nexo.topics.model import (
    Committed,
    ReaderOptions,
    Rebalance,
    Reset,
    T,
    TopicMessage,
    TopicPartition,
    topic_names,
)
from nexo.topics.places import (
    Commitable,
    PartitionOrNumber,
    commits_of,
    position_in,
    time_ms,
    topic_partition_of,
)
from nexo.topics.progress import MessageProgress, current_transaction
from nexo.topics.settings import at_least_one, group_timeout_ms, interval_ms, one_of

log = logging.getLogger("nexo.topics")

_WAIT_S = 20.0
"""How long iteration waits before it checks for changes."""


class RebalanceHandlers:
    """Users' handlers of rebalances, in the order they were added (SPEC G6)."""

    def __init__(self) -> None:
        self._handlers: list[Callable[[Rebalance], Any]] = []

    def add(self, event: str, handler: Callable[[Rebalance], Any]) -> None:
        if event != "rebalance":
            raise InvalidInput(f"there is no event {event!r}: the only one is 'rebalance'")
        self._handlers.append(handler)

    def call(self, event: Rebalance) -> None:
        for handler in self._handlers:
            try:
                runtime.invoke(handler, event)
            except Exception:
                # It runs within a heartbeat: its failure must not end the membership.
                log.exception("a rebalance handler failed on %s", event)


class Consumer(Generic[T]):
    """A member of a consumer group; it joins on first use.

    With ``auto_commit`` a message counts as processed when the next one is requested, or when
    the consumer is closed: a crash in between delivers it again, and nothing before it, because
    every poll commits what was processed. ``auto_commit_interval`` is the pause after a
    failed commit.
    """

    def __init__(
        self,
        topic: str | Iterable[str] | None = None,
        group_id: str = "",
        *,
        auto_commit: bool = True,
        auto_commit_interval: Duration = 5.0,
        max_poll_records: int = 100,
        session_timeout: Duration | None = None,
        rebalance_timeout: Duration | None = None,
        rebalance_strategy: Strategy | None = None,
        auto_offset_reset: Reset = "earliest",
        server: Client | str | None = None,
        type_: type[T] | None = None,
        handlers: RebalanceHandlers | None = None,
    ) -> None:
        if isinstance(group_id, Mapping):
            raise not_keywords((group_id,), "Consumer(topic, group_id='g')")
        if not group_id:
            raise InvalidOption("a consumer needs a group_id")
        self.group_id = text(group_id, "group_id")
        self._auto_commit = auto_commit
        self._retry_s = interval_ms("auto_commit_interval", auto_commit_interval) / 1000
        self._max_poll_records = at_least_one("max_poll_records", max_poll_records)
        self._handlers = handlers or RebalanceHandlers()
        options = ReaderOptions(
            () if topic is None else topic_names(topic),
            self.group_id,
            rebalance_strategy,
            group_timeout_ms("session_timeout", session_timeout),
            group_timeout_ms("rebalance_timeout", rebalance_timeout),
            one_of("auto_offset_reset", auto_offset_reset, "earliest", "latest"),
        )
        self._backend = backend_for(server)
        self._subscription = ConsumerSubscription(self._backend, options, self, type_)
        self._progress: MessageProgress[T] = MessageProgress()
        self._doubts = Doubts()
        self._source = MessageSource(
            self.group_id, self._subscription, self._progress, self._doubts
        )
        self._retry_at_s = 0.0
        self._handled: BaseException | None = None
        """The exception that was being handled when the user got what they hold."""
        self._guard = Lock()
        """Another thread, or task, may close it while this one polls."""
        on_fork(self)

    def forked(self) -> None:
        """After a fork, nobody in this process holds the guard."""
        self._guard = Lock()

    # -- membership

    @property
    def topics(self) -> Sequence[str]:
        """The topics that it is subscribed to."""
        return self._subscription.topics

    @property
    def member_id(self) -> str:
        """The group's name for it; empty before it joined."""
        reader = self._subscription.reader
        return "" if reader is None else reader.member

    @property
    def generation(self) -> int:
        """The group's generation it works in."""
        reader = self._subscription.reader
        return 0 if reader is None else reader.generation

    @property
    def assignment(self) -> Sequence[TopicPartition]:
        """The partitions it owns."""
        reader = self._subscription.reader
        return () if reader is None else reader.assignment

    def subscribe(self, topics: str | Iterable[str]) -> None:
        """Read these topics instead of the previous ones; if that fails, the previous ones stay."""
        names = topic_names(topics)
        if names != self._subscription.topics:
            self._leave()
        self._subscription.change(names)

    def join(self) -> None:
        """Join the group; every other method does so automatically."""
        self._subscription.join()

    def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """Called by the reader: these are revoked; commits what was processed of them first."""
        left = [at for at in self.assignment if at not in partitions]
        self._report("revoked", partitions, left)
        gone = self._progress.leave(partitions)
        reader = self._subscription.reader
        if self._auto_commit and gone and reader is not None:
            reader.commit(gone)

    def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """Called by the reader: these were assigned."""
        self._report("assigned", partitions, self.assignment)

    def _report(
        self,
        kind: Literal["revoked", "assigned"],
        partitions: Sequence[TopicPartition],
        owned: Sequence[TopicPartition],
    ) -> None:
        member, generation = self.member_id, self.generation
        event = Rebalance(kind, tuple(partitions), tuple(owned), member, generation)
        self._handlers.call(event)

    def on(self, event: str, handler: Callable[[Rebalance], Any]) -> None:
        """Call ``handler`` with each `Rebalance`; the only event is ``'rebalance'``."""
        self._handlers.add(event, handler)

    # -- receiving

    def poll(self, timeout: Duration = 1.0) -> TopicMessage[T] | None:
        """The next message; None if none came within ``timeout``."""
        found = self._next(1, timeout)
        return found[0] if found else None

    def poll_batch(
        self, max_records: int | None = None, timeout: Duration = 1.0
    ) -> list[TopicMessage[T]]:
        """The next messages, up to ``max_poll_records``, of all partitions in turn."""
        if max_records is None:
            return self._next(self._max_poll_records, timeout)
        return self._next(whole(max_records, "max_records", 1, 2**31), timeout)

    def _next(self, count: int, timeout: Duration) -> list[TopicMessage[T]]:
        timeout_s = millis(timeout, "timeout") / 1000
        reader = self._subscription.reading()
        if self._doubts and not self._doubts.settled(timeout_s):
            return []
        if self._processed() and reader.is_up():
            self._commit_processed(reader)
        found = reader.fetch(count, timeout_s)
        with self._guard:
            if self._subscription.closed:
                return []  # they are delivered to others
            self._progress.held, self._handled = found, sys.exc_info()[1]
        for message in found:
            message.source = self._source
        if (transaction := current_transaction.get()) is not None:
            transaction.polled(self._source, found)
        return found

    def _processed(self) -> bool:
        """The next messages are requested, so those delivered before are processed; whether they
        are to be committed now.
        """
        self._progress.finish()
        due = runtime.now_s() >= self._retry_at_s
        return self._auto_commit and bool(self._progress.processed) and due

    def _commit_processed(self, reader: GroupReader) -> None:
        commits = dict(self._progress.processed)
        try:
            reader.commit(commits)
        except (ConnectionLost, Unavailable, TimeoutError) as error:
            log.warning("group %r could not commit: %s", self.group_id, error)
            self._retry_at_s = runtime.now_s() + self._retry_s
            return
        except Fenced as error:
            log.info(
                "group %r could not commit, so others process it again: %s", self.group_id, error
            )
        self._progress.committed(commits)

    def __iter__(self) -> Consumer[T]:
        return self

    def __next__(self) -> TopicMessage[T]:
        try:
            while not self._subscription.closed:
                message = self.poll(_WAIT_S)
                if message is not None:
                    return message
        except (Conflict, ConnectionLost):
            if not self._subscription.closed:
                raise
        raise StopIteration

    # -- committing

    def commit(self, what: Commitable = None, *, metadata: str = "") -> None:
        """Commit what was processed; without ``what``, everything delivered so far.

        ``what`` is a message, its offset (then only its partition is meant), a mapping with
        ``topic``, ``partition`` and ``offset``, or several of these.
        """
        reader = self._subscription.joined()
        if not self._doubts.settled(_WAIT_S):
            raise OutcomeUnknown("whether these were committed in a transaction is unknown")
        if what is None:
            commits = self._progress.so_far(metadata)
        else:
            commits = commits_of(what, metadata, self._progress.held, reader.assignment)
        if commits:
            reader.commit(commits)
            self._progress.committed(commits)

    def committed(self, partition: int = 0, topic: str | None = None) -> Committed | None:
        """The group's stored position in a partition: offset, metadata and time."""
        at = topic_partition_of(partition, topic, self._subscription.topics)
        reader = self._subscription.joined()
        return reader.committed(at)

    # -- moving about

    def seek(
        self,
        partition: int | Mapping[str, Any],
        offset: int | None = None,
        *,
        topic: str | None = None,
    ) -> None:
        """Continue at ``offset`` of a partition that is assigned to this consumer.

        Also as one mapping: ``seek({'partition': 0, 'offset': 1000})``.
        """
        if not isinstance(partition, Mapping):
            partition = {"topic": topic, "partition": partition, "offset": offset}
        place = position_in(partition, self._subscription.topics)
        self._seek({place.topic_partition: place.offset})

    def seek_to_beginning(self, *partitions: PartitionOrNumber) -> None:
        """Replay these partitions from the start, or all that it owns."""
        reader, chosen = self._subscription.chosen(partitions)
        self._seek({at: (reader.bounds(at))[0] for at in chosen})

    def seek_to_end(self, *partitions: PartitionOrNumber) -> None:
        """Skip to the latest of these partitions, or of all that it owns."""
        reader, chosen = self._subscription.chosen(partitions)
        self._seek({at: (reader.bounds(at))[1] for at in chosen})

    def seek_to_timestamp(self, time: datetime | int, *partitions: PartitionOrNumber) -> None:
        """Continue at the first message at or after that time (or Unix milliseconds)."""
        since_ms = time_ms(time)
        reader, chosen = self._subscription.chosen(partitions)
        self._seek({at: reader.offset_at(at, since_ms) for at in chosen})

    def _seek(self, positions: Mapping[TopicPartition, int]) -> None:
        reader = self._subscription.joined()
        reader.seek(positions)
        self._progress.leave(positions)

    def pause(self, *partitions: PartitionOrNumber) -> None:
        """Deliver nothing from these partitions, or from all that it owns, until `resume`."""
        reader, chosen = self._subscription.chosen(partitions)
        reader.pause(chosen, paused=True)

    def resume(self, *partitions: PartitionOrNumber) -> None:
        """Undo `pause`."""
        reader, chosen = self._subscription.chosen(partitions)
        reader.pause(chosen, paused=False)

    # -- ending

    def close(self) -> None:
        """Leave the group; with ``auto_commit``, delivered messages count as processed.

        Except while an exception is being handled that was raised since: then they may have failed,
        and are delivered again. Call `commit` first if they did not.
        """
        error = sys.exc_info()[1]
        self._close(failed=error is not None and error is not self._handled)

    def _close(self, *, failed: bool) -> None:
        with self._guard:
            self._subscription.closed = True
        if failed:
            self._progress.held = []
        try:
            self._leave()
        finally:
            self._backend.close()

    def _leave(self) -> None:
        reader = self._subscription.reader
        if reader is None:
            return
        self._retry_at_s = 0.0
        reader.interrupt()
        try:
            if not self._doubts.settled(0.0):
                self._progress.held = []
            if self._processed():
                self._commit_processed(reader)
        finally:  # a member that nobody uses would keep its partitions
            self._subscription.leave()
            self._handled = None
            self._progress.processed.clear()
            self._doubts.clear()

    def __enter__(self) -> Consumer[T]:
        if self._subscription.topics:
            self.join()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._close(failed=error is not None)
