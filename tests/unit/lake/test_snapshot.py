"""Commits stay cheap however many there were: few manifests, few snapshots, exact totals (P7)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from pyiceberg.io import FileIO

from nexo.errors import Corrupt, NexoError
from nexo.lake import snapshot as snapshots
from nexo.lake.failures import lake_errors
from nexo.lake.maintenance.maintain import Care, maintain
from nexo.lake.manifests import AvroRecord, write_manifest
from nexo.lake.paths import local_path
from nexo.lake.reading.ranges import file_ranges
from nexo.lake.reading.replay import LakeReader
from nexo.lake.snapshot import KEEP_SNAPSHOTS
from nexo.lake.tables import offsets_of

from .conftest import Filler


def test_many_commits_leave_few_manifests_and_snapshots(filler: Filler) -> None:
    for n in range(KEEP_SNAPSHOTS + 10):
        filler.append([b"%d" % n])
    snapshot = filler.table.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert len(filler.table.metadata.snapshots) == KEEP_SNAPSHOTS
    assert len(filler.table.metadata.snapshot_log) == KEEP_SNAPSHOTS
    assert len(snapshot.manifests(filler.table.io)) <= 36
    assert snapshot.summary["total-records"] == str(KEEP_SNAPSHOTS + 10)
    assert snapshot.summary["total-data-files"] == str(KEEP_SNAPSHOTS + 10)
    rows = filler.table.scan().to_arrow().sort_by("offset")
    assert rows.column("offset").to_pylist() == list(range(KEEP_SNAPSHOTS + 10))


def test_merges_of_manifests_write_each_file_a_few_times(
    filler: Filler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SPEC I8: with everything merged each time, commits would cost more and more."""
    written: list[int] = []

    def counted(files: FileIO, path: str, entries: Sequence[AvroRecord], *rest: Any) -> AvroRecord:
        written.append(len(entries))
        return write_manifest(files, path, entries, *rest)

    monkeypatch.setattr(snapshots, "write_manifest", counted)
    monkeypatch.setattr(snapshots, "_MERGE_AT", 4)
    for n in range(100):
        filler.append([b"%d" % n])
    assert len(written) == 100
    assert sum(written) <= 6 * 100
    assert max(written) > 60  # also what was merged is merged


def test_a_merge_replaces_files_and_keeps_totals(filler: Filler) -> None:
    for n in range(6):
        filler.append([b"%d" % n] * 2)
    maintain(filler.table, Care(min_files=2))
    snapshot = filler.table.refresh().current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary.operation.value == "replace"
    assert snapshot.summary["total-records"] == "12"
    assert snapshot.summary["total-data-files"] == "1"
    assert offsets_of(filler.table.properties) == {0: 12}


def test_a_damaged_data_file_is_reported_as_damaged(filler: Filler) -> None:
    """F12: not as a mistake in the settings, which would end the pipeline."""
    filler.append([b"x"])
    path = local_path(file_ranges(filler.table)[0].path)
    assert path is not None
    with open(path, "r+b") as file:  # noqa: PTH123
        file.truncate(20)
    with pytest.raises(Corrupt, match="cannot read stream 'log'"):
        LakeReader(filler.lake, "log").read(0, 0, 1)


@pytest.mark.parametrize("mistake", [KeyError("ours"), TypeError("ours"), ValueError("ours")])
def test_a_mistake_of_ours_is_not_blamed_on_the_settings(mistake: Exception) -> None:
    with pytest.raises(type(mistake)) as raised, lake_errors("cannot read"):
        raise mistake
    assert not isinstance(raised.value, NexoError)
