"""The source reads the lake's part from files, and the rest from the broker (I3, I5, I12)."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import nexo
from nexo import testing
from nexo.errors import Forbidden
from nexo.lake.catalog import Lake
from nexo.lake.maintenance.maintain import Care, maintain
from nexo.lake.own_columns import ROWS
from nexo.lake.reading.ranges import file_ranges
from nexo.lake.settings import LakeSettings
from pyspark_nexo.options import parse
from pyspark_nexo.reading import files
from pyspark_nexo.reading.files import FileTask
from pyspark_nexo.source import BatchReader
from tests.integration.tiering import take
from tests.unit.lake.foreign import delete_rows

COUNT, LATER = 3_000, 500


@pytest.fixture
def lake(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """A lake with two thirds of the records of a stream ``log``; another third is in the log."""
    monkeypatch.setattr(files, "LEAST_ROWS", 1)
    found = Lake(LakeSettings(tmp_path / "lake"))
    with nexo.connect(url) as client:
        log = client.stream("log").create(partitions=2, tiering=True)
        log.publish_many([f"v{n}" for n in range(COUNT)], keys=[f"k{n}" for n in range(COUNT)])
        take(url, found, "log")
        log.publish_many([f"v{n}" for n in range(COUNT, COUNT + LATER)])
    return found


def reader(url: str, lake: Lake, **options: str) -> BatchReader:
    given = {"stream": "log", "url": url, "lake": str(lake.settings.folder), "rowsPerTask": "700"}
    return BatchReader(parse(given | options))


def tables(reading: BatchReader, tasks: list[Any]) -> pa.Table:
    """What tasks read, sorted."""
    found = pa.Table.from_batches([batch for task in tasks for batch in reading.read(task)])
    places = [name for name in ("partition", "offset") if name in found.column_names]
    return found.sort_by([(name, "ascending") for name in places])


def read(url: str, lake: Lake, **options: str) -> tuple[list[Any], pa.Table]:
    reading = reader(url, lake, **options)
    tasks = list(reading.partitions())
    return tasks, tables(reading, tasks)


def by_broker(url: str, lake: Lake, **options: str) -> pa.Table:
    _, found = read(url, Lake(LakeSettings(lake.settings.folder / "none")), **options)
    return found


def test_files_and_log_give_each_record_once_as_the_broker_does(url: str, lake: Lake) -> None:
    tasks, found = read(url, lake)
    assert found == by_broker(url, lake)
    assert found.num_rows == COUNT + LATER
    stored = [task for task in tasks if isinstance(task, FileTask)]
    assert sum(task.part.end - task.part.first for task in stored) == COUNT
    some = read(url, lake, columns="value,offset", startingOffsets="500", endingOffsets="1600",
                partitions="1")  # fmt: skip
    assert some[1].column_names == ["value", "offset"]
    assert some[1].column("offset").to_pylist() == list(range(500, 1600))


def test_the_broker_answers_nothing_of_what_files_hold(
    url: str, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = reader(url, lake)
    tasks = [task for task in reading.partitions() if isinstance(task, FileTask)]

    def refuse(*_: object, **__: object) -> Any:
        raise AssertionError("the broker was asked")

    monkeypatch.setattr("nexo.hot_log.HotLog.read", refuse)
    assert tables(reading, tasks).num_rows == COUNT


def test_few_records_are_the_brokers(url: str, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LEAST_ROWS", COUNT + LATER + 1)
    assert not any(isinstance(task, FileTask) for task in reader(url, lake).partitions())


def test_a_stream_that_was_created_again_is_the_brokers(url: str, lake: Lake) -> None:
    with nexo.connect(url) as client:
        client.stream("log").delete()
        client.stream("log").create(partitions=2).publish_many(["new"] * 10)
    tasks, found = read(url, lake)
    assert not any(isinstance(task, FileTask) for task in tasks)
    assert set(found.column("value").to_pylist()) == {b"new"}


def test_a_file_that_is_gone_leaves_its_range_to_the_broker(url: str, lake: Lake) -> None:
    expected = by_broker(url, lake)
    reading = reader(url, lake)
    tasks = list(reading.partitions())
    first, *others = file_ranges(lake.get("log"))
    assert others
    Path(first.path.removeprefix("file://")).unlink()
    found = tables(reading, tasks)
    assert found == expected


def test_files_merged_after_the_plan_are_read_or_asked_for(url: str, lake: Lake) -> None:
    with nexo.connect(url) as client:
        for n in range(3):
            client.stream("log").publish_many([f"more {n}"] * 100)
            take(url, lake, "log")
    expected = by_broker(url, lake)
    reading = reader(url, lake)
    tasks = list(reading.partitions())
    maintain(lake.get("log"), Care(min_files=2, max_snapshots=1, grace_s=0))
    maintain(lake.get("log"), Care(min_files=2, max_snapshots=1, grace_s=0))
    found = tables(reading, tasks)
    assert found == expected


def test_an_executor_without_the_lake_asks_the_broker(url: str, lake: Lake) -> None:
    expected = by_broker(url, lake)
    reading = reader(url, lake)
    tasks = list(reading.partitions())
    shutil.move(lake.settings.folder, lake.settings.folder.with_name("elsewhere"))
    found = tables(reading, tasks)
    assert found == expected


def test_rows_that_others_deleted_are_left_out_as_in_replay(url: str, lake: Lake) -> None:
    table = lake.get("log")
    part = file_ranges(table)[0]
    delete_rows(table, part.file, [0, 5])
    _, found = read(url, lake)
    assert found.num_rows == COUNT + LATER - 2


def test_typed_columns_are_parsed_of_values_in_files(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "LEAST_ROWS", 1)
    lake = Lake(LakeSettings(tmp_path / "lake"))
    with nexo.connect(url) as client:
        log = client.stream("log").create(tiering=True)
        log.publish_many([{"n": n} for n in range(100)])
        take(url, lake, "log")
    tasks, found = read(url, lake, typed='{"n": "long"}', columns="n,offset,partition")
    assert all(isinstance(task, FileTask) for task in tasks)
    assert found.column("n").to_pylist() == list(range(100))


def test_a_compacted_stream_is_read_as_its_log_is(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "LEAST_ROWS", 1)
    lake = Lake(LakeSettings(tmp_path / "lake"))
    with nexo.connect(url) as client:
        log = client.stream("log").create(tiering=True, cleanup="compact")
        log.publish_many([f"v{n}" for n in range(100)], keys=["k"] * 100)
        take(url, lake, "log")
    tasks, _ = read(url, lake)
    assert not any(isinstance(task, FileTask) for task in tasks)


def test_the_table_of_a_restored_server_is_not_taken_for_its_log(url: str, lake: Lake) -> None:
    with testing.server() as other, nexo.connect(other) as client:
        client.stream("log").create(partitions=2, tiering=True).publish_many(["x"] * 10)
        tasks, found = read(other, lake)
        assert not any(isinstance(task, FileTask) for task in tasks)
        assert found.num_rows == 10


def test_schema_of_rows_is_the_same_from_both_tiers(url: str, lake: Lake) -> None:
    reading = reader(url, lake)
    for task in reading.partitions():
        for batch in reading.read(task):
            assert batch.schema.names == ROWS.names
            assert batch.schema.types == ROWS.types


def test_a_user_who_may_not_read_the_stream_reads_no_files(
    url: str, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbid(*_: object) -> None:
        raise Forbidden("'ana' may not read stream 'log'")

    monkeypatch.setattr("nexo.hot_log.HotLog.check_readable", forbid)
    assert not any(isinstance(task, FileTask) for task in reader(url, lake).partitions())
