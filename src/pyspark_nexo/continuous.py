"""The pipeline as a service: micro-batches at a steady pace, maintenance in between."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from nexo.errors import (
    Conflict,
    InvalidInput,
    LockedOut,
    NexoError,
    NotFound,
    Unauthenticated,
)
from nexo.lake.maintain import maintain
from nexo.lake.progress import now_ms
from pyspark_nexo.failures import SparkEnded
from pyspark_nexo.pipeline import Pipeline, Progress

RESCAN_S = 5.0
"""How often new streams are looked for."""
MAINTAIN_S = 300.0
SAVE_S = 1.0
"""How often progress is written down, at most."""
_LONGEST_PAUSE_S = 30.0


@dataclass(slots=True)
class Continuous:
    """Runs a pipeline until it is told to stop.

    What may pass (a broker or catalog that does not answer) is retried with growing pauses; what
    is wrong with one stream (a lake ahead of its broker, a damaged record) is told, and the others
    go on; bad settings and the end of Spark itself end it.
    """

    pipeline: Pipeline
    every_s: float = 1.0
    maintained: bool = True

    def run(
        self,
        stop: threading.Event,
        report: Callable[[Progress], None],
        note: Callable[[str], None],
    ) -> None:
        """Take streams until ``stop`` is set."""
        with self.pipeline.tracker.running(self._folder, int(self.every_s * 1000)):
            self._run(stop, report, note)

    @property
    def _folder(self) -> Path:
        return self.pipeline.lake.settings.folder

    def _run(
        self,
        stop: threading.Event,
        report: Callable[[Progress], None],
        note: Callable[[str], None],
    ) -> None:
        failures, names, scanned_s = 0, list[str](), -RESCAN_S
        maintained_s = time.monotonic()
        while not stop.is_set():
            started_s = time.monotonic()
            try:
                if started_s - scanned_s >= RESCAN_S:
                    names, scanned_s = self.pipeline.names(), started_s
                self._batch(names, report, note)
                if self.maintained and started_s - maintained_s >= MAINTAIN_S:
                    maintained_s = started_s
                    self._maintain(names, report, note)
                failures = 0
                self.pipeline.tracker.went_well()
                self.pipeline.tracker.save(self._folder, SAVE_S)
            except NexoError as error:
                if _is_final(error):
                    raise
                failures += 1
                scanned_s = -RESCAN_S
                self.pipeline.tracker.failed(error.message, names)
                self.pipeline.tracker.save(self._folder)
                note(f"will try again: {error.message}")
            stop.wait(self._pause_s(started_s, failures))

    def _pause_s(self, started_s: float, failures: int) -> float:
        if failures:
            return min(self.every_s * 2.0**failures, _LONGEST_PAUSE_S)
        return max(self.every_s - (time.monotonic() - started_s), 0)

    def _batch(
        self,
        names: Sequence[str],
        report: Callable[[Progress], None],
        note: Callable[[str], None],
    ) -> None:
        known = {name: error.message for name, error in self.pipeline.refused.items()}
        for progress in self.pipeline.run_batch(names):
            report(progress)
        for name, error in self.pipeline.refused.items():
            if known.get(name) != error.message:
                note(f"{name} cannot be taken: {error.message}")

    def _maintain(
        self,
        names: Sequence[str],
        report: Callable[[Progress], None],
        note: Callable[[str], None],
    ) -> None:
        for name in names:
            with _noted(f"the newest records of {name}", note):
                for progress in self.pipeline.compact([name]):
                    report(progress)
        for table in self.pipeline.lake.tables():
            with _noted(".".join(table.name()), note):
                done = maintain(table)
                if done.did_something:
                    note(str(done))
        self.pipeline.tracker.pipeline.maintained_ms = now_ms()


def _is_final(error: NexoError) -> bool:
    """Whether trying again cannot help; a wrong password would only lock out its user."""
    wrong = isinstance(error, Unauthenticated) and not isinstance(error, LockedOut)
    return wrong or isinstance(error, InvalidInput | Conflict | SparkEnded)


@contextmanager
def _noted(what: str, note: Callable[[str], None]) -> Iterator[None]:
    """What cannot be maintained stops nothing else."""
    try:
        yield
    except (Conflict, NotFound) as error:
        note(f"{what} cannot be maintained: {error.message}")
