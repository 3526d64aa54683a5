"""Transactions (SPEC H1).

A commit has two steps. First, everything the transaction wrote is synced; only then is the
one journal record written that decides. So a decision never survives a power loss without
its records.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

from nexo import limits
from nexo.access.permit import READ, permit
from nexo.brokers.stream.groups.ordered import STANDALONE
from nexo.brokers.stream.groups.ordered_state import OffsetCommit
from nexo.brokers.stream.groups.shared import SharedGroup
from nexo.brokers.stream.publishing import ROUTE, Placed
from nexo.brokers.stream.records import GroupChanged, OrderedChanged
from nexo.brokers.stream.registry import OpenStream
from nexo.brokers.stream.transactions import Acks, Offsets, OpenTransaction
from nexo.errors import NexoError, TransactionAborted, Unavailable
from nexo.model import Broker, Persistence
from nexo.model.stream import KeyAt, TxAcks, TxOffsets
from nexo.options.stream import check_transaction
from nexo.services.connection import Connection, Done, user_of
from nexo.services.stream.conditions import Conditions
from nexo.services.stream.core import Core, safest
from nexo.services.stream.groups.offsets import GroupOffsets
from nexo.services.stream.permits import in_group
from nexo.services.stream.publish import Publishing
from nexo.services.ticking import RETRY_MS, for_each
from nexo.services.waiting import Wait

ENDED = "ended"
"""Requests for an outcome wait on ``(ENDED, number)``; channels of streams begin with a number."""


class Transact:
    """Begin, publish, inputs, commit, abort.

    A transaction belongs to its ``owner``: a connection, whose end rolls it back, or a name
    that a dialect gives, such as a producer that moves between connections. Only the owner
    writes to it and ends it; only the user that began it may ask for its outcome.
    """

    def __init__(
        self, core: Core, publishing: Publishing, offsets: GroupOffsets, conditions: Conditions
    ) -> None:
        self._core = core
        self._publishing = publishing
        self._offsets = offsets
        self._conditions = conditions

    def begin(self, connection: Connection, timeout_ms: int, owner: Hashable | None = None) -> int:
        """Open a transaction, rolled back unless it ends in time; returns its number."""
        core = self._core
        core.check_lends()
        deadline_ms = core.now_ms + check_transaction(timeout_ms)
        owner = connection.id if owner is None else owner
        found = core.engine.transactions.begin(owner, deadline_ms, user_of(connection))
        core.runtime.wake_at(deadline_ms)
        return found.id

    def deadline_ms(self, number: int | None) -> int | None:
        """When a transaction will be rolled back; None if it is not open."""
        found = self._core.engine.transactions.known(number)
        return None if found is None else found.deadline_ms

    def touched(self, number: int | None) -> list[tuple[str, int]]:
        """The partitions that a transaction has written to, if it is open."""
        found = self._core.engine.transactions.known(number)
        if found is None:
            return []
        return [(stream.name, index) for (_, index), stream in found.touched.items()]

    def start_in(self, number: int | None, name: str, partition: int) -> int | None:
        """The first offset that a transaction has written in a partition, if it is open."""
        ranges = self._core.engine.streams.get(name).partition(partition).open_ranges
        mine = ranges.get(-1 if number is None else number)
        return mine[0][0] if mine else None

    def is_open(self, number: int, owner: Hashable) -> bool:
        """Whether this transaction of an owner has neither ended nor been rolled back."""
        return self._core.engine.transactions.has(number, owner)

    def publish(
        self,
        connection: Connection,
        number: int,
        name: str,
        entry: bytes,
        done: Done[list[Placed]],
        partition: int = ROUTE,
        partitions: int = 0,
        owner: Hashable | None = None,
    ) -> None:
        """Store a batch that stays invisible until the commit."""
        core = self._core
        transaction = self._open(connection, number, owner)
        stream = self._publishing.target(connection, name, partitions)
        placed = self._publishing.store(stream, partition, entry, transaction)
        core.appended(sum(place.count for place in placed))
        core.exposure.written(len(entry))
        mode = Persistence.FILE_ASYNC  # even file_sync promises nothing before the commit
        if stream.options.persistence is mode:
            mode = core.exposure.mode(stream, placed)
        core.when_appended(stream, mode, lambda error: done(error or placed))

    def add_inputs(
        self,
        connection: Connection,
        number: int,
        acks: Sequence[TxAcks] = (),
        offsets: Sequence[TxOffsets] = (),
        unchanged: Iterable[KeyAt] = (),
        owner: Hashable | None = None,
    ) -> None:
        """Add the transaction's inputs."""
        core, unchanged = self._core, list(unchanged)
        _permit_inputs(connection, acks, offsets, unchanged)
        transaction = self._open(connection, number, owner)
        finished = [Acks(core.engine.find(ask.stream, ask.group)[0], ask) for ask in acks]
        commits = self._offsets.commits
        moved = [Offsets(ask, commits(connection, ask), checked=False) for ask in offsets]
        transaction.acks += finished
        transaction.offsets += moved
        self._conditions.add(transaction, unchanged)

    def add_checked_offsets(
        self,
        connection: Connection,
        number: int,
        group: str,
        commits: Sequence[OffsetCommit],
        owner: Hashable,
    ) -> None:
        """Add offsets of a group; the caller has checked the member and that it may use the group.

        They may lie beyond the end.
        """
        for commit in commits:
            if connection.identity is not None:
                permit(connection.identity, Broker.STREAM, READ, in_group(commit.topic, group))
        transaction = self._open(connection, number, owner)
        ask = TxOffsets(group, "", STANDALONE, [], rewind=True)
        transaction.offsets.append(Offsets(ask, self._offsets.placed(commits), checked=True))

    def _open(self, connection: Connection, number: int, owner: Hashable | None) -> OpenTransaction:
        owner = connection.id if owner is None else owner
        return self._core.engine.transactions.get(number, owner)

    # -- ending ----------------------------------------------------------------------

    def commit(
        self,
        connection: Connection,
        number: int,
        done: Done[None],
        owner: Hashable | None = None,
    ) -> None:
        """Make everything visible together; `TransactionAborted` if it was rolled back."""
        core = self._core
        transaction = self._open(connection, number, owner)
        transaction.ending = True

        def synced(error: NexoError | None) -> None:
            self._decide(transaction, error, done)

        def ready(error: NexoError | None) -> None:
            if error is not None:
                synced(error)
            else:
                core.when_safe_or_undone(Persistence.FILE_SYNC, synced)

        self._conditions.prepare(transaction, ready)

    def _decide(
        self, transaction: OpenTransaction, error: NexoError | None, done: Done[None]
    ) -> None:
        core = self._core
        try:
            if error is not None:
                raise error
            if not core.engine.transactions.is_open(transaction):
                raise TransactionAborted("a stream it wrote to was deleted")
            changes = self._finish_inputs(transaction)
        except NexoError as cause:
            self._abort(transaction)
            reason = TransactionAborted(f"the transaction was rolled back: {cause.message}")

            def rolled_back(_: NexoError | None) -> None:
                done(reason)

            core.when_safe_or_undone(Persistence.FILE_ASYNC, rolled_back)
            return
        core.engine.commit(transaction, changes)
        self._conditions.decided(transaction)

        def safe(failed: NexoError | None) -> None:
            if failed is not None:
                done(failed)
                return
            core.engine.settle(transaction)
            for stream in transaction.touched.values():
                core.touched(stream)
            done(None)
            core.waits.wake((ENDED, transaction.id))

        core.when_safe(safest(transaction.touched.values()), safe)

    def _finish_inputs(self, transaction: OpenTransaction) -> list[GroupChanged | OrderedChanged]:
        """Check every input, then finish all; the groups' changes are part of the decision."""
        self._check_inputs(transaction)
        engine, now_ms = self._core.engine, self._core.now_ms
        engine.drain_groups()
        changes: list[GroupChanged | OrderedChanged] = []
        for stream, acks in transaction.acks:
            group = stream.group(acks.group)
            group.ack(acks.consumer, acks.generation, acks.ranges)
            changes.append(GroupChanged(stream.id, acks.group, group.drain()))
            self._core.touched(stream)
        for ask, commits, checked in transaction.offsets:
            ordered = engine.find_ordered(ask.group)
            ordered.commit(
                ask.member, ask.generation, commits, now_ms, rewind=ask.rewind, checked=checked
            )
            changes.append(OrderedChanged(ask.group, ordered.drain()))
        return changes

    def _check_inputs(self, transaction: OpenTransaction) -> None:
        self._conditions.check(transaction)
        for stream, acks in transaction.acks:
            group = stream.group(acks.group)
            # Renewing the leases checks that they are held, and keeps them.
            refusals = group.extend(acks.consumer, acks.generation, self._core.now_ms, acks.ranges)
            if refusals:
                raise refusals[0].error
        for ask, commits, checked in transaction.offsets:
            ordered = self._core.engine.find_ordered(ask.group)
            ordered.check(ask.member, ask.generation, commits, rewind=ask.rewind, checked=checked)

    def pending(self, group: str) -> set[tuple[str, int]]:
        """The partitions whose offsets an open transaction will commit for an ordered group."""
        return self._core.engine.transactions.pending(group)

    def abort(
        self,
        connection: Connection,
        number: int,
        done: Done[None],
        owner: Hashable | None = None,
    ) -> None:
        """Hide everything it wrote, permanently."""
        self._abort(self._open(connection, number, owner))
        self._core.when_safe(Persistence.FILE_ASYNC, done)

    def outcome(
        self, connection: Connection, ticket: Hashable, number: int, done: Done[None]
    ) -> None:
        """Answer how a transaction of this user ended, once it has; see `commit`.

        Another user's looks as if it was rolled back.
        """
        user, transactions = user_of(connection), self._core.engine.transactions

        def attempt() -> bool | None:
            return True if transactions.outcome(number, user) is None else None

        def answer(found: Any) -> None:
            done(found if isinstance(found, NexoError) else None)

        due_ms = self._core.due_ms(limits.STREAM_WAIT_MS)
        still_open = Unavailable(f"transaction {number} has not ended yet: ask again")
        self._core.answer_or_wait(
            Wait(
                connection, ticket, ((ENDED, number),), due_ms, attempt, answer, still_open,
                each=True,
            )
        )  # fmt: skip

    def _abort(self, transaction: OpenTransaction) -> None:
        """Roll back: readers skip its records, and its inputs are delivered again."""
        core = self._core
        self._conditions.forget(transaction)
        core.engine.abort(transaction)
        for stream in transaction.touched.values():
            core.touched(stream)
        for stream, acks in transaction.acks:
            group = stream.groups.get(acks.group)
            if group is not None and acks.consumer in group.members:
                self._release(stream, group, acks)
        core.end_turn_soon()
        core.waits.wake((ENDED, transaction.id))

    def _release(self, stream: OpenStream, group: SharedGroup, acks: TxAcks) -> None:
        if acks.generation == group.generation:
            group.release(acks.consumer, acks.generation, acks.ranges)
            self._core.changed(stream, acks.group, group)
            self._core.touched(stream)

    def connection_closed(self, connection: Connection) -> None:
        """Roll back what the connection left open."""
        for transaction in self._core.engine.transactions.of(connection.id):
            self._abort(transaction)

    def tick(self, now_ms: int) -> None:
        """Roll back transactions past their deadline."""
        overdue = self._core.engine.transactions.overdue(now_ms)
        for_each(overdue, self._abort, lambda transaction: transaction.postpone(now_ms + RETRY_MS))
        self._core.waits.wake_under(ENDED)  # a stream that one wrote to may have been deleted
        for deadline_ms in self._core.engine.transactions.deadlines():
            self._core.runtime.wake_at(deadline_ms)


def _permit_inputs(
    connection: Connection,
    acks: Sequence[TxAcks],
    offsets: Sequence[TxOffsets],
    unchanged: Iterable[KeyAt],
) -> None:
    if connection.identity is None:
        return
    names = {in_group(ack.stream, ack.group) for ack in acks}
    names |= {in_group(row[0], each.group) for each in offsets for row in each.offsets}
    names |= {key.stream for key in unchanged}
    for name in names:
        permit(connection.identity, Broker.STREAM, READ, name)
