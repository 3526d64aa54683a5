"""What deleted messages cost a stream on the server, and what is left of them (SPEC J2, J3, J4)."""

from __future__ import annotations

from typing import Any, SupportsIndex

import pytest

from nexo.brokers.stream.groups.ranges import RangeSet
from nexo.protocol import stream as wire
from nexo.protocol import xstreams as x
from nexo.protocol.ops import Op
from nexo.protocol.values import encode_value
from nexo.services.stream.groups.xmessages import TRIM_STEP
from nexo.storage.log import SegmentedLog
from tests.unit.brokers.stream.desk import Desk
from tests.unit.services.stream.groups.test_xgroups import Client


@pytest.fixture
def desk() -> Desk:
    return Desk()


def bounds(client: Client) -> tuple[int, int]:
    """Where the log begins and ends."""
    info = client.peer.describe("s").partitions[0]
    return info.start_offset, info.next_offset


class Looked(list[int]):
    """The bounds of ranges; counts how many are looked at."""

    touched = 0

    def __getitem__(self, index: SupportsIndex | slice) -> Any:
        Looked.touched += len(range(len(self))[index]) if isinstance(index, slice) else 1
        return super().__getitem__(index)


def watch(*sets: RangeSet) -> None:
    for ranges in sets:
        ranges._starts, ranges._ends = Looked(ranges._starts), Looked(ranges._ends)
    Looked.touched = 0


