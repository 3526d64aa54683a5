"""What deleted messages cost a stream on the server, and what is left of them (SPEC J2, J3, J4)."""

from __future__ import annotations

from typing import Any, SupportsIndex

import pytest

from nexo.brokers.stream.groups.ranges import RangeSet
from nexo.protocol.ops import Op
from nexo.storage.log import SegmentedLog
from tests.unit.brokers.stream.desk import Desk
from tests.unit.xstreams.test_nexo_service import Client


@pytest.fixture
def desk() -> Desk:
    return Desk()


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
