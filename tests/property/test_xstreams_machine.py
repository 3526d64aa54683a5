"""Messages of `nexo.xstreams` on the server against a naive model: any order of commands, crashes
and stops (SPEC J2, J3)."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nexo.protocol import stream as wire
from nexo.protocol.ops import Op
from nexo.protocol.stream_publishing import TxBegin, publish_head
from nexo.services.stream.groups import xmessages
from nexo.storage.header import Flags
from tests.unit.brokers.stream.desk import Desk
from tests.unit.services.stream.groups.test_xgroups import Client

STEP = 4
"""Messages that the log drops at once, instead of a thousand."""
MAX_LENGTH = 6
LONGEST = 3
"""Messages published together."""
EVERYTHING = (0, 0), (2**64 - 1, 2**64 - 1)


class Group:
    """What a group must know of each message, by offset."""

    def __init__(self, unread: list[int]) -> None:
        self.unread = set(unread)
        self.pending: dict[int, str] = {}
        self.trimmed_unread = 0

    def lose(self, offset: int, *, trimmed: bool) -> None:
        self.trimmed_unread += trimmed and offset in self.unread
        self.unread.discard(offset)
        self.pending.pop(offset, None)


class XStreamMachine(RuleBasedStateMachine):
    """One stream and two groups, of which one reads."""

    def __init__(self) -> None:
        super().__init__()
        self.step, xmessages.TRIM_STEP = xmessages.TRIM_STEP, STEP
        self.ids: dict[int, tuple[int, int]] = {}
        self.shown: set[int] = set()
        self.single: set[int] = set()
        self.trimmed: set[int] = set()
        """Trimmed by themselves: visible again after a crash, unless the log dropped them."""
        self.deleted: set[int] = set()
        self.groups: dict[str, Group] = {"g": Group([])}
        self.end = 0
        self._connect(Desk(segment_bytes=1_024))
        self.client.group()

    def _connect(self, desk: Desk) -> None:
        self.desk = desk
        desk.service.core.snapshot_bytes = 400  # so that a few commands lead to one
        self.client = Client(desk, MAX_LENGTH)

    # -- the model

    @property
    def start(self) -> int:
        return self.client.peer.describe("s").partitions[0].start_offset

    def _added(self, message_id: tuple[int, int]) -> None:
        offset = message_id[1]
        assert offset >= self.end
        assert message_id > max(self.ids.values(), default=(0, 0))
        self.ids[offset] = message_id
        self.shown.add(offset)
        for group in self.groups.values():
            group.unread.add(offset)
        self.end = offset + 1

    def _trimmed(self, max_length: int) -> set[int]:
        gone = sorted(self.shown)[: max(0, len(self.shown) - max_length)]
        self._removed(gone, trimmed=True)
        return set(gone)

    def _removed(self, offsets: list[int], *, trimmed: bool) -> None:
        self.shown.difference_update(offsets)
        for group in self.groups.values():
            for offset in offsets:
                group.lose(offset, trimmed=trimmed)

    # -- adding

    @initialize(count=st.integers(0, 5))
    def begin(self, count: int) -> None:
        for _ in range(count):
            self.add()

    @rule()
    def add(self) -> None:
        message_id = self.client.add(self.end)
        self._added(message_id)
        self.single.add(message_id[1])
        self.trimmed |= self._trimmed(MAX_LENGTH)

    @precondition(lambda self: len(self.shown) < 3 * MAX_LENGTH)
    @rule(count=st.integers(1, LONGEST))
    def publish(self, count: int) -> None:
        [(_, first, _)] = self.client.peer.publish("s", *[b"x"] * count)
        stamp = self.client.peer.describe("s").partitions[0].last_ms
        for offset in range(first, first + count):
            self._added((stamp, offset))

    @precondition(lambda self: len(self.shown) < 3 * MAX_LENGTH)
    @rule(count=st.integers(1, LONGEST), commit=st.booleans())
    def transact(self, count: int, commit: bool) -> None:
        peer = self.client.peer
        number = peer.call(Op.S_TX_BEGIN, TxBegin(timeout_ms=900_000), int)
        batch = peer.batch(*[b"x"] * count, flags=int(Flags.TRANSACTIONAL))
        peer.ask(Op.S_TX_PUBLISH, number.to_bytes(8, "big") + publish_head("s", 0) + batch)
        peer.ask(Op.S_TX_COMMIT if commit else Op.S_TX_ABORT, wire.pack(number))
        partition = peer.describe("s").partitions[0]
        if commit:
            for offset in range(partition.next_offset - count, partition.next_offset):
                self._added((partition.last_ms, offset))
        self.end = partition.next_offset

    # -- removing

    @precondition(lambda self: self.shown & self.single)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        some = st.lists(st.sampled_from(sorted(self.shown & self.single)), min_size=1, unique=True)
        self._delete(data.draw(some))

    @rule(count=st.integers(1, 8))
    def delete_the_oldest(self, count: int) -> None:
        if offsets := sorted(self.shown & self.single)[:count]:
            self._delete(offsets)

    def _delete(self, offsets: list[int]) -> None:
        gone = [self.ids[offset] for offset in offsets]
        assert self.client.ids(Op.S_X_DELETE, *gone, (1, 1)) == len(gone)
        self._removed(offsets, trimmed=False)
        self.deleted.update(offsets)
        self._check_freed()

    @rule(max_length=st.integers(0, MAX_LENGTH))
    def trim(self, max_length: int) -> None:
        count = max(0, len(self.shown) - max_length)
        assert self.client.trim(max_length) == count
        gone = self._trimmed(max_length)
        # With or without one, what was trimmed before is dropped from the log as well.
        self.trimmed.clear()
        self.deleted |= gone
        self._check_freed()

    def _check_freed(self) -> None:
        """The log drops what precedes the first message in steps; its newest entry stays."""
        assert self.start > min(self.shown, default=self.end) - STEP - LONGEST

    # -- the groups

    @precondition(lambda self: "h" not in self.groups)
    @rule()
    def make_group(self) -> None:
        self.client.group("h")
        self.groups["h"] = Group(sorted(self.shown))

    @rule(who=st.sampled_from("ab"), count=st.integers(1, 4))
    def read(self, who: str, count: int) -> None:
        group = self.groups["g"]
        got = [offset for offset, _, _ in self.client.read(who, count)]
        assert bool(got) == bool(group.unread)
        assert got == sorted(group.unread)[: min(count, max(1, len(got)))]
        for offset in got:
            group.unread.remove(offset)
            group.pending[offset] = who

    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        pending = self.groups["g"].pending
        some = data.draw(st.sets(st.sampled_from(sorted(pending)))) if pending else set()
        acked = self.client.ids(Op.S_X_ACK, *[self.ids[offset] for offset in some], (1, 1))
        assert acked == len(some)
        for offset in some:
            del pending[offset]

    # -- faults

    @rule(ms=st.integers(-50, 50))
    def pass_time(self, ms: int) -> None:
        self.desk.runtime.time.now += ms

    @rule(graceful=st.booleans())
    def restart(self, graceful: bool) -> None:
        self._connect(self.desk.restart() if graceful else self.desk.crash())
        self.client.info()
        self.shown |= {each for each in self.trimmed - self.deleted if each >= self.start}
        self.trimmed.clear()

    # -- what must hold

    @invariant()
    def the_stream_holds_what_the_model_does(self) -> None:
        assert self.client.range(*EVERYTHING) == sorted(self.shown)
        assert self.client.info().length == len(self.shown)
        read = self.client.peer.rows("s", self.start) if self.end else []
        assert not self.deleted.intersection(row.offset for row in read)

    @invariant()
    def the_groups_add_up(self) -> None:
        for found in self.client.info().groups:
            group = self.groups[found.name]
            held = sorted(group.pending.values())
            assert (found.lag, found.pending) == (len(group.unread), len(held))
            assert found.trimmed_unread == group.trimmed_unread
            of_each = {each.name: each.pending for each in found.consumers if each.pending}
            assert of_each == {name: held.count(name) for name in held}
        rows = [(message_id[1], who) for message_id, who, _, _ in self.client.pending()]
        assert rows == sorted(self.groups["g"].pending.items())

    def teardown(self) -> None:
        xmessages.TRIM_STEP = self.step


TestXStreamMachine = XStreamMachine.TestCase
TestXStreamMachine.settings = settings(max_examples=60, stateful_step_count=40)
