"""Merging the changes that wait for a flow's table: when they are worth it, or old, or at the end.

It is a step of its own, beside the flow's batches: however often it is cut off, done twice or left
out, the changes wait in the lake until the rows have them (`nexo.lake.changes.merge`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nexo.errors import InvalidInput, NexoError
from nexo.lake.catalog import Lake
from nexo.lake.changes.keyed import find_keyed
from nexo.lake.changes.merge import BucketMerge, MergedBucket, merge, merge_bucket
from nexo.lake.changes.waiting import WaitingChanges, every_ms_of, waiting
from nexo.lake.commit import LostRace
from nexo.lake.failures import lake_errors
from nexo.lake.progress import now_ms
from pyspark_nexo.code.definitions import OutputDefinition, code_error
from pyspark_nexo.tiering import TaskGroup, run_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEEP_PROPERTY = "nexo.cdc.deletes.keep"
"""A property of a table: for how many days deletes are kept, so that an older change that comes
late does not bring a row back."""
KEEP_DAYS = 7
_DAY_MS = 86_400_000
_HERE_BYTES = 8 * 1024**2
"""Merges of less are done in the driver: starting tasks would cost more."""


@dataclass(frozen=True, slots=True)
class MergesOn:
    """Runs merges here if they are small, else on the executors."""

    spark: SparkSession

    def __call__(self, tasks: Sequence[BucketMerge]) -> Iterable[MergedBucket]:
        if len(tasks) < 2 or sum(each.size_bytes for each in tasks) < _HERE_BYTES:
            return [merge_bucket(each) for each in tasks]
        return run_tasks(self.spark, TaskGroup(merge_bucket, tasks))


@dataclass(slots=True)
class Merger:
    """Merges the changes of one table, one time after the other."""

    lake: Lake
    output: OutputDefinition
    spark: SparkSession
    every_ms: int = field(init=False)
    """How long changes may wait."""
    keep_ms: int = field(init=False)
    """For how long deletes are kept."""
    found: WaitingChanges = field(default_factory=WaitingChanges)
    """What waited when it was last looked at."""
    _one: threading.Lock = field(default_factory=threading.Lock)
    _seeing: threading.Lock = field(default_factory=threading.Lock)
    _aside: threading.Thread | None = None
    _error: NexoError | None = None

    def __post_init__(self) -> None:
        self.every_ms, self.keep_ms = _every_ms(self.output), _keep_ms(self.output)

    def look(self) -> None:
        """See what waits; whoever looks last sees the newest."""
        with self._seeing, lake_errors(f"cannot see what waits for table {self.output.name!r}"):
            keyed = find_keyed(self.lake, self.output.name)
            self.found = WaitingChanges() if keyed is None else waiting(keyed)

    def took(self) -> None:
        """A batch waits, too: merge if that is worth it, or if nothing may wait."""
        self.look()
        if self.found.is_worth_it or not self.every_ms:
            self.merge()

    def merge(self) -> None:
        """Merge what waits."""
        name = self.output.name
        with self._one, lake_errors(f"cannot merge the changes of table {name!r}"):
            keyed = find_keyed(self.lake, name)
            if keyed is not None:
                merge(keyed, MergesOn(self.spark), now_ms() - self.keep_ms)
            self.look()

    # -- beside batches ----------------------------------------------------------------

    def merge_old(self) -> None:
        """Begin to merge what has waited for long; raises why the last time failed."""
        if self._aside is not None and not self._aside.is_alive():
            self._aside = None
            if (error := self._error) is not None:
                self._error = None
                raise error
        if self._aside is None and self.found.is_old(self.every_ms, now_ms()):
            self._aside = threading.Thread(target=self._merge_aside, name="nexo-merge", daemon=True)
            self._aside.start()

    def _merge_aside(self) -> None:
        try:
            self.merge()
        except LostRace:  # the table was made anew meanwhile: the next time merges that one's
            self.found = WaitingChanges()
        except NexoError as error:
            self._error = error
        except Exception as error:  # of Spark, or of a catalog's driver
            self._error = NexoError(f"changes cannot be merged: {error!r}")

    def wait(self) -> None:
        """Wait for a merge that has begun."""
        if self._aside is not None:
            self._aside.join()


def _every_ms(output: OutputDefinition) -> int:
    try:
        return every_ms_of(output.properties)
    except InvalidInput as error:
        raise code_error(output.place, error.message) from None


def _keep_ms(output: OutputDefinition) -> int:
    text = output.properties.get(KEEP_PROPERTY, str(KEEP_DAYS))
    if not text.isdecimal():
        raise code_error(output.place, f"{KEEP_PROPERTY} is a number of days, not {text!r}")
    return int(text) * _DAY_MS
