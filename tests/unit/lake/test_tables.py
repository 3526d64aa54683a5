"""Tables of many streams are made together, if they have records (SPEC I2, I8)."""

from __future__ import annotations

from pyiceberg.table import Table

from nexo.lake.catalog import Lake
from nexo.lake.own_columns import ROWS
from nexo.lake.settings import LakeSettings
from nexo.lake.tables import DEAD_LETTERS, StreamId


def _streams(count: int) -> list[StreamId]:
    return [StreamId(f"s{number}", 7) for number in range(count)]


def test_tables_made_together_are_as_those_made_alone(lake: Lake) -> None:
    found = lake.ensure_all(_streams(5), ROWS)
    alone = lake.ensure(StreamId("alone", 7), ROWS).metadata
    again = Lake(lake.settings)
    own = {"location", "table_uuid", "last_updated_ms", "properties"}
    for name, table in found.items():
        assert isinstance(table, Table)
        stored = again.get(name).metadata
        assert stored == table.metadata
        assert stored.model_dump(exclude=own) == alone.model_dump(exclude=own)
        assert stored.location == alone.location.replace("/alone", f"/{name}")
        assert stored.properties == {**alone.properties, "nexo.stream": name}
    assert len({table.metadata.table_uuid for table in lake.tables()}) == 6


def test_what_is_there_is_found_and_what_another_made_meanwhile_is_taken(lake: Lake) -> None:
    known = lake.ensure(StreamId("s1", 7), ROWS)
    older = lake.ensure(StreamId("s2", 3), ROWS)
    lake.ensure(StreamId("s3", 7), ROWS, DEAD_LETTERS)
    other = Lake(lake.settings)
    absent = lake.absent(_streams(5))
    assert absent == {"s0", "s3", "s4"}
    assert lake.absent([StreamId("s3", 7)], DEAD_LETTERS) == set()
    raced = other.ensure(StreamId("s4", 7), ROWS)
    lake.absent = lambda *_: absent  # type: ignore[method-assign]  # as it was before the race
    found = lake.ensure_all(_streams(5), ROWS)
    uuids = {
        name: table.metadata.table_uuid for name, table in found.items() if isinstance(table, Table)
    }
    assert uuids["s1"] == known.metadata.table_uuid
    assert uuids["s4"] == raced.metadata.table_uuid
    assert uuids["s2"] != older.metadata.table_uuid
    assert {table.name()[-1] for table in lake.tables()} == {
        "s0", "s1", "s2", "s2_until_3", "s3", "s3_dead_letters", "s4",
    }  # fmt: skip


def test_a_lake_that_is_not_there_has_no_tables_and_looking_makes_none(lake: Lake) -> None:
    assert lake.absent(_streams(2)) == {"s0", "s1"}
    assert not lake.settings.exists
    assert Lake(LakeSettings(lake.settings.folder, "named")).absent(_streams(2)) == set()
