"""Writing to tables that other programs, clocks and people also change."""

from __future__ import annotations

import time

import msgspec
import pytest
from pyiceberg.table import Table
from pyiceberg.table.update import RemoveSnapshotsUpdate, SetSnapshotRefUpdate

from nexo.errors import Conflict
from nexo.lake.commit import LostRace
from nexo.lake.maintenance import maintain as maintenance
from nexo.lake.maintenance.maintain import Care, maintain
from nexo.lake.once import WrittenRange, commit
from nexo.lake.paths import local_file
from nexo.lake.plan import BatchLimits, planned_ranges
from nexo.lake.reading.ranges import file_ranges
from nexo.lake.reading.replay import LakeReader
from nexo.lake.reading.stored import find
from nexo.lake.snapshot import TableChange, draft
from nexo.lake.tables import OFFSETS, ORPHANS, StreamId, held_offsets, missing
from nexo.protocol.stream import PartitionInfo

from .conftest import Filler
from .foreign import append, delete_rows
from .reading.test_replay import records

MINUTE_MS = 60_000
EAGER = Care(min_files=2, max_snapshots=1, grace_s=0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """By how many milliseconds this machine's clock is off, in its only item."""
    real, off_ms = time.time_ns, [0]
    monkeypatch.setattr(time, "time_ns", lambda: real() + off_ms[0] * 1_000_000)
    return off_ms


def test_a_tables_time_never_goes_back(filler: Filler, clock: list[int]) -> None:
    """Iceberg's Java opens no table whose last change or newest snapshot is older than another."""
    filler.append([b"0"])
    clock[0] = -10 * MINUTE_MS
    filler.append([b"1"])
    with filler.table.transaction() as change:
        change.set_properties(owner="somebody")
    append(filler.table, [{"value": b"1"}])
    filler.append([b"2"])
    maintain(filler.table, EAGER)
    metadata = filler.table.refresh().metadata
    times = [
        *(entry.timestamp_ms for entry in metadata.metadata_log),
        *(entry.timestamp_ms for entry in metadata.snapshot_log),
        metadata.last_updated_ms,
    ]
    assert times[: len(metadata.metadata_log)] == sorted(times[: len(metadata.metadata_log)])
    assert max(times) == metadata.last_updated_ms
    assert [each.timestamp_ms for each in metadata.snapshots] == sorted(
        each.timestamp_ms for each in metadata.snapshots
    )


def test_time_travel_never_finds_a_snapshot_that_was_replaced_by_then(filler: Filler) -> None:
    """A tag holds the first snapshot; those after it have expired, so no time leads to it."""
    filler.append([b"0"])
    first = filler.table.current_snapshot()
    assert first is not None
    filler.table.manage_snapshots().create_tag(first.snapshot_id, "kept").commit()
    for n in range(5):
        filler.append([b"%d" % n])
    maintain(filler.table, Care(max_snapshots=2, grace_s=0))
    metadata = filler.table.refresh().metadata
    left = [each.snapshot_id for each in metadata.snapshots]
    assert left[0] == first.snapshot_id
    assert [entry.snapshot_id for entry in metadata.snapshot_log] == left[1:]


def test_commits_that_expire_snapshots_keep_the_log_gapless(filler: Filler) -> None:
    filler.append([b"0"])
    first = filler.table.current_snapshot()
    assert first is not None
    filler.table.manage_snapshots().create_tag(first.snapshot_id, "kept").commit()
    with filler.table.transaction() as change:
        change.set_properties({"history.expire.min-snapshots-to-keep": "5"})
    for n in range(8):
        filler.append([b"%d" % n])
    metadata = filler.table.metadata
    logged = [entry.snapshot_id for entry in metadata.snapshot_log]
    assert first.snapshot_id not in logged
    newest = [each.snapshot_id for each in metadata.snapshots]
    assert logged == newest[-len(logged) :]


def test_the_main_branch_keeps_what_it_was_told_to_keep(filler: Filler, clock: list[int]) -> None:
    for n in range(4):
        filler.append([b"%d" % n])
    snapshot = filler.table.current_snapshot()
    assert snapshot is not None
    named = {
        "ref-name": "main", "type": "branch", "snapshot-id": snapshot.snapshot_id,
        "min-snapshots-to-keep": 3, "max-snapshot-age-ms": 1, "max-ref-age-ms": 10**12,
    }  # fmt: skip
    filler.table.catalog.commit_table(
        filler.table, (), (SetSnapshotRefUpdate.model_validate(named),)
    )
    clock[0] = MINUTE_MS
    filler.append([b"4"])
    main = filler.table.metadata.refs["main"]
    assert (main.min_snapshots_to_keep, main.max_ref_age_ms) == (3, 10**12)
    assert main.max_snapshot_age_ms == 1
    assert len(filler.table.metadata.snapshots) == 3


def test_an_age_that_a_table_names_keeps_younger_snapshots(filler: Filler) -> None:
    with filler.table.transaction() as change:
        change.set_properties(
            {
                "history.expire.min-snapshots-to-keep": "2",
                "history.expire.max-snapshot-age-ms": str(60 * MINUTE_MS),
            }
        )
    for n in range(6):
        filler.append([b"%d" % n])
    maintain(filler.table, Care(grace_s=0))
    assert len(filler.table.refresh().metadata.snapshots) == 6
    maintain(filler.table, Care(max_snapshots=2, grace_s=0))
    assert len(filler.table.refresh().metadata.snapshots) == 2


def test_rows_deleted_while_their_file_is_merged_stay_deleted(
    filler: Filler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program marks rows as deleted after the merge has read them: the merge is dropped."""
    for n in range(4):
        filler.append([b"%d" % n])
    original = maintenance.rewritten

    def rewritten(*args: object) -> object:
        found = original(*args)  # type: ignore[arg-type]
        table = filler.lake.get("log")
        delete_rows(table, file_ranges(table)[1].file, [0])
        return found

    monkeypatch.setattr(maintenance, "rewritten", rewritten)
    assert maintain(filler.lake.get("log"), EAGER).merged_files == 0
    rows = filler.table.refresh().scan().to_arrow()
    assert sorted(rows.column("value").to_pylist()) == [b"0", b"2", b"3"]


def test_a_table_of_version_3_is_refused_with_a_way_out(filler: Filler) -> None:
    filler.append([b"0"])
    upgraded = filler.table.metadata.model_copy(update={"format_version": 3})
    filler.table.metadata = upgraded
    with pytest.raises(Conflict, match=r"version 3, .* version 2, and no table goes back: .* copy"):
        draft(filler.table, TableChange())


@pytest.mark.parametrize("more", [[], [b"more"]])
def test_rows_whose_deletion_is_rolled_back_during_a_merge_are_back(
    filler: Filler, monkeypatch: pytest.MonkeyPatch, more: list[bytes]
) -> None:
    """The merge has left them out, and is dropped, also if records were added since."""
    for n in range(4):
        filler.append([b"%d" % n])
    before = filler.table.metadata.current_snapshot_id
    delete_rows(filler.table, file_ranges(filler.table)[1].file, [0])
    original = maintenance.rewritten

    def rewritten(*args: object) -> object:
        found = original(*args)  # type: ignore[arg-type]
        assert before is not None
        table = filler.lake.get("log")
        table.manage_snapshots().set_current_snapshot(before).commit()
        if more:
            filler.append(more)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(maintenance, "rewritten", rewritten)
        assert maintain(filler.lake.get("log"), Care(min_files=9)).merged_files == 0
    rows = filler.table.refresh().scan().to_arrow()
    assert sorted(rows.column("value").to_pylist()) == [b"0", b"1", b"2", b"3", *more]


def rolled_back(filler: Filler) -> None:
    """Four records, of which another program takes the last two out of the table."""
    for n in range(4):
        filler.append([b"%d" % n])
    snapshots = filler.table.metadata.snapshots
    filler.table.manage_snapshots().rollback_to_snapshot(snapshots[1].snapshot_id).commit()
    filler.table.refresh()


def test_a_table_that_is_rolled_back_gets_its_records_again(filler: Filler) -> None:
    """The property is of no snapshot: the present one says what the table holds."""
    rolled_back(filler)
    assert held_offsets(filler.table) == {0: 2}
    assert find(filler.lake, StreamId("log", 1)).offsets == {0: 2}  # type: ignore[union-attr]
    with pytest.raises(LostRace, match="at offset 2"):
        commit(filler.table, [WrittenRange(0, 4, 5, [])])
    filler.append([b"2 again", b"3 again"])
    assert held_offsets(filler.table) == {0: 4}
    rows = filler.table.scan().to_arrow()
    assert sorted(rows.column("value").to_pylist()) == [b"0", b"1", b"2 again", b"3 again"]
    found = records(LakeReader(filler.lake, "log"), 0, 0, 4)
    assert [each.value for each in found] == [b"0", b"1", b"2 again", b"3 again"]


def test_neither_merges_nor_others_forget_that_a_table_was_rolled_back(filler: Filler) -> None:
    rolled_back(filler)
    append(filler.table, [{"value": b"somebody's"}])
    assert held_offsets(filler.table) == {0: 2}
    maintain(filler.table, EAGER)
    assert filler.table.refresh().properties[OFFSETS] == '{"0": 4}'
    assert held_offsets(filler.table) == {0: 2}


def test_what_a_snapshot_of_others_holds_is_known_after_its_parents_have_expired(
    filler: Filler,
) -> None:
    rolled_back(filler)
    append(filler.table, [{"value": b"somebody's"}])
    for keep in (2, 1):
        maintain(filler.table, Care(min_files=9, max_snapshots=keep, grace_s=0))
        assert len(filler.table.refresh().metadata.snapshots) == keep
        assert held_offsets(filler.table) == {0: 2}
        assert find(filler.lake, StreamId("log", 1)).offsets == {0: 2}  # type: ignore[union-attr]
    filler.append([b"2 again"])
    maintain(filler.table, Care(min_files=9, max_snapshots=1, grace_s=0))
    assert filler.table.refresh().properties[ORPHANS] == "{}"
    assert held_offsets(filler.table) == {0: 3}


def test_what_a_table_holds_is_known_after_others_have_expired_what_said_so(filler: Filler) -> None:
    """While no pipeline runs, somebody rolls back, adds rows, and keeps one snapshot."""
    rolled_back(filler)
    append(filler.table, [{"value": b"somebody's"}])
    expire_others(filler.table)
    assert held_offsets(filler.table.refresh()) == {0: 2}
    assert find(filler.lake, StreamId("log", 1)).offsets == {0: 2}  # type: ignore[union-attr]
    append(filler.table, [{"value": b"and more"}])
    expire_others(filler.table)
    assert held_offsets(filler.table.refresh()) == {0: 2}
    filler.append([b"2 again"])
    assert held_offsets(filler.table) == {0: 3}


def test_what_a_table_holds_stays_known_where_nothing_was_rolled_back(filler: Filler) -> None:
    filler.append([b"0"])
    append(filler.table, [{"value": b"somebody's"}])
    expire_others(filler.table)
    for entry in filler.table.refresh().metadata.metadata_log:
        local_file(entry.metadata_file).unlink()
    assert held_offsets(filler.table) == {0: 1}


def expire_others(table: Table) -> None:
    """What Iceberg's procedure `expire_snapshots` does, with `retain_last => 1`."""
    metadata = table.refresh().metadata
    gone = {each.snapshot_id for each in metadata.snapshots} - {metadata.current_snapshot_id}
    update = RemoveSnapshotsUpdate.model_validate({"snapshot-ids": sorted(gone)})
    table.catalog.commit_table(table, (), (update,))
    table.refresh()


def test_records_of_a_snapshot_that_is_made_current_again_are_not_taken_twice(
    filler: Filler,
) -> None:
    rolled_back(filler)
    newest = filler.table.metadata.snapshots[-1].snapshot_id
    filler.append([b"2 again"])
    filler.table.manage_snapshots().set_current_snapshot(newest).commit()
    assert held_offsets(filler.table.refresh()) == {0: 4}


def test_records_that_no_tier_has_are_counted(filler: Filler) -> None:
    """They were dropped from the log, as the table had them, before it was rolled back."""
    rolled_back(filler)
    part = PartitionInfo(
        start_offset=0, next_offset=6, stable_offset=6, size_bytes=1, tiered_offset=4, hot_offset=3
    )
    (planned,) = planned_ranges("log", held_offsets(filler.table), [part], BatchLimits())
    assert (planned.first, planned.gap) == (3, (2, 3))
    taken = WrittenRange(0, planned.after, planned.end, [], planned.gap)
    table = commit(filler.table, [taken])
    assert missing(table.properties) == {0: 1}
    trimmed = msgspec.structs.replace(part, start_offset=3)
    (planned,) = planned_ranges("log", {0: 2}, [trimmed], BatchLimits())
    assert planned.gap is None  # the stream itself dropped them
