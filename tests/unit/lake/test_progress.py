"""What pipelines did is read back by others, and lasts no longer than it is of use."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from nexo.errors import Conflict
from nexo.lake.progress import (
    FOLDER,
    STALE_MS,
    MicroBatchResult,
    PipelineProgress,
    StreamProgress,
    Tracker,
    by_stream,
    now_ms,
    read_progress,
)

from .conftest import Filler


def test_numbers_of_a_stream_come_from_its_table(filler: Filler, tmp_path: Path) -> None:
    tracker = Tracker()
    tracker.looked("log", filler.table, behind=3, at_ms=5_000)
    filler.append([b"a", b"b", b"c"])
    tracker.took(filler.table, MicroBatchResult("log", 3, 1, 0.25), complete=True)
    tracker.save(tmp_path)
    (pipeline,) = read_progress(tmp_path)
    (stream,) = pipeline.streams
    snapshot = filler.table.current_snapshot()
    assert snapshot is not None
    assert (stream.stream, stream.table, stream.records, stream.files) == ("log", "nexo.log", 3, 1)
    assert (stream.snapshot_id, stream.offsets) == (str(snapshot.snapshot_id), {"0": 3})
    assert (stream.behind, stream.fresh_ms, stream.committed_ms) == (
        0, 5_000, snapshot.timestamp_ms,
    )  # fmt: skip
    assert (stream.batches, stream.taken, stream.last_ms) == (1, 3, 250)
    assert stream.bytes > 0


def test_a_batch_that_leaves_some_behind_does_not_make_the_table_fresh(filler: Filler) -> None:
    tracker = Tracker()
    tracker.looked("log", filler.table, behind=10, at_ms=5_000)
    filler.append([b"a"] * 4)
    tracker.took(filler.table, MicroBatchResult("log", 4, 1, 1.0), complete=False)
    assert (tracker.of("log").behind, tracker.of("log").fresh_ms) == (6, None)


def test_an_error_lasts_until_things_go_well(filler: Filler, tmp_path: Path) -> None:
    tracker = Tracker()
    tracker.failed("no answer", ["log"])
    tracker.save(tmp_path)
    (found,) = read_progress(tmp_path)
    assert (found.error, found.streams[0].error) == ("no answer", "no answer")
    tracker.went_well()
    tracker.looked("log", filler.table, behind=0, at_ms=1)
    tracker.refused("other", "damaged")
    tracker.save(tmp_path)
    (found,) = read_progress(tmp_path)
    assert found.error == ""
    assert [(each.stream, each.error) for each in found.streams] == [
        ("log", ""), ("other", "damaged"),
    ]  # fmt: skip


def test_of_several_pipelines_the_one_that_looked_last_counts(tmp_path: Path) -> None:
    one, other = Tracker(), Tracker()
    one.of("log").checked_ms, one.of("log").behind = 1, 100
    other.of("log").checked_ms, other.of("log").behind = 2, 7
    other.of("more").checked_ms = 1
    other.save(tmp_path)
    one.save(tmp_path)
    found = by_stream(read_progress(tmp_path))
    assert {name: each.behind for name, each in found.items()} == {"log": 7, "more": 0}


def test_a_pipeline_that_ended_or_fell_silent_is_not_alive() -> None:
    now = now_ms()
    found = PipelineProgress(id="x", host="h", pid=1, started_ms=now, updated_ms=now)
    assert found.alive(now)
    assert not found.alive(now + STALE_MS)
    found.running = False
    assert not found.alive(now)


def test_what_ended_a_pipeline_is_told(tmp_path: Path) -> None:
    def run() -> None:
        with Tracker().running(tmp_path, every_ms=1_000):
            assert read_progress(tmp_path)[0].running
            raise Conflict("the lake is ahead")

    with pytest.raises(Conflict):
        run()
    (found,) = read_progress(tmp_path)
    assert (found.running, found.error, found.every_ms) == (False, "the lake is ahead", 1_000)


def test_old_files_and_foreign_ones_do_no_harm(tmp_path: Path) -> None:
    folder = tmp_path / FOLDER
    folder.mkdir()
    old = PipelineProgress(
        id="old", host="h", pid=1, started_ms=1, updated_ms=1, streams=[StreamProgress(stream="a")]
    )
    (folder / "old.json").write_bytes(msgspec.json.encode(old))
    (folder / "torn.json").write_bytes(b'{"id": "to')
    assert [each.id for each in read_progress(tmp_path)] == ["old"]
    tracker = Tracker()
    tracker.save(tmp_path)
    assert [each.pid for each in read_progress(tmp_path)] == [os.getpid()]
    tracker.of("log").behind = 1
    tracker.save(tmp_path, at_most_every_s=1e9)
    assert read_progress(tmp_path)[0].streams == []


def test_there_may_be_no_pipeline_at_all(tmp_path: Path) -> None:
    assert read_progress(tmp_path / "nowhere") == []