class TestCost:
    """Measured in bounds of deleted ranges that are looked at."""

    @pytest.mark.parametrize("deletes", [10, 5_000])
    def test_a_message_added_to_a_full_stream_costs_what_it_trims(
        self, desk: Desk, deletes: int
    ) -> None:
        client = Client(desk, 10_000)
        client.group()
        added = [client.add(0) for _ in range(5_000 + deletes)]
        client.ids(Op.S_X_DELETE, *added[1 : 2 * deletes : 2])
        client.max_length = 5_000
        stream, group = desk.service.core.engine.find("s", "g")
        watch(stream.partition(0).aborted, group._progress[0].done)
        for _ in range(100):
            client.add(0)
        assert Looked.touched < 100 * 200
        assert client.info().length == 5_000
        assert client.info().groups[0].trimmed_unread == 100

    def test_many_trimmed_at_once_are_walked_over_once(self, desk: Desk) -> None:
        client = Client(desk, 10_000)
        added = [client.add(0) for _ in range(4_000)]
        client.ids(Op.S_X_DELETE, *added[1::2])
        watch(desk.service.core.engine.streams.get("s").partition(0).aborted)
        assert client.trim(100) == 1_900
        assert Looked.touched < 4 * 2_000
        assert client.info().length == 100

    def test_a_poll_does_not_read_what_is_deleted_at_the_end(
        self, desk: Desk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        client = Client(desk, 100_000)
        client.group()
        added = [client.add("x" * 100) for _ in range(8_000)]
        client.read("a", 1)
        client.ids(Op.S_X_DELETE, *added[1:])

        def read(log: SegmentedLog, offset: int, max_bytes: int) -> bytes:
            raise AssertionError(f"the log was read at {offset}")

        monkeypatch.setattr(SegmentedLog, "read", read)
        assert client.read("a", 1) == []


class TestTheLog:
    def test_is_freed_though_every_message_is_deleted(self, desk: Desk) -> None:
        client = Client(desk, max_length=100)
        client.group()
        for n in range(2 * TRIM_STEP + 10):
            assert client.ids(Op.S_X_DELETE, client.add(n)) == 1
            start, end = bounds(client)
            assert end - start <= TRIM_STEP + 1
        info = client.info()
        assert (info.length, info.groups[0].lag, info.groups[0].trimmed_unread) == (0, 0, 0)

    def test_is_freed_up_to_the_first_message_that_is_left(self, desk: Desk) -> None:
        client = Client(desk)
        added = [client.add(n) for n in range(TRIM_STEP + 10)]
        client.ids(Op.S_X_DELETE, *added[2:-5])
        assert bounds(client)[0] == 0
        client.ids(Op.S_X_DELETE, *added[:2])
        assert bounds(client)[0] == TRIM_STEP + 5
        assert client.range((0, 0), (2**64 - 1, 0)) == [seq for _, seq in added[-5:]]

    @pytest.mark.parametrize("graceful", [False, True])
    def test_is_as_free_after_a_restart(self, desk: Desk, graceful: bool) -> None:
        client = Client(desk)
        client.group()
        added = [client.add(n) for n in range(TRIM_STEP + 10)]
        client.read("a", 3)
        client.ids(Op.S_X_DELETE, *added[:2], *added[3:-4], added[-2])
        for _ in range(2):
            before = bounds(client)
            desk = desk.restart() if graceful else desk.crash()
            client = Client(desk)
            assert bounds(client) == before
            info = client.info()
            assert (info.length, info.groups[0].lag, info.groups[0].pending) == (4, 3, 1)
        client.ids(Op.S_X_ACK, added[2])
        client.ids(Op.S_X_DELETE, added[2])
        client = Client(desk.restart() if graceful else desk.crash())
        assert bounds(client)[0] == TRIM_STEP + 6
        left = [TRIM_STEP + 6, TRIM_STEP + 7, TRIM_STEP + 9]
        assert [offset for offset, _, _ in client.read()] == left
        assert client.add("next")[1] == TRIM_STEP + 10

    def test_is_freed_after_a_restart_that_finds_it_full_of_deleted_messages(
        self, desk: Desk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        client = Client(desk)
        added = [client.add(n) for n in range(2 * TRIM_STEP)]
        with monkeypatch.context() as patch:
            patch.setattr("nexo.services.stream.groups.xmessages.TRIM_STEP", 10**9)
            client.ids(Op.S_X_DELETE, *added)
        client = Client(desk.crash())
        assert bounds(client)[0] == 0
        client.ids(Op.S_X_DELETE, client.add("one more"))
        assert bounds(client) == (2 * TRIM_STEP, 2 * TRIM_STEP + 1)


class TestIds:
    @pytest.mark.parametrize("trim", [False, True])
    @pytest.mark.parametrize("graceful", [False, True])
    def test_rise_though_nothing_is_left_and_the_clock_steps_back(
        self, desk: Desk, graceful: bool, trim: bool
    ) -> None:
        client = Client(desk)
        added = [client.add(n) for n in range(TRIM_STEP)]
        assert (client.trim(0) if trim else client.ids(Op.S_X_DELETE, *added)) == TRIM_STEP
        for _ in range(2):
            desk.runtime.time.now -= 500
            desk = desk.restart() if graceful else desk.crash()
            client = Client(desk)
            assert client.info().length == 0
            assert client.peer.read("s", bounds(client)[0]) == []
        assert client.add("next") > added[-1]

    def test_rise_after_a_batch_was_trimmed(self, desk: Desk) -> None:
        client = Client(desk)
        client.add(0)
        client.peer.publish("s", b"one", b"two", b"three")
        last = desk.runtime.time.now, 3
        assert client.trim(0) == 4
        desk.runtime.time.now -= 500
        client = Client(desk.crash())
        assert (client.info().length, client.peer.read("s", bounds(client)[0])) == (0, [])
        assert client.add("next") > last


class TestGroups:
    @pytest.mark.parametrize("delete", [False, True])
    def test_hold_nothing_that_the_log_dropped_right_before_a_crash(
        self, desk: Desk, delete: bool
    ) -> None:
        """The log drops at once, the journal is written at the end of the turn."""
        client = Client(desk, max_length=TRIM_STEP)
        client.group()
        added = [client.add(n) for n in range(TRIM_STEP)]
        client.read("a", 2)
        ask = x.Ids("s", "", added) if delete else x.Trim("s", 0)
        handler = desk.handlers[Op.S_X_DELETE if delete else Op.S_X_TRIM]
        handler(client.peer, 0, memoryview(wire.pack(ask)))
        assert 0 not in client.peer.replies
        client = Client(desk.crash())
        client.add("next")
        [group] = client.info().groups
        assert group.lag + group.pending == client.info().length
        got = client.read("b", 1_000)
        assert len(client.pending()) == client.info().length
        assert got[-1] == (TRIM_STEP, "next", 1)

    def test_know_what_another_protocol_dropped(self, desk: Desk) -> None:
        client = Client(desk)
        client.group()
        for n in range(10):
            client.add(n)
        client.read("a", 2)
        desk.service.admin.drop_before(client.peer, "s", 0, 5)
        [group] = client.info().groups
        assert (client.info().length, group.lag, group.pending) == (5, 5, 0)
        assert [offset for offset, _, _ in client.read("b")] == [5, 6, 7, 8, 9]
        assert len(client.pending()) == 5


def test_a_snapshot_names_what_is_deleted_once(desk: Desk) -> None:
    client = Client(desk)
    added = [client.add(encode_value(n)) for n in range(6)]
    client.ids(Op.S_X_DELETE, *added[1::2])
    stream = desk.service.core.engine.streams.get("s")
    for _ in range(3):
        desk.service.core._save(synced=False)
        assert stream.checkpoints[0].aborted == [(1, 2), (3, 4), (5, 6)]


def test_nothing_is_kept_of_a_deleted_stream(desk: Desk) -> None:
    client = Client(desk)
    client.add(0)
    client.peer.ask(Op.S_DELETE, b"\x00\x00\x00\x01s")
    assert not desk.service.xmessages._logs
