"""Maintenance runs in a process of its own and ends with the one that started it (P5)."""

from __future__ import annotations

import threading

import pytest

from nexo.lake.catalog import Lake
from nexo.lake.maintenance import upkeep
from nexo.lake.maintenance.upkeep import Plan, Rounds, Upkeep
from tests.timing import wait_until
from tests.unit.lake.conftest import Filler


def plan(lake: Lake, every_s: float = 0.01) -> Plan:
    where = lake.settings
    return Plan(str(where.folder), where.catalog, where.namespace, every_s=every_s)


def small_files(filler: Filler, count: int = 8) -> None:
    for n in range(count):
        filler.append([b"%d" % n])


def test_a_round_maintains_every_table_and_rests_in_between(filler: Filler) -> None:
    small_files(filler)
    small_files(Filler(filler.lake, "other"))
    waits, said = list[float](), list[dict[str, object]]()

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        return len(waits) > 3

    Rounds(plan(filler.lake), wait, said.append).run()
    notes = [str(each["note"]) for each in said if "note" in each]
    assert [note.partition(":")[0] for note in notes] == ["nexo.log", "nexo.other"]
    assert "maintained_ms" in said[-1]
    assert waits[1] > 0
    assert waits[2] > 0


def test_a_table_that_cannot_be_maintained_stops_no_other(
    filler: Filler, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_files(filler)
    small_files(Filler(filler.lake, "other"))
    said = list[dict[str, object]]()
    original = upkeep.Rounds._maintain
    broken = KeyError("ours")

    def maintain(self: Rounds, table: object) -> None:
        from nexo.lake.maintenance import maintain as module  # noqa: PLC0415

        with monkeypatch.context() as patch:
            if table.name()[-1] == "log":  # type: ignore[attr-defined]

                def fail(*_: object) -> None:
                    raise broken

                patch.setattr(module, "maintain", fail)
            original(self, table)  # type: ignore[arg-type]

    monkeypatch.setattr(upkeep.Rounds, "_maintain", maintain)
    waits = iter([False, False, False, True])
    Rounds(plan(filler.lake), lambda _: next(waits), said.append).run()
    notes = [str(each["note"]) for each in said if "note" in each]
    assert notes[0] == "nexo.log cannot be maintained: KeyError('ours')"
    assert notes[1].startswith("nexo.other: merged 8 files into 1")


def test_the_process_merges_files_and_ends_with_the_block(filler: Filler) -> None:
    small_files(filler)
    notes, rounds = list[str](), threading.Semaphore(0)
    with Upkeep(plan(filler.lake), notes.append, lambda _: rounds.release()) as running:
        assert rounds.acquire(timeout=100)  # it runs at low priority
        process = running._process
    assert process is not None
    wait_until(lambda: process.poll() is not None)
    assert any("merged 8 files into 1" in note for note in notes)
    assert filler.table.refresh().scan().to_arrow().num_rows == 8
