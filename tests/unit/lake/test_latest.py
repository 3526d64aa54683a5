"""The table of newest records holds what a compacted topic means."""

from __future__ import annotations

import random

from nexo.lake.catalog import Lake, StreamId
from nexo.lake.latest import finish, plan, run

from .conftest import Filler

STREAM = StreamId("log", 1)


def compact(lake: Lake) -> int:
    table, steps = plan(lake, STREAM)
    if steps:
        finish(table, steps, [run(step) for step in steps])
    return len(steps)


def state(lake: Lake) -> list[tuple[int, bytes | None, bytes]]:
    rows = lake.get("log", "_latest").scan().to_arrow().to_pylist()
    return sorted((row["offset"], row["key"], row["value"]) for row in rows)


def test_the_newest_record_of_each_key_stays_at_its_offset(lake: Lake, filler: Filler) -> None:
    filler.append([b"1", b"2", b"3", b"4"], keys=[b"a", b"b", None, b"a"])
    assert compact(lake) == 1
    assert state(lake) == [(1, b"b", b"2"), (2, None, b"3"), (3, b"a", b"4")]
    filler.append([None, b"5", b"6"], keys=[b"a", b"c", None])
    assert compact(lake) == 1
    assert state(lake) == [(1, b"b", b"2"), (2, None, b"3"), (5, b"c", b"5"), (6, None, b"6")]
    assert compact(lake) == 0


def test_steps_give_the_same_as_one_pass(lake: Lake, filler: Filler) -> None:
    chance = random.Random(7)
    expected: dict[bytes, tuple[int, bytes]] = {}
    offset = 0
    for _ in range(6):
        keys = [b"%d" % chance.randrange(40) for _ in range(50)]
        values = [None if chance.random() < 0.2 else b"%d" % n for n in range(50)]
        filler.append(values, keys=keys)
        for key, value in zip(keys, values, strict=True):
            expected.pop(key, None)
            if value is not None:
                expected[key] = offset, value
            offset += 1
        compact(lake)
    assert state(lake) == sorted((o, key, value) for key, (o, value) in expected.items())


def test_a_step_taken_twice_changes_nothing(lake: Lake, filler: Filler) -> None:
    filler.append([b"1", b"2"], keys=[b"a", b"a"])
    table, steps = plan(lake, STREAM)
    finish(table, steps, [run(step) for step in steps])
    before = state(lake)
    assert compact(lake) == 0
    assert state(lake) == before
