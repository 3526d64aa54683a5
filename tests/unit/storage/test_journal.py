"""Journals and snapshots: what is recovered, and what happens to damaged ones."""

from __future__ import annotations

import pytest

from nexo.errors import Corrupt
from nexo.storage.journal import Journal
from nexo.storage.memory import MemoryFiles
from nexo.storage.snapshot import Snapshot, Snapshots
from tests.unit.storage.entries import FOLDER, content, overwrite


def recovered(files: MemoryFiles) -> tuple[bytes | None, list[bytes]]:
    payload, records = Journal(files, FOLDER).recover()
    return payload, list(records)


def test_records_come_back_in_order_whatever_they_hold() -> None:
    files = MemoryFiles()
    journal = Journal(files, FOLDER)
    assert journal.append([b"a", b"", b"\0" * 9], 1) == 0
    assert journal.append([], 2) == 3
    assert journal.append([b"x" * 100_000], 3) == 3
    assert recovered(files) == (None, [b"a", b"", b"\0" * 9, b"x" * 100_000])
    assert list(journal.replay(1)) == [b"", b"\0" * 9, b"x" * 100_000]


def test_an_empty_journal_recovers_nothing() -> None:
    assert recovered(MemoryFiles()) == (None, [])


def test_a_checkpoint_replaces_the_records_before_it() -> None:
    files = MemoryFiles()
    journal = Journal(files, FOLDER)
    for number in range(5):
        journal.append([b"old"], number)
        journal.checkpoint(b"state %d" % number)
    journal.append([b"new"], 9)
    assert recovered(files) == (b"state 4", [b"new"])
    assert Snapshots(files, FOLDER).offsets() == [4, 5]


def test_a_checkpoint_before_any_record_counts() -> None:
    files = MemoryFiles()
    Journal(files, FOLDER).checkpoint(b"born")
    assert recovered(files) == (b"born", [])
    journal = Journal(files, FOLDER)
    journal.append([b"1"], 0)
    assert recovered(files) == (b"born", [b"1"])


def test_a_damaged_newest_snapshot_falls_back_to_the_one_before_and_its_records() -> None:
    files = MemoryFiles()
    journal = Journal(files, FOLDER)
    for number in range(3):
        journal.append([b"record %d" % number], 0)
        journal.checkpoint(b"state %d" % number)
    path = FOLDER / f"{3:020}.snap"
    data = content(files, path)
    for at in range(len(data)):
        overwrite(files, path, data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        assert recovered(files) == (b"state 1", [b"record 2"])
    for size in range(len(data)):
        overwrite(files, path, data[:size])
        assert recovered(files) == (b"state 1", [b"record 2"])


def test_damage_to_records_that_a_checkpoint_replaced_is_none() -> None:
    """SPEC E6, K5: nobody needs them, so a checkup must not call them lost."""
    files = MemoryFiles()
    journal = Journal(files, FOLDER)
    for number in range(3):
        journal.append([b"record %d" % number], 0)
        journal.checkpoint(b"state %d" % number)
    journal.append([b"kept"], 0)
    (path,) = (FOLDER / name for name in files.list(FOLDER) if name.endswith(".log"))
    for name in files.list(FOLDER):
        if name.endswith(".idx"):
            files.remove(FOLDER / name)
    data = content(files, path)
    overwrite(files, path, data.replace(b"record 1", b"recorD 1"))
    log = Journal(files, FOLDER).log
    log.segments()  # for its index it reads all there is
    assert log.verify() == []
    overwrite(files, path, data.replace(b"kept", b"kepT"))
    (damage,) = Journal(files, FOLDER).log.verify()
    assert damage.offset == 3


def test_with_every_snapshot_damaged_nothing_is_made_up() -> None:
    files = MemoryFiles()
    snapshots = Snapshots(files, FOLDER)
    snapshots.save(Snapshot(7, b"state"))
    overwrite(files, FOLDER / f"{7:020}.snap", b"?")
    with pytest.raises(Corrupt, match="restore a backup"):
        snapshots.load()


def test_a_snapshot_without_its_journal_is_an_error() -> None:
    files = MemoryFiles()
    Snapshots(files, FOLDER).save(Snapshot(7, b"state"))
    with pytest.raises(Corrupt, match="restore a backup"):
        Journal(files, FOLDER).recover()


def test_a_journal_takes_little_more_room_than_its_records() -> None:
    journal = Journal(MemoryFiles(), FOLDER)
    journal.append([b"x" * 92] * 1_000, 0)
    assert journal.size_bytes == 64 + 64 + 8 + 4 * 1_001 + 92_000 + 4
