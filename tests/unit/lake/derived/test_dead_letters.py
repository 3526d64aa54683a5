"""Records that the typed columns refuse are in a table of their own, once (SPEC I4)."""

from __future__ import annotations

from typing import Any

import pytest

from nexo.errors import NotFound
from nexo.lake.catalog import Lake
from nexo.lake.commit import LostRace
from nexo.lake.derived import dead_letters
from nexo.lake.maintenance.maintain import Care, maintain
from nexo.lake.reading import ordered
from nexo.lake.tables import DEAD_LETTERS, StreamId
from nexo.lake.typed.columns import set_schema
from tests.unit.lake.conftest import Filler

STREAM = StreamId("log", 1)


def collect(lake: Lake) -> int:
    """Collect what is due; returns of how many partitions."""
    planned = dead_letters.plan(lake, STREAM)
    if planned is None:
        return 0
    table, steps = planned
    dead_letters.finish(table, steps, [dead_letters.run(step) for step in steps])
    return len(steps)


def letters(lake: Lake) -> list[tuple[Any, ...]]:
    rows = lake.get("log", DEAD_LETTERS).scan().to_arrow().to_pylist()
    return sorted((row["partition"], row["offset"], row["value"]) for row in rows)


@pytest.fixture
def typed(filler: Filler) -> Filler:
    filler.append([b"older than the columns"])
    filler.table = set_schema(filler.table, {"id": "long"})
    return filler


def test_a_refused_record_is_kept_as_published_with_the_reason(lake: Lake, typed: Filler) -> None:
    typed.append([b'{"id": 1}', b'{"id": "x"}', b"\xff"], keys=[b"a", b"b", None])
    assert collect(lake) == 1
    rows = lake.get("log", DEAD_LETTERS).scan().to_arrow().sort_by("offset").to_pylist()
    assert [(row["offset"], row["key"], row["value"]) for row in rows] == [
        (2, b"b", b'{"id": "x"}'), (3, None, b"\xff"),
    ]  # fmt: skip
    assert rows[0]["headers"] == '{"n":1}'
    assert rows[0]["timestamp"].year == 1970
    assert "id" in rows[0]["reason"]
    assert all(row["reason"] for row in rows)
    assert dead_letters.count(lake, StreamId("log", 1)) == {0: 2}


def test_however_often_it_is_collected_each_is_there_once(lake: Lake, typed: Filler) -> None:
    typed.append([b"bad"])
    assert collect(lake) == 1
    assert collect(lake) == 0
    typed.append([b'{"id": 1}'])
    assert collect(lake) == 0
    typed.append([b"worse"], partition=1)
    typed.append([b"worst"])
    assert collect(lake) == 2
    assert letters(lake) == [(0, 1, b"bad"), (0, 3, b"worst"), (1, 0, b"worse")]


def test_of_two_that_collect_one_wins(lake: Lake, typed: Filler) -> None:
    typed.append([b"bad"])
    first, second = dead_letters.plan(lake, STREAM), dead_letters.plan(lake, STREAM)
    assert first is not None
    assert second is not None
    written = [[dead_letters.run(step) for step in steps] for _, steps in (first, second)]
    dead_letters.finish(*first, written[0])
    with pytest.raises(LostRace):
        dead_letters.finish(*second, written[1])
    assert letters(lake) == [(0, 1, b"bad")]


def test_merging_files_neither_loses_nor_repeats_one(lake: Lake, typed: Filler) -> None:
    typed.append([b"bad"])
    collect(lake)
    for value in (b'{"id": 2}', b"not yet collected", b'{"id": 3}'):
        typed.append([value])
    maintain(typed.table, Care(min_files=2, grace_s=0, max_snapshots=1))
    assert collect(lake) == 1
    assert letters(lake) == [(0, 1, b"bad"), (0, 3, b"not yet collected")]
    typed.append([b"last"])
    collect(lake)
    report = maintain(lake.get("log", DEAD_LETTERS), Care(min_files=2))
    assert (report.merged_files, report.merged_into) == (3, 1)
    assert [offset for _, offset, _ in letters(lake)] == [1, 3, 5]


def test_files_without_refused_rows_are_not_opened(
    lake: Lake, typed: Filler, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed.append([b'{"id": 1}'])
    typed.append([b"bad"])
    typed.append([b'{"id": 1}'])
    opened: list[str] = []
    original = ordered.open_parquet

    def counted(io: Any, path: str) -> Any:
        opened.append(path)
        return original(io, path)

    monkeypatch.setattr(ordered, "open_parquet", counted)
    assert collect(lake) == 1
    assert len(opened) == 1


def test_a_stream_without_typed_columns_has_no_dead_letters(lake: Lake, filler: Filler) -> None:
    filler.append([b"x"])
    assert collect(lake) == 0
    assert dead_letters.count(lake, StreamId("log", 1)) == {}
    with pytest.raises(NotFound):
        lake.get("log", DEAD_LETTERS)
