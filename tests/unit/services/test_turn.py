"""The durable turn: one write per journal, answers when it is safe, undo on a full disk."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nexo.errors import DiskFailed, DiskFull, NexoError, NotFound, OutcomeUnknown, ReadOnly
from nexo.model import Persistence
from nexo.services.turn import PATIENCE_MS, RETRY_MS, Turn
from tests.manual_runtime import ManualRuntime
from tests.memory_files import MemoryFiles

SYNC, ASYNC = Persistence.FILE_SYNC, Persistence.FILE_ASYNC


class TurnRuntime(ManualRuntime):
    """Syncs when the test says so."""

    def __init__(self) -> None:
        super().__init__(MemoryFiles(), now_ms=1_000)
        self.unsynced: list[Callable[[NexoError | None], None]] = []

    def committed(self, mode: Persistence, callback: Callable[[NexoError | None], None]) -> None:
        if mode is ASYNC:
            callback(None)
        else:
            self.unsynced.append(callback)

    def sync(self, error: NexoError | None = None) -> None:
        waiting, self.unsynced = self.unsynced, []
        for callback in waiting:
            callback(error)


class Journal:
    """Counts writes; refuses while it has a reason to."""

    def __init__(self) -> None:
        self.writes = 0
        self.refuses: Exception | None = None
        self.undone: list[NexoError] = []

    def write(self, now_ms: int) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.writes += 1

    def undo(self, error: NexoError) -> None:
        self.undone.append(error)


class Bench:
    """A turn, and whatever was told to whom."""

    def __init__(self) -> None:
        self.runtime = TurnRuntime()
        self.after: list[Journal] = []
        self.turn: Turn[Journal] = Turn(self.runtime, lambda journal, _: self.after.append(journal))
        self.told: list[tuple[str, NexoError | None]] = []

    def told_as(self, name: str) -> Callable[[NexoError | None], None]:
        return lambda error: self.told.append((name, error))


@pytest.fixture
def bench() -> Bench:
    return Bench()


def raising(_: NexoError | None) -> None:
    raise RuntimeError("a bug")


def test_all_changes_of_a_turn_are_one_write_and_answered_after_the_sync(bench: Bench) -> None:
    journal = Journal()
    for name in ("a", "b"):
        bench.turn.when_safe(journal, SYNC, bench.told_as(name))
    assert journal.writes == 0
    bench.runtime.end_turn()
    assert journal.writes == 1
    assert bench.told == []
    bench.runtime.sync()
    assert bench.told == [("a", None), ("b", None)]
    assert bench.after == [journal]


def test_async_callers_are_answered_once_it_is_written(bench: Bench) -> None:
    bench.turn.when_safe(Journal(), ASYNC, bench.told_as("a"))
    bench.runtime.end_turn()
    assert bench.told == [("a", None)]


def test_a_failed_sync_is_told(bench: Bench) -> None:
    bench.turn.when_safe(Journal(), SYNC, bench.told_as("a"))
    bench.runtime.end_turn()
    bench.runtime.sync(ReadOnly("no"))
    assert isinstance(bench.told[0][1], ReadOnly)


def test_a_full_disk_undoes_what_it_can_and_writes_the_rest_later(bench: Bench) -> None:
    journal = Journal()
    journal.refuses = OSError(28, "No space left on device")
    bench.turn.when_safe(journal, ASYNC, bench.told_as("stands"))
    bench.turn.when_safe_or_undone(journal, ASYNC, bench.told_as("undone"))
    bench.runtime.end_turn()
    assert [name for name, _ in bench.told] == ["undone"]
    assert isinstance(bench.told[0][1], DiskFull)
    assert len(journal.undone) == 1
    journal.refuses = None
    bench.runtime.time.now += RETRY_MS
    bench.turn.tick(bench.runtime.time.now)
    bench.runtime.end_turn()
    assert bench.told[1:] == [("stands", None)]


def test_what_stands_is_unsure_when_the_disk_refuses_for_long(bench: Bench) -> None:
    """SPEC Q2: whoever waits gets an answer; SPEC I7: the change is written once it can be."""
    journal = Journal()
    journal.refuses = DiskFull("no room")
    bench.turn.when_safe(journal, SYNC, bench.told_as("stands"))
    bench.runtime.end_turn()
    for _ in range(PATIENCE_MS // RETRY_MS):
        assert bench.told == []
        bench.runtime.time.now += RETRY_MS
        bench.turn.tick(bench.runtime.time.now)
        bench.runtime.end_turn()
    assert [type(error) for _, error in bench.told] == [OutcomeUnknown]
    journal.refuses = None
    bench.runtime.time.now += RETRY_MS
    bench.turn.tick(bench.runtime.time.now)
    bench.runtime.end_turn()
    assert journal.writes == 1


def test_a_close_answers_who_waits_for_the_disk(bench: Bench) -> None:
    journal = Journal()
    journal.refuses = DiskFull("no room")
    bench.turn.when_safe(journal, SYNC, bench.told_as("stands"))
    bench.runtime.end_turn()
    bench.turn.close()
    assert [type(error) for _, error in bench.told] == [OutcomeUnknown]


@pytest.mark.parametrize("refusal", [DiskFailed("no"), OutcomeUnknown("no"), OSError(5, "no")])
def test_any_refusal_of_the_disk_is_tried_again(refusal: Exception, bench: Bench) -> None:
    """SPEC Q3: not only a full disk passes."""
    journal = Journal()
    journal.refuses = refusal
    bench.turn.when_safe(journal, ASYNC, bench.told_as("stands"))
    bench.turn.when_safe_or_undone(journal, ASYNC, bench.told_as("undone"))
    bench.runtime.end_turn()
    [(name, error)] = bench.told
    assert name == "undone"
    assert isinstance(error, DiskFailed | OutcomeUnknown)
    journal.refuses = None
    bench.runtime.time.now += RETRY_MS
    bench.turn.tick(bench.runtime.time.now)
    bench.runtime.end_turn()
    assert bench.told[1:] == [("stands", None)]


def test_a_final_refusal_is_told_to_everyone(bench: Bench) -> None:
    journal = Journal()
    journal.refuses = ReadOnly("a sync failed")
    bench.turn.when_safe(journal, SYNC, bench.told_as("a"))
    bench.turn.when_safe_or_undone(journal, SYNC, bench.told_as("b"))
    bench.runtime.end_turn()
    assert {name for name, _ in bench.told} == {"a", "b"}
    assert all(isinstance(error, ReadOnly) for _, error in bench.told)


def test_whoever_waits_for_a_deleted_journal_is_told(bench: Bench) -> None:
    journal = Journal()
    bench.turn.when_safe(journal, SYNC, bench.told_as("a"))
    bench.turn.forget(journal, NotFound("gone"))
    bench.runtime.end_turn()
    assert isinstance(bench.told[0][1], NotFound)
    assert journal.writes == 0


def test_an_answer_that_raises_takes_no_other_along(bench: Bench) -> None:
    """F14: one raising callback must not lose the others' replies."""
    journal, other = Journal(), Journal()
    for one in (journal, other):
        bench.turn.when_safe(one, ASYNC, raising)
        bench.turn.when_safe(one, ASYNC, bench.told_as("told"))
    bench.runtime.end_turn()
    assert bench.told == [("told", None)] * 2
    assert bench.after == [journal, other]


def test_a_journal_that_breaks_takes_no_other_along(bench: Bench) -> None:
    broken, sound = Journal(), Journal()
    broken.refuses = RuntimeError("a bug")
    bench.turn.when_safe(broken, ASYNC, bench.told_as("broken"))
    bench.turn.when_safe(sound, ASYNC, bench.told_as("sound"))
    bench.runtime.end_turn()
    assert dict(bench.told)["sound"] is None
    assert isinstance(dict(bench.told)["broken"], NexoError)
