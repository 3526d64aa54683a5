"""One micro-batch of tier-through: ranges to Parquet in Spark tasks, only manifests back.

Tasks fetch from the broker and write lake files from the batches' own buffers; no row passes
through the JVM.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from nexo.lake.derive import Step
from nexo.lake.files import DataFileFacts, FileWriter, Target
from nexo.lake.rows import rows
from pyspark_nexo.broker import StreamBroker
from pyspark_nexo.failures import plain_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Probe: TypeAlias = Callable[[str], None]
"""Called with the name of each point that a crash test stops at."""


def no_probe(point: str) -> None:
    """Nothing to test."""


@dataclass(frozen=True, slots=True)
class Task:
    """A range of one partition to be written into one table."""

    stream: str
    partition: int
    first: int
    end: int
    target: Target


@dataclass(frozen=True, slots=True, repr=False)
class Fetcher:
    """What a Spark task does; travels to the executors.

    Spark's warnings show it, and its URL may hold a password: hence without a representation.
    """

    url: str | None
    tasks: Sequence[Task]
    probe: Probe = no_probe

    def __call__(self, number: int) -> bytes:
        """Write the files of one task."""
        return pickle.dumps(self.write(self.tasks[number]))

    def write(self, task: Task) -> list[DataFileFacts]:
        """Write one range; nothing is left behind on failure."""
        label = f"{task.partition:04}-{task.first:016}-{task.end:016}"
        writer = FileWriter(task.target, task.partition, label)
        self.probe("before the file")
        try:
            with StreamBroker(self.url) as broker:
                found = broker.read(task.stream, task.partition, task.first, task.end)
                writer.write(rows(batch, task.partition, task.first, task.end) for batch in found)
            files = writer.close()
        except BaseException:
            writer.discard()
            raise
        self.probe("after the file")
        return files


@dataclass(frozen=True, slots=True, repr=False)
class Derivation:
    """A step of a derived table, one partition per Spark task."""

    steps: Sequence[Step]
    run: Callable[[Step], list[DataFileFacts]]

    def __call__(self, number: int) -> bytes:
        """Write the files of one partition."""
        return pickle.dumps(self.run(self.steps[number]))


def run_tasks(spark: SparkSession, work: Callable[[int], bytes], count: int) -> list[Any]:
    """Run ``work`` for each number below ``count``, each as a Spark task; what they pickled."""
    from pyspark.sql.functions import udf  # noqa: PLC0415 - pyspark takes a second to import

    # A plain function of a row, as it needs no pandas and works on every kind of master.
    # One row per partition of the range: each is a Spark task of its own.
    with plain_errors():
        column = udf(work, "binary", useArrow=False).asNondeterministic()
        frame = spark.range(0, count, 1, count).select("id", column("id").alias("result"))
        found = {row.id: pickle.loads(row.result) for row in frame.collect()}
    return [found[number] for number in range(count)]
