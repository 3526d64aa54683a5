"""The pipeline as a service: micro-batches at a steady pace, maintenance in another process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from nexo.errors import InvalidInput, LockedOut, NexoError, Unauthenticated
from nexo.lake.maintenance.debt import MergePace
from nexo.lake.maintenance.upkeep import EVERY_S, Plan, Upkeep
from nexo.lake.progress import MicroBatchResult
from pyspark_nexo.failures import SparkEnded
from pyspark_nexo.merging import Merging
from pyspark_nexo.pace import Pace
from pyspark_nexo.pipeline import Pipeline
from pyspark_nexo.sessions import context_of, is_local

RESCAN_S = 5.0
"""How often new streams are looked for."""
SAVE_S = 1.0
"""How often progress is written to its file, at most."""
_LONGEST_PAUSE_S = 30.0
_SMOOTH = 0.3

ReportBatch = Callable[[MicroBatchResult], None]
Note = Callable[[str], None]


@dataclass(slots=True)
class Continuous:
    """Runs a pipeline until ``stop`` is set.

    A broker or catalog that does not answer is tried again with growing pauses. A stream that
    cannot be taken is reported and tried again less and less often; the others continue. Bad
    settings and the end of Spark end the pipeline.
    """

    pipeline: Pipeline
    every_s: float = 1.0
    maintained: bool = True
    pace: Pace = field(default_factory=Pace)
    maintain_every_s: float = EVERY_S
    _pace: MergePace = field(default_factory=MergePace)

    def run(self, stop: threading.Event, report: ReportBatch, note: Note) -> None:
        with (
            self.pipeline.tracker.running(self._folder, int(self.every_s * 1000)),
            self._upkeep(note),
            self._beside(self._compact, stop, report, note),
            self._beside(partial(self._merge, stop), stop, report, note),
        ):
            self._run(stop, report, note)

    @property
    def _folder(self) -> Path:
        return self.pipeline.lake.settings.folder

    def _run(self, stop: threading.Event, report: ReportBatch, note: Note) -> None:
        failures, names, scanned_s = 0, list[str](), -RESCAN_S
        while not stop.is_set():
            started_s = time.monotonic()
            try:
                if started_s - scanned_s >= RESCAN_S:
                    names, scanned_s = self.pipeline.names(), started_s
                self._batch(names, report, note)
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

    def _batch(self, names: Sequence[str], report: ReportBatch, note: Note) -> None:
        known = {name: error.message for name, error in self.pipeline.refused.items()}
        started_s, ready = time.monotonic(), self.pace.ready(names)
        for progress in self.pipeline.run_batch(ready, self.pace.due):
            self.pace.took(progress.stream)
            report(progress)
        refused = self.pipeline.refused
        self.pace.went_well(name for name in ready if name not in refused)
        for name, error in refused.items():
            self.pace.failed(name, self.every_s)
            if known.get(name) != error.message:
                note(f"{name} cannot be taken: {error.message}")
        took_s = time.monotonic() - started_s
        self.pace.ahead_s += _SMOOTH * (took_s - self.pace.ahead_s)
        self.pipeline.tracker.pipeline.fresh_every_ms = 1000 * max(self.every_s, self.pace.ahead_s)

    # -- beside the loop -----------------------------------------------------------------

    def _upkeep(self, note: Note) -> Upkeep | nullcontext[None]:
        """Merging, expiry and sweeping, in another process."""
        if not self.maintained:
            return nullcontext()
        where, progress = self.pipeline.lake.settings, self.pipeline.tracker.pipeline

        def maintained(at_ms: int) -> None:
            progress.maintained_ms = at_ms

        plan = Plan(
            str(where.folder), where.catalog, where.namespace,
            every_s=self.maintain_every_s, merges=not self._on_cluster,
        )  # fmt: skip
        return Upkeep(plan, note, maintained, self.pipeline.tracker.owes)

    @property
    def _on_cluster(self) -> bool:
        """Whether executors are elsewhere; on this machine, a process of low priority merges."""
        return not is_local(context_of(self.pipeline.spark))

    @contextmanager
    def _beside(
        self, work: Callable[[ReportBatch, Note], None], stop: threading.Event,
        report: ReportBatch, note: Note,
    ) -> Iterator[None]:  # fmt: skip
        """Do some upkeep now and then during the block, by Spark jobs of its own."""
        if not self.maintained:
            yield
            return
        ended = threading.Event()

        def run() -> None:
            while not (ended.wait(self.maintain_every_s) or stop.is_set()):
                work(report, note)

        thread = threading.Thread(target=run, name="nexo-upkeep", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _merge(self, stop: threading.Event, report: ReportBatch, note: Note) -> None:
        """Merge files on the executors."""
        if not self._on_cluster:
            return
        tracker = self.pipeline.tracker
        spark, lake = self.pipeline.spark, self.pipeline.lake
        merging = Merging(spark, lake, note, tracker.owes, pace=self._pace)
        try:
            merging.round(stop.is_set)
        except NexoError as error:
            note(f"maintenance will try again: {error.message}")

    def _compact(self, report: ReportBatch, note: Note) -> None:
        for name in [each.stream for each in self.pipeline.tracker.pipeline.streams]:
            try:
                for progress in self.pipeline.compact([name]):
                    report(progress)
            except NexoError as error:
                note(f"the newest records of {name} cannot be brought up to date: {error.message}")


def _is_final(error: NexoError) -> bool:
    """Whether trying again cannot help; with a wrong password it would lock out the user."""
    wrong = isinstance(error, Unauthenticated) and not isinstance(error, LockedOut)
    return wrong or isinstance(error, InvalidInput | SparkEnded)
