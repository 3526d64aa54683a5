"""Transactions on the wire (SPEC H1).

A commit has two steps. First everything the transaction wrote is synced; only then the one
journal record that decides is written. So after a power loss there is never a decision about
records that are gone.
"""

from __future__ import annotations

from nexo.brokers.stream.records import GroupChanged, OrderedChanged
from nexo.brokers.stream.transactions import Acks, Offsets, Transaction
from nexo.errors import NexoError, TransactionAborted
from nexo.model import Persistence
from nexo.protocol import stream as wire
from nexo.protocol import stream_transactions as transactions
from nexo.protocol.frames import Reader
from nexo.protocol.ops import Op
from nexo.protocol.stream_publishing import PLACE, read_publish
from nexo.services.connection import Connection
from nexo.services.service import Handler, Peer
from nexo.services.stream.conditions import Conditions
from nexo.services.stream.core import Core, answer, safest
from nexo.services.stream.ordered import Ordered


class Transact:
    """Begin, publish, inputs, commit, abort."""

    def __init__(self, core: Core, ordered: Ordered, conditions: Conditions) -> None:
        self._core = core
        self._ordered = ordered
        self._conditions = conditions
        self.handlers: dict[int, Handler] = {
            Op.S_TX_BEGIN: self.begin,
            Op.S_TX_PUBLISH: self.publish,
            Op.S_TX_INPUTS: self.inputs,
            Op.S_TX_COMMIT: self.commit,
            Op.S_TX_ABORT: self.abort,
            Op.S_TX_OUTCOME: self.outcome,
        }
        self._asking: dict[int, list[tuple[Peer, int]]] = {}
        """By transaction: who waits to hear how it ends."""

    def begin(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Open a transaction; it lives no longer than its connection."""
        ask, core = wire.unpack(transactions.TxBegin, payload), self._core
        deadline_ms = core.now_ms + transactions.check_timeout(ask.timeout_ms)
        transaction = core.engine.transactions.begin(peer.id, deadline_ms)
        core.runtime.wake_at(deadline_ms)
        peer.data(request_id, wire.pack(transaction.id))

    def publish(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Store a batch that nobody sees yet."""
        reader, core = Reader(payload), self._core
        transaction = core.engine.transactions.get(reader.u64(), peer.id)
        name, partition, count, entry = read_publish(reader.rest())
        stream = core.engine.streams.get(name)
        if count:
            stream.check_count(count)
        core.runtime.check_writable()
        core.pressure.check()
        placed = core.engine.publish(stream, partition, entry, core.now_ms, transaction)
        core.appended(sum(place.count for place in placed))
        core.granting.written(len(entry))
        reply = b"".join([PLACE.pack(p.partition, p.offset, p.count) for p in placed])
        mode = Persistence.FILE_ASYNC  # file_sync too promises nothing before the commit
        if stream.options.persistence is mode:
            mode = core.granting.mode(stream, placed)
        core.runtime.committed(mode, lambda error: answer(peer, request_id, error, reply))

    def inputs(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Note what the transaction has read."""
        ask, core = wire.unpack(transactions.TxInputs, payload), self._core
        transaction = core.engine.transactions.get(ask.transaction, peer.id)
        acks = [
            Acks(core.engine.find(a.stream, a.group)[0], a.group, a.consumer, a.generation, a.spans)
            for a in ask.acks
        ]
        offsets = [
            Offsets(o.group, o.member, o.generation, self._ordered.commits(o.offsets), o.rewind)
            for o in ask.offsets
        ]
        transaction.acks += acks
        transaction.offsets += offsets
        self._conditions.add(transaction, ask.unchanged)
        peer.ok(request_id)

    # -- ending ----------------------------------------------------------------------

    def commit(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Make everything visible together."""
        core = self._core
        number = wire.unpack(int, payload)
        transaction = core.engine.transactions.get(number, peer.id)
        transaction.ending = True

        def synced(error: NexoError | None) -> None:
            self._decide(peer, request_id, transaction, error)

        def ready(error: NexoError | None) -> None:
            if error is not None:
                synced(error)
            else:
                core.when_safe_or_undone(Persistence.FILE_SYNC, synced)

        self._conditions.prepare(transaction, ready)

    def _decide(
        self, peer: Peer, request_id: int, transaction: Transaction, error: NexoError | None
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
                peer.fail(request_id, reason)

            core.when_safe_or_undone(Persistence.FILE_ASYNC, rolled_back)
            return
        core.engine.commit(transaction, changes)
        self._conditions.decided(transaction)

        def safe(failed: NexoError | None) -> None:
            if failed is not None:
                peer.fail(request_id, failed)
                return
            core.engine.settle(transaction)
            for stream in transaction.touched.values():
                core.touched(stream)
            peer.ok(request_id)
            self._tell(transaction.id)

        core.when_safe(safest(transaction.touched.values()), safe)

    def _finish_inputs(self, transaction: Transaction) -> list[GroupChanged | OrderedChanged]:
        """Check every input, then finish all; what the groups did goes into the decision."""
        self._check_inputs(transaction)
        engine, now_ms = self._core.engine, self._core.now_ms
        engine.drain_groups()
        changes: list[GroupChanged | OrderedChanged] = []
        for acks in transaction.acks:
            group = acks.stream.group(acks.group)
            group.ack(acks.consumer, acks.generation, acks.spans)
            changes.append(GroupChanged(acks.stream.id, acks.group, group.drain()))
            self._core.touched(acks.stream)
        for offsets in transaction.offsets:
            ordered = engine.find_ordered(offsets.group)
            ordered.commit(
                offsets.member,
                offsets.generation,
                offsets.commits,
                now_ms,
                rewind=offsets.rewind,
            )
            changes.append(OrderedChanged(offsets.group, ordered.drain()))
        return changes

    def _check_inputs(self, transaction: Transaction) -> None:
        self._conditions.check(transaction)
        for acks in transaction.acks:
            group = acks.stream.group(acks.group)
            # Renewing the leases tells whether they are held, and keeps them held.
            refusals = group.extend(acks.consumer, acks.generation, self._core.now_ms, acks.spans)
            if refusals:
                raise refusals[0].error
        for offsets in transaction.offsets:
            ordered = self._core.engine.find_ordered(offsets.group)
            ordered.check(offsets.member, offsets.generation, offsets.commits)

    def abort(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Hide everything it wrote, for good."""
        core = self._core
        self._abort(core.engine.transactions.get(wire.unpack(int, payload), peer.id))
        core.ok_when_safe(Persistence.FILE_ASYNC, peer, request_id)

    def outcome(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Tell how a transaction ended, once it has."""
        number = wire.unpack(int, payload)
        if self._core.engine.transactions.outcome(number) is None:
            peer.ok(request_id)
        else:
            self._asking.setdefault(number, []).append((peer, request_id))

    def _tell(self, number: int) -> None:
        """It has ended."""
        for peer, request_id in self._asking.pop(number, ()):
            try:
                self._core.engine.transactions.outcome(number)
                peer.ok(request_id)
            except NexoError as error:
                peer.fail(request_id, error)

    def _abort(self, transaction: Transaction) -> None:
        """Roll back: readers go on behind it, and its inputs are delivered again."""
        core = self._core
        self._conditions.forget(transaction)
        core.engine.abort(transaction)
        for stream in transaction.touched.values():
            core.touched(stream)
        for acks in transaction.acks:
            group = acks.stream.groups.get(acks.group)
            if group is not None and acks.consumer in group.members:
                self._release(acks)
        core.end_turn_soon()
        self._tell(transaction.id)

    def _release(self, acks: Acks) -> None:
        group = acks.stream.group(acks.group)
        if acks.generation == group.generation:
            group.release(acks.consumer, acks.generation, acks.spans)
            self._core.changed(acks.stream, acks.group, group)
            self._core.touched(acks.stream)

    def peer_closed(self, peer: Connection) -> None:
        """Roll back what the connection left open."""
        for transaction in self._core.engine.transactions.of(peer.id):
            self._abort(transaction)

    def tick(self, now_ms: int) -> None:
        """Roll back what nobody ended in time."""
        for transaction in self._core.engine.transactions.overdue(now_ms):
            self._abort(transaction)
        for number in [n for n in self._asking if n not in self._core.engine.transactions]:
            self._tell(number)  # a stream it wrote to was deleted
        for deadline_ms in self._core.engine.transactions.deadlines():
            self._core.runtime.wake_at(deadline_ms)
