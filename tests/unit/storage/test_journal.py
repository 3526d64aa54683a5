"""Journals and snapshots: what is recovered, and what happens to damaged ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from nexo.storage.disk.flusher import Flusher
from nexo.storage.journal import Journal
from nexo.storage.snapshot import Snapshots
from tests.faulty_files import FaultyFiles
from tests.memory_files import MemoryFiles
from tests.unit.storage.entries import FOLDER, content, overwrite


def recovered(files: MemoryFiles) -> tuple[bytes | None, list[bytes]]:
    recovery = Journal(files, FOLDER).recover()
    return recovery.snapshot, [record for _, record in recovery.records]


def test_records_come_back_in_order_whatever_they_hold() -> None:
    files = MemoryFiles()
    journal = Journal(files, FOLDER)
    assert journal.append([b"a", b"", b"\0" * 9], 1) == 0
    assert journal.append([], 2) == 3
    assert journal.append([b"x" * 100_000], 3) == 3
    assert recovered(files) == (None, [b"a", b"", b"\0" * 9, b"x" * 100_000])


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
        assert recovered(files) == (b"state 2", []), "a flipped bit costs nothing (SPEC Q4)"
    for at in range(len(data) - 6):
        wide = bytes(byte ^ 1 for byte in data[at : at + 3])
        overwrite(files, path, data[:at] + wide + data[at + 3 :])
        assert recovered(files) == (b"state 1", [b"record 2"]), at
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
    overwrite(files, path, data.replace(b"record 1", b"RECORD 1"))
    log = Journal(files, FOLDER).log
    log.segments()  # for its index it reads all there is
    assert log.verify() == []
    overwrite(files, path, data.replace(b"kept", b"KEPT"))
    (damage,) = Journal(files, FOLDER).log.verify()
    assert damage.offset == 3


def test_the_first_snapshot_has_a_fallback_too() -> None:
    """Finding F2: the records before it stay until there are two snapshots."""
    files = MemoryFiles()
    journal = Journal(files, FOLDER)
    journal.append([b"a"], 0)
    journal.checkpoint(b"state")
    journal.append([b"b"], 0)
    path = FOLDER / f"{1:020}.snap"
    data = content(files, path)
    overwrite(files, path, b"???" + data[3:])
    assert recovered(files) == (None, [b"a", b"b"])
    kept = path.with_name(path.name + ".damaged")
    assert content(files, kept) == b"???" + data[3:], "what is damaged is kept"


def test_a_damaged_snapshot_does_not_count_as_a_fallback() -> None:
    files = MemoryFiles()
    journal = Journal(files, FOLDER)
    for number in range(2):
        journal.append([b"%d" % number], 0)
        journal.checkpoint(b"state %d" % number)
    overwrite(files, FOLDER / f"{2:020}.snap", b"?")
    again = Journal(files, FOLDER)
    assert again.recover().snapshot == b"state 0"
    again.append([b"2"], 0)
    again.checkpoint(b"state 2")
    overwrite(files, FOLDER / f"{again.log.next_offset:020}.snap", b"?")
    assert recovered(files) == (b"state 0", [b"1", b"2"])


def test_with_every_snapshot_damaged_the_records_are_used_and_the_loss_is_reported() -> None:
    files = MemoryFiles()
    journal = Journal(files, FOLDER)
    for number in range(3):
        journal.append([b"%d" % number], 0)
        journal.checkpoint(b"state %d" % number)
    for offset in (2, 3):
        overwrite(files, FOLDER / f"{offset:020}.snap", b"?")
    recovery = Journal(files, FOLDER).recover()
    assert recovery.snapshot is None
    assert list(recovery.records) == [(2, b"2")]
    assert [str(loss) for loss in recovery.losses] == [
        "offsets 0 to 1: dropped before, and every snapshot is damaged"
    ]


def test_a_damaged_snapshot_without_its_journal_is_a_loss() -> None:
    files = MemoryFiles()
    Snapshots(files, FOLDER).save(7, b"state")
    overwrite(files, FOLDER / f"{7:020}.snap", b"?")
    journal = Journal(files, FOLDER)
    recovery = journal.recover()
    assert (recovery.snapshot, list(recovery.records)) == (None, [])
    loss = recovery.losses[0]
    assert (loss.offset, loss.next_offset) == (0, 7)
    assert journal.append([b"later"], 0) == 7


def test_a_snapshot_without_its_journal_is_used_and_offsets_go_on_after_it() -> None:
    files = MemoryFiles()
    Snapshots(files, FOLDER).save(7, b"state")
    journal = Journal(files, FOLDER)
    recovery = journal.recover()
    assert (recovery.snapshot, list(recovery.records)) == (b"state", [])
    assert len(recovery.losses) == 1
    assert journal.append([b"later"], 0) == 7
    again = Journal(files, FOLDER).recover()
    assert (again.snapshot, list(again.records)) == (b"state", [(7, b"later")])
    assert again.losses == []


# -- how far a journal is synced ----------------------------------------------


def settled(files: FaultyFiles, records: int, size: int = 100) -> Journal:
    """A journal that was written, synced and quiet."""
    flusher = Flusher(files, FOLDER)
    journal = Journal(files, FOLDER)
    for number in range(records):
        journal.append([b"%d" % number + b"." * size], 0)
    flusher.sync()
    flusher.settle()
    flusher.settle()
    flusher.sync()
    return journal


def after_power_loss(files: FaultyFiles) -> FaultyFiles:
    """Another lifetime of the machine, with everything on its disk."""
    return files.crash_keeping(lambda path, sector: True)


def flipped(files: FaultyFiles, path: Path, *places: int) -> FaultyFiles:
    after = after_power_loss(files)
    file = after.open(path)
    for at in places:
        byte = file.read_at(at, 1)[0]
        file.write_at(at, [bytes([byte ^ 0x10])])
    return after


@pytest.mark.parametrize("size", [100, 1_500], ids=["small", "sectors"])
def test_any_flip_in_a_journal_costs_nothing(size: int) -> None:  # SPEC Q4
    files = FaultyFiles()
    (info,) = settled(files, 4, size).log.segments()
    kept = [b"%d" % n + b"." * size for n in range(4)]
    for at in range(64, info.size_bytes, 1 if size == 100 else 7):
        after = flipped(files, info.path, at)
        recovery = Journal(after, FOLDER).recover()
        assert [record for _, record in recovery.records] == kept, at
        assert recovery.losses == []
        assert content(after, info.path) == content(files, info.path), "it was put right"


@pytest.mark.parametrize("size", [100, 1_500], ids=["small", "sectors"])
def test_any_damage_in_a_quiet_journal_costs_one_entry(size: int) -> None:
    """Finding F1: recover, write, recover again; nothing else is lost, nothing removed."""
    files = FaultyFiles()
    (info,) = settled(files, 4, size).log.segments()
    entry = (info.size_bytes - 64 - 80) // 4
    for at in range(0, info.size_bytes, 1 if size == 100 else 7):
        hit = (at - 64) // entry if at >= 64 else -1
        start, length = (64 + hit * entry, 80 if hit == 4 else entry) if hit >= 0 else (0, 64)
        after = flipped(files, info.path, at, start + (at - start + 5) % length)
        kept = [b"%d" % n + b"." * size for n in range(4) if n != hit]
        journal = Journal(after, FOLDER)
        recovery = journal.recover()
        assert [record for _, record in recovery.records] == kept, at
        assert bool(recovery.losses) == (0 <= hit < 4) or hit == 4
        assert after.size(info.path) >= info.size_bytes - 80 or hit == 4
        journal.append([b"more"], 0)
        again = Journal(after.restart(), FOLDER).recover()
        assert [record for _, record in again.records] == [*kept, b"more"]


def test_zeros_in_a_damaged_entry_are_no_torn_write_once_it_was_synced() -> None:
    """Finding F1: sectors of zeros look like those that never arrived."""
    files = FaultyFiles()
    flusher = Flusher(files, FOLDER)
    journal = Journal(files, FOLDER)
    journal.append([b"first"], 0)
    journal.append([bytes(4_000)], 0)
    flusher.sync()
    flusher.settle()
    flusher.settle()
    flusher.sync()
    (info,) = journal.log.segments()
    after = flipped(files, info.path, 300, 302, 340)
    recovery = Journal(after, FOLDER).recover()
    assert list(recovery.records) == [(0, b"first")]
    assert [(loss.offset, loss.next_offset) for loss in recovery.losses] == [(1, 2)]
    assert after.size(info.path) == info.size_bytes


def waits(flusher: Flusher) -> bool:
    return flusher.unsettled


def test_a_journal_that_is_not_quiet_or_not_synced_does_not_settle() -> None:
    files = FaultyFiles()
    flusher = Flusher(files, FOLDER)
    journal = Journal(files, FOLDER)
    journal.append([b"a"], 0)
    flusher.settle()
    flusher.settle()
    assert waits(flusher), "it is not synced"
    flusher.sync()
    journal.append([b"b"], 0)
    flusher.settle()
    assert waits(flusher), "it was written to since the last look"
    flusher.sync()
    flusher.settle()
    assert not waits(flusher)
    size = journal.size_bytes
    flusher.sync()
    flusher.settle()
    assert journal.size_bytes == size, "one mark is enough"


def test_what_a_killed_process_left_is_settled_by_the_next() -> None:
    files = FaultyFiles()
    journal = Journal(files, FOLDER)
    journal.append([b"a"], 0)
    journal.append([b"b"], 0)
    (info,) = journal.log.segments()
    restarted = files.restart()
    flusher = Flusher(restarted, FOLDER)
    assert len(list(Journal(restarted, FOLDER).recover().records)) == 2
    for _ in range(3):
        flusher.sync()
        flusher.settle()
    flusher.sync()
    after = flipped(restarted, info.path, 64 + 70, 64 + 75)
    recovery = Journal(after, FOLDER).recover()
    assert [record for _, record in recovery.records] == [b"b"]
    assert len(recovery.losses) == 1


def test_records_that_were_written_twice_survive_a_flip_anywhere() -> None:
    files = FaultyFiles()
    flusher = Flusher(files, FOLDER)
    journal = Journal(files, FOLDER)
    journal.append([b"base"], 0, twice=True)
    offset = journal.append([b"built on it"], 0)
    flusher.sync()
    flusher.settle()
    flusher.settle()
    flusher.sync()
    (info,) = journal.log.segments()
    for at in range(64, 64 + 2 * 88):
        start = 64 + (at - 64) // 88 * 88
        after = flipped(files, info.path, at, start + (at - start + 5) % 88)
        recovery = Journal(after, FOLDER).recover()
        assert [record for _, record in recovery.records] == [b"base", b"built on it"]
        assert len(recovery.losses) == 1
    recovery = Journal(after_power_loss(files), FOLDER).recover()
    assert list(recovery.records) == [(0, b"base"), (offset, b"built on it")]


def test_a_record_that_cannot_be_applied_is_reported_and_the_rest_goes_on() -> None:
    files = MemoryFiles()
    journal = Journal(files, FOLDER)
    for name in (b"a", b"missing", b"b"):
        journal.append([name], 0)
    known = {b"a": 1, b"b": 2}
    applied: list[int] = []
    recovery = Journal(files, FOLDER).recover()
    recovery.replay(lambda _, record: applied.append(known[record]))
    assert applied == [1, 2]
    assert [(loss.offset, loss.next_offset) for loss in recovery.losses] == [(1, 2)]


def test_a_journal_takes_little_more_room_than_its_records() -> None:
    journal = Journal(MemoryFiles(), FOLDER)
    journal.append([b"x" * 92] * 1_000, 0)
    assert journal.size_bytes == 64 + 64 + 8 + 4 * 1_001 + 92_000 + 4
