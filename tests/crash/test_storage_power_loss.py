"""Power loss at every call and with many outcomes each: what was synced survives (SPEC E3)."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path

import pytest

from nexo.errors import NexoError
from nexo.storage.disk.flusher import Flusher
from nexo.storage.journal import Journal
from nexo.storage.log import SegmentedLog
from nexo.storage.ports import File
from nexo.storage.snapshot import Snapshots
from tests.faulty_files import FaultyFiles, PowerLoss
from tests.unit.storage.entries import FOLDER, body_of, entry, fill, readable, rewrite, whole

SEEDS = range(60 if os.environ.get("SOAK") else 12)
SEGMENT_BYTES = 1_500
MOST_LOOSE = 12


def crashes(run: Callable[[FaultyFiles], None], new: Callable[[], FaultyFiles]) -> int:
    """How many calls ``run`` makes, so how many places there are to lose power at."""
    files = new()
    run(files)
    return files.calls


class Acked:
    """What the outside world was told is safe."""

    def __init__(self) -> None:
        self.offsets = 0
        self.sent = 0
        self.state = 0


with_and_without_room = pytest.mark.parametrize("room", [False, True], ids=["", "room"])
"""Behind the entries of the last segment."""


def write_and_sync(
    files: FaultyFiles, acked: Acked, flusher_type: type[Flusher], room: bool
) -> None:
    """Bursts of appends, each burst acknowledged by one sync."""
    flusher = flusher_type(files, FOLDER)
    log = SegmentedLog(files, FOLDER, segment_bytes=SEGMENT_BYTES, room_ahead=room)
    for burst in range(6):
        for number in range(4 * burst, 4 * burst + 4):
            acked.sent = number + 1
            log.append(*entry(number, size=300 if number % 3 else 1_200))
        flusher.sync()
        acked.offsets = log.next_offset


def check_acked(log: SegmentedLog, acked: Acked) -> dict[int, bytes]:
    """Nothing acknowledged is lost or changed, nothing is there that was never written."""
    found = dict(readable(log))
    for number in range(acked.offsets):
        assert found.get(number) == body_of(number, 300 if number % 3 else 1_200)
    assert set(found) <= set(range(acked.sent))
    return found


def check_log(after: FaultyFiles, acked: Acked, room: bool) -> None:
    """Recover, write, recover again."""
    flusher = Flusher(after, FOLDER)
    log = SegmentedLog(after, FOLDER, segment_bytes=SEGMENT_BYTES, room_ahead=room)
    found = check_acked(log, acked)
    first = log.next_offset
    fill(log, range(first, first + 3))
    flusher.sync()
    again = dict(readable(SegmentedLog(after.crash(1), FOLDER, segment_bytes=SEGMENT_BYTES)))
    assert again == found | {number: body_of(number) for number in range(first, first + 3)}


def lose_power_everywhere(
    room: bool,
    flusher_type: type[Flusher] = Flusher,
    new: Callable[[], FaultyFiles] = FaultyFiles,
) -> None:
    calls = crashes(lambda files: write_and_sync(files, Acked(), flusher_type, room), new)
    for call in range(1, calls + 2):
        files, acked = new(), Acked()
        files.lose_power_at = call
        with contextlib.suppress(PowerLoss):
            write_and_sync(files, acked, flusher_type, room)
        for seed in SEEDS:
            check_log(files.crash(seed), acked, room)


@with_and_without_room
def test_appends_acknowledged_after_a_sync_survive_power_loss_anywhere(room: bool) -> None:
    lose_power_everywhere(room)


class ForgetsToSync(Flusher):
    def _sync_files(self, dirty: list[File]) -> None:
        pass


class SyncsOnlyOne(Flusher):
    def _sync_files(self, dirty: list[File]) -> None:
        next(iter(dirty)).sync()


class NamesStayVolatile(FaultyFiles):
    """A file system whose user forgets to sync folders."""

    def settle_names(self, folder: Path) -> None:
        pass


@pytest.mark.parametrize(
    ("flusher_type", "new"),
    [(ForgetsToSync, FaultyFiles), (SyncsOnlyOne, FaultyFiles), (Flusher, NamesStayVolatile)],
)
@with_and_without_room
def test_a_broken_durability_is_noticed(
    flusher_type: type[Flusher], new: Callable[[], FaultyFiles], room: bool
) -> None:
    with pytest.raises(AssertionError):
        lose_power_everywhere(room, flusher_type, new)


# -- every subset of the sectors that were not synced -----------------------------


def every_outcome(files: FaultyFiles) -> Iterator[FaultyFiles]:
    """Each subset of the unsynced sectors and lengths on the disk, the others not."""
    loose = files.unsynced()
    assert len(loose) <= MOST_LOOSE, "subsets double with every sector"
    for size in range(len(loose) + 1):
        for chosen in combinations(loose, size):
            yield _keeping(files, set(chosen))


def _keeping(files: FaultyFiles, kept: set[tuple[Path, int]]) -> FaultyFiles:
    return files.crash_keeping(lambda path, sector: (path, sector) in kept)


@pytest.mark.parametrize(
    ("behind", "room"),
    [*((n, False) for n in range(4)), *((n, True) for n in range(1, 4))],  # the first makes it
)
def test_whichever_sectors_of_a_burst_were_written_the_synced_survive(
    behind: int, room: bool
) -> None:
    """Entries of three sectors, lost, torn and overtaken in the middle of the file."""
    files, acked = FaultyFiles(), Acked()
    flusher = Flusher(files, FOLDER)
    log = SegmentedLog(files, FOLDER, segment_bytes=100_000, room_ahead=room)
    for number in range(behind):
        log.append(*entry(number, size=300 if number % 3 else 1_200))
    flusher.sync()
    acked.offsets = log.next_offset
    for number in range(behind, behind + 3):
        log.append(*entry(number, size=300 if number % 3 else 1_200))
    acked.sent = log.next_offset
    for after in every_outcome(files):
        check_log(after, acked, room)


def test_whichever_sectors_of_a_journal_were_written_a_prefix_is_found() -> None:
    files, acked = FaultyFiles(), Acked()
    flusher = Flusher(files, FOLDER)
    journal = Journal(files, FOLDER, segment_bytes=100_000)
    expected = [b"%d" % number for number in range(8)]
    for number, record in enumerate(expected):
        journal.append([record.ljust(400, b".")], 0)
        acked.sent = number + 1
        if number == 3:
            flusher.sync()
            acked.state = 4
    for after in every_outcome(files):
        check_journal(after, acked, expected)


# -- dropping and compacting ------------------------------------------


def forget_things(files: FaultyFiles, acked: Acked) -> None:
    log = SegmentedLog(files, FOLDER, segment_bytes=600)
    fill(log, range(20))
    Flusher(files, FOLDER)
    files.sync_all(FOLDER)
    acked.state = 1
    end = log.segments()[1].next_offset
    rewrite(log, 0, end, [whole(n, n) for n in range(end) if n % 2])
    acked.state = 2
    log.drop_before(12)
    acked.state = 3
    log.drop_before(20)


def test_power_loss_while_forgetting_leaves_before_or_after_and_no_hole() -> None:
    calls = crashes(lambda files: forget_things(files, Acked()), FaultyFiles)
    for call in range(1, calls + 2):
        files, acked = FaultyFiles(), Acked()
        files.lose_power_at = call
        with contextlib.suppress(PowerLoss):
            forget_things(files, acked)
        for seed in SEEDS:
            if acked.state:
                check_forgetting(files.crash(seed), acked)


def check_forgetting(after: FaultyFiles, acked: Acked) -> None:
    log = SegmentedLog(after, FOLDER, segment_bytes=600)
    assert log.verify() == []
    found = dict(readable(log))
    assert all(body == body_of(number) for number, body in found.items())
    assert log.start_offset >= (0, 0, 0, 12)[acked.state]
    assert log.next_offset == 20
    first = log.next_offset
    fill(log, range(first, first + 3))
    log.sync()
    again = SegmentedLog(after.crash(2), FOLDER, segment_bytes=600)
    assert again.verify() == []
    assert again.next_offset == first + 3


# -- snapshots and journals ------------------------------------------------------


def save_snapshots(files: FaultyFiles, acked: Acked) -> None:
    snapshots = Snapshots(files, FOLDER)
    for number in range(1, 5):
        acked.sent = number
        snapshots.save(number, body_of(number, 2_000))
        acked.state = number


def lose_power_saving(new: Callable[[], FaultyFiles]) -> None:
    for call in range(1, crashes(lambda files: save_snapshots(files, Acked()), new) + 2):
        files, acked = new(), Acked()
        files.lose_power_at = call
        with contextlib.suppress(PowerLoss):
            save_snapshots(files, acked)
        for seed in SEEDS:
            offset, payload, _ = Snapshots(files.crash(seed), FOLDER).load()
            assert offset in (acked.state, acked.sent)
            assert payload == (body_of(offset, 2_000) if offset else None)


def test_a_saved_snapshot_survives_power_loss_and_a_half_saved_one_does_not_count() -> None:
    lose_power_saving(FaultyFiles)


class RenameWithoutFolderSync(FaultyFiles):
    def sync_renamed(self, folder: Path) -> None:
        pass


def test_a_rename_without_a_folder_sync_is_noticed() -> None:
    with pytest.raises(AssertionError):
        lose_power_saving(RenameWithoutFolderSync)


def keep_a_journal(files: FaultyFiles, acked: Acked) -> None:
    """A state that is the list of all records; some turns write twice before the sync."""
    flusher = Flusher(files, FOLDER)
    journal = Journal(files, FOLDER, segment_bytes=3_000)
    state: list[bytes] = []
    for turn in range(12):
        for part in range(1 + turn % 3):
            records = [b"%d.%d.%d" % (turn, part, n) for n in range(1 + turn % 4)]
            journal.append([record.ljust(200, b".") for record in records], turn)
            state += records
            acked.sent = len(state)
        flusher.sync()
        acked.state = len(state)
        if turn % 4 == 3:
            journal.checkpoint(b"\n".join(state))


def all_records() -> list[bytes]:
    return [
        b"%d.%d.%d" % (turn, part, n)
        for turn in range(12)
        for part in range(1 + turn % 3)
        for n in range(1 + turn % 4)
    ]


def recovered(journal: Journal) -> list[bytes]:
    recovery = journal.recover()
    state = recovery.snapshot.split(b"\n") if recovery.snapshot else []
    state += [record.rstrip(b".") for _, record in recovery.records]
    assert recovery.losses == [], "nothing was damaged"
    return state


def test_a_journal_recovers_a_prefix_with_all_that_was_acknowledged() -> None:
    expected = all_records()
    calls = crashes(lambda files: keep_a_journal(files, Acked()), FaultyFiles)
    for call in range(1, calls + 2):
        files, acked = FaultyFiles(), Acked()
        files.lose_power_at = call
        with contextlib.suppress(PowerLoss):
            keep_a_journal(files, acked)
        for seed in SEEDS:
            check_journal(files.crash(seed), acked, expected)


def check_journal(after: FaultyFiles, acked: Acked, expected: list[bytes]) -> None:
    flusher = Flusher(after, FOLDER)
    journal = Journal(after, FOLDER, segment_bytes=3_000)
    found = recovered(journal)
    assert acked.state <= len(found) <= acked.sent
    assert found == expected[: len(found)]
    journal.append([b"more"], 99)
    flusher.sync()
    again = Journal(after.crash(3), FOLDER, segment_bytes=3_000)
    assert recovered(again) == [*found, b"more"]


@pytest.mark.parametrize("hit", range(5))
def test_damage_to_acknowledged_journal_records_costs_them_alone(hit: int) -> None:
    """Finding F1: also if there was no quiet time, but the machine has been up since."""
    files = FaultyFiles()
    flusher = Flusher(files, FOLDER)
    journal = Journal(files, FOLDER)
    for number in range(5):
        journal.append([body_of(number)], 0)
        flusher.sync()
    (info,) = journal.log.segments()
    size = (info.size_bytes - 64) // 5
    files.open(info.path).write_at(64 + hit * size + 90, [b"????"])
    recovery = Journal(files, FOLDER).recover()
    kept = [(number, body_of(number)) for number in range(5) if number != hit]
    assert list(recovery.records) == kept
    assert [(loss.offset, loss.next_offset) for loss in recovery.losses] == [(hit, hit + 1)]
    assert files.size(info.path) == info.size_bytes


# -- the n-th call fails ----------------------------------------------------------


@pytest.mark.parametrize("code", [5, 28], ids=["EIO", "ENOSPC"])
@with_and_without_room
def test_any_failing_call_loses_nothing_acknowledged(code: int, room: bool) -> None:
    calls = crashes(lambda files: write_and_sync(files, Acked(), Flusher, room), FaultyFiles)
    for call in range(1, calls + 1):
        files, acked = FaultyFiles(), Acked()
        files.fail_call, files.fail_errno = call, code
        try:
            write_and_sync(files, acked, Flusher, room)
        except (OSError, NexoError):
            pass
        else:
            assert (room, code) == (True, errno.ENOSPC), f"call {call} failed unnoticed"
        for seed in SEEDS:
            check_log(files.crash(seed), acked, room)
        check_acked(SegmentedLog(files.restart(), FOLDER), acked)


@pytest.mark.parametrize("code", [5, 28], ids=["EIO", "ENOSPC"])
def test_a_log_goes_on_after_a_failed_write(code: int) -> None:  # SPEC I7
    files = FaultyFiles()
    log = SegmentedLog(files, FOLDER, segment_bytes=SEGMENT_BYTES)
    fill(log, range(3))
    files.fail_call, files.fail_errno = files.calls + 1, code
    with pytest.raises((OSError, NexoError)):
        log.append(*entry(3, size=400))
    fill(log, range(3, 6))
    for found in (log, SegmentedLog(files, FOLDER, segment_bytes=SEGMENT_BYTES)):
        assert dict(readable(found)) == {n: body_of(n) for n in range(6)}
        assert found.verify() == []
