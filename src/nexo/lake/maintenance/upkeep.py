"""Maintenance in a process of its own, so that it never stalls the pipeline (SPEC I8).

``python -m nexo.lake.maintenance.upkeep``, with its settings as one JSON object on standard input,
maintains every table of a lake periodically. It runs at low priority and rests most of the time,
and prints one JSON object per line: ``{"note": …}`` for people, ``{"maintained_ms": …}`` after
each round. It ends when standard input does, that is with the process that started it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING

import msgspec
from msgspec import structs

from nexo.errors import NexoError
from nexo.lake.maintenance.debt import MergePace
from nexo.lake.progress import TableDebt, now_ms
from nexo.lake.settings import LakeSettings
from nexo.lake.tables import TERMS, USER
from nexo.lake.writing.staging import sweep_staging

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from nexo.lake.maintenance.maintain import Report

# ruff: noqa: PLC0415 - PyIceberg takes half a second to import

EVERY_S = 300.0
BUDGET_S = 5.0
"""How long files of one table are merged at a time."""
SHARE = 0.15
"""The part of the time that it works; otherwise the pipeline has the machine to itself."""
NICE = 19
_RESTART_S = 30.0


class Plan(msgspec.Struct, frozen=True):
    """What a maintenance process is to do."""

    folder: str
    catalog: str
    namespace: str
    every_s: float = EVERY_S
    budget_s: float = BUDGET_S
    merges: bool = True
    """False if files are merged by the executors of a cluster."""


@dataclass(slots=True)
class Rounds:
    """Maintains the tables of a lake, resting between them."""

    plan: Plan
    wait: Callable[[float], bool]
    """Waits for some seconds; returns whether it is time to end."""
    say: Callable[[dict[str, object]], None]
    pace: MergePace = field(default_factory=MergePace)

    def run(self) -> None:
        while not self.wait(self.plan.every_s):
            if self._round():
                return
            self.say({"maintained_ms": time.time_ns() // 1_000_000})

    def _round(self) -> bool:
        for table in self._tables():
            started_s = time.monotonic()
            self._maintain(table)
            worked_s = time.monotonic() - started_s
            if self.wait(worked_s * (1 / SHARE - 1)):
                return True
        self._sweep()
        return False

    def _sweep(self) -> None:
        from nexo.lake.catalog import Lake
        from nexo.lake.folder.swapping import drop_expired

        try:
            sweep_staging(self._lake)
            for name in drop_expired(Lake(self._lake), time.time_ns() // 1_000_000):
                self.say({"note": f"dropped {name}, which was replaced a week ago"})
        except Exception as error:  # of a store that does not answer; the next round is soon
            self.say({"note": f"what nothing needs cannot be removed: {error!r}"})

    @property
    def _lake(self) -> LakeSettings:
        return LakeSettings(Path(self.plan.folder), self.plan.catalog, self.plan.namespace)

    def _tables(self) -> Iterator[Table]:
        from nexo.lake.catalog import Lake

        try:
            yield from Lake(self._lake).kept()
        except NexoError as error:
            self.say({"note": f"maintenance will try again: {error.message}"})

    def _maintain(self, table: Table) -> None:
        from nexo.lake.maintenance.maintain import Care, maintain

        name, started_s = ".".join(table.name()), time.monotonic()
        try:
            self._merge_forgotten(table)
            done = maintain(table, Care(budget_s=self.plan.budget_s, merges=self.plan.merges))
            if done.did_something:
                self.say({"note": str(done)})
            if self.plan.merges:
                self._owe(done, (time.monotonic() - started_s) / SHARE)
        except Exception as error:  # what is wrong with one table stops no other
            message = error.message if isinstance(error, NexoError) else repr(error)
            self.say({"note": f"{name} cannot be maintained: {message}"})

    def _owe(self, done: Report, took_s: float) -> None:
        """Say what is left to be merged of a table."""
        self.pace.took(done.merged_bytes, took_s)
        left = done.due_files - done.merged_files, done.due_bytes - done.merged_bytes
        self.say({"debt": structs.asdict(self.pace.debt(done.table, *left))})

    def _merge_forgotten(self, table: Table) -> None:
        """Merge changes into a table of rows by key that its pipeline has left waiting."""
        if TERMS not in table.properties:
            return
        from nexo.lake.catalog import Lake
        from nexo.lake.changes.keyed import find_keyed
        from nexo.lake.changes.waiting import merge_forgotten

        keyed = find_keyed(Lake(self._lake), table.properties[USER])
        if keyed is not None and (done := merge_forgotten(keyed, now_ms())).changes:
            self.say({"note": f"merged {done.changes:,} changes into {table.properties[USER]}"})


@dataclass(slots=True)
class Upkeep:
    """Runs the maintenance process during a ``with`` block; starts it again if it ends."""

    plan: Plan
    note: Callable[[str], None]
    maintained: Callable[[int], None]
    owes: Callable[[TableDebt], None] = lambda _: None
    _stop: threading.Event = field(default_factory=threading.Event)
    _process: subprocess.Popen[str] | None = None
    _thread: threading.Thread | None = None

    def __enter__(self) -> Upkeep:
        self._thread = threading.Thread(target=self._watch, name="nexo-upkeep", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if (process := self._process) is not None:
            process.terminate()
        if self._thread is not None:
            self._thread.join(5.0)

    def _watch(self) -> None:
        while not self._stop.is_set():
            self._run()
            self._stop.wait(_RESTART_S)

    def _run(self) -> None:
        command = [sys.executable, "-m", "nexo.lake.maintenance.upkeep"]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            self._process = process
            if self._stop.is_set():
                process.terminate()
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                process.stdin.write(msgspec.json.encode(self.plan).decode() + "\n")
                process.stdin.flush()
                self._listen(process.stdout)
            except BrokenPipeError:
                pass

    def _listen(self, lines: IO[str]) -> None:
        for line in lines:
            said = json.loads(line)
            if "note" in said:
                self.note(said["note"])
            elif "maintained_ms" in said:
                self.maintained(said["maintained_ms"])
            elif "debt" in said:
                self.owes(TableDebt(**said["debt"]))


def main() -> None:
    """Carry out the plan on standard input."""
    os.nice(NICE)
    plan = msgspec.json.decode(sys.stdin.readline(), type=Plan)
    ended = threading.Event()

    def read_on() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=read_on, daemon=True).start()

    def say(said: dict[str, object]) -> None:
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()

    Rounds(plan, ended.wait, say).run()


if __name__ == "__main__":
    main()
