"""The stream service against a naive model: any order of commands, crashes and stops."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from nexo.batch import decode, entries
from nexo.protocol import stream as wire
from nexo.protocol.ops import Op
from nexo.protocol.stream_publishing import TxBegin, publish_head, read_places
from nexo.storage.header import Flags
from tests.unit.brokers.stream.desk import Consumer, Desk, Peer

KEYS = st.sampled_from([None, b"a", b"b", b"c"])
SIZES = st.integers(1, 4)


class Row:
    """A record as the model has it."""

    def __init__(self, value: bytes, key: bytes | None, transaction: int | None) -> None:
        self.value = value
        self.key = key
        self.transaction = transaction
        """The open transaction it belongs to; None once it is visible."""
        self.hidden = False
        """Rolled back or compacted away."""


class StreamMachine(RuleBasedStateMachine):
    """One stream of one partition, one group, some transactions."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[Row] = []
        self.open: set[int] = set()
        self.acked: set[int] = set()
        self.held: dict[int, int] = {}
        self.start = 0
        self._connect(Desk(segment_bytes=1_024))
        self.peer.make("s", cleanup="delete,compact", retention_ms=1_000_000, min_dirty_ratio=1.0)

    def _connect(self, desk: Desk) -> None:
        self.desk = desk
        desk.service.core.snapshot_bytes = 400  # so that a few commands lead to one
        self.peer: Peer = desk.client()
        self.consumer: Consumer | None = None
        self.held.clear()
        for row in self.rows:
            if row.transaction is not None:
                row.transaction, row.hidden = None, True
        self.open.clear()

    def _rows(self, keys: list[bytes | None], transaction: int | None) -> bytes:
        rows = [Row(b"%d" % (len(self.rows) + i), key, transaction) for i, key in enumerate(keys)]
        self.rows += rows
        flags = Flags.TRANSACTIONAL if transaction is not None else 0
        return self.peer.batch(*[row.value for row in rows], keys=keys, flags=int(flags))

    # -- writing

    @rule(keys=st.lists(KEYS, min_size=1, max_size=5))
    def publish(self, keys: list[bytes | None]) -> None:
        first = len(self.rows)
        reply = self.peer.ask(Op.S_PUBLISH, publish_head("s", 0) + self._rows(keys, None))
        assert list(read_places(reply)) == [(0, first, len(keys))]

    @precondition(lambda self: len(self.open) < 3)
    @rule()
    def begin(self) -> None:
        self.open.add(self.peer.call(Op.S_TX_BEGIN, TxBegin(timeout_ms=900_000), int))

    @precondition(lambda self: self.open)
    @rule(data=st.data(), keys=st.lists(KEYS, min_size=1, max_size=5))
    def publish_in_transaction(self, data: st.DataObject, keys: list[bytes | None]) -> None:
        number = data.draw(st.sampled_from(sorted(self.open)))
        head = number.to_bytes(8, "big") + publish_head("s", 0)
        self.peer.ask(Op.S_TX_PUBLISH, head + self._rows(keys, number))

    @precondition(lambda self: self.open)
    @rule(data=st.data(), commit=st.booleans())
    def end(self, data: st.DataObject, commit: bool) -> None:
        number = data.draw(st.sampled_from(sorted(self.open)))
        self.peer.ask(Op.S_TX_COMMIT if commit else Op.S_TX_ABORT, wire.pack(number))
        self.open.discard(number)
        for row in self.rows:
            if row.transaction == number:
                row.transaction, row.hidden = None, not commit

    # -- forgetting

    @precondition(lambda self: not self.open)
    @rule()
    def compact(self) -> None:
        self.peer.call(Op.S_COMPACT, wire.StreamName(stream="s"), int)
        newest: dict[bytes, int] = {}
        for offset in self._visible():
            if (key := self.rows[offset].key) is not None:
                newest[key] = offset
        for offset in self._visible():
            row = self.rows[offset]
            row.hidden = row.key is not None and newest[row.key] != offset

    @precondition(lambda self: not self.open)
    @rule()
    def grow_old(self) -> None:
        self.desk.after(1_000_001)
        self.peer.call(Op.S_RETAIN, wire.StreamName(stream="s"), int)
        self.start = len(self.rows)
        self.held.clear()

    @precondition(lambda self: self._stable() > self.start)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        """Forget the front, to the middle of a batch perhaps."""
        self.start = data.draw(st.integers(self.start + 1, self._stable()))
        self.desk.service.admin.drop_before(self.peer, "s", 0, self.start)
        self.desk.runtime.end_turn()
        self.held = {offset: n for offset, n in self.held.items() if offset >= self.start}

    # -- the group

    @rule(limit=SIZES)
    def take(self, limit: int) -> None:
        if self.consumer is None:
            self.consumer = self.peer.join("s", "g", options={"max_deliveries": 0})
        for got in self.consumer.take(limit):
            row = self.rows[got.offset]
            assert got.offset in self._visible()
            assert got.offset not in self.acked
            assert got.offset not in self.held
            assert got.value == row.value
            self.held[got.offset] = got.attempt

    @precondition(lambda self: self.held)
    @rule(data=st.data(), ack=st.booleans())
    def settle(self, data: st.DataObject, ack: bool) -> None:
        assert self.consumer is not None
        offset = data.draw(st.sampled_from(sorted(self.held)))
        refused = self.consumer.settle("ack" if ack else "nack", offset)
        if ack and not refused:
            self.acked.add(offset)
        del self.held[offset]

    # -- faults

    @rule()
    def crash(self) -> None:
        self._connect(self.desk.crash())

    @rule()
    def restart(self) -> None:
        self._connect(self.desk.restart())

    # -- what must hold

    def _stable(self) -> int:
        """Where the first open transaction begins, or the end."""
        undecided = (at for at, row in enumerate(self.rows) if row.transaction is not None)
        return next(undecided, len(self.rows))

    def _visible(self) -> list[int]:
        return [at for at in range(self.start, self._stable()) if not self.rows[at].hidden]

    @invariant()
    def readers_see_the_model(self) -> None:
        seen: list[tuple[int, bytes | None]] = []
        at = self.peer.describe("s").partitions[0].start_offset
        while True:
            reply = self.peer.ask(Op.S_READ, wire.pack(wire.Read("s", 0, at, 700)))
            head, rest = wire.unpack_headed(wire.ReadReply, reply)
            rows = [row for entry in entries(rest) for row in decode(entry).records()]
            seen += [(row.offset, row.value) for row in rows if row.offset >= at]
            if head.next_offset >= head.stable_offset:
                break
            at = head.next_offset
        assert seen == [(offset, self.rows[offset].value) for offset in self._visible()]

    def teardown(self) -> None:
        """At last the group gets everything that is left, once."""
        for number in sorted(self.open):
            self.peer.ask(Op.S_TX_ABORT, wire.pack(number))
        self._connect(self.desk.crash())
        group = self.peer.join("s", "g")
        while found := group.take(3):
            offsets = [got.offset for got in found]
            assert not self.acked.intersection(offsets)
            assert group.settle("ack", *offsets) == []
            self.acked.update(offsets)
        assert set(self._visible()) <= self.acked
        assert self.peer.group("s", "g").lag == 0


TestStreamMachine = StreamMachine.TestCase
TestStreamMachine.settings = settings(max_examples=60, stateful_step_count=40)
