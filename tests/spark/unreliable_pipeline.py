"""A pipeline in a process of its own, with a catalog that misbehaves, until it is killed.

``python unreliable_pipeline.py URL LAKE POINT NTH SEED``: it kills itself, JVM and all, the NTH
time that POINT is reached, if that is one. It says ``started`` after its first micro-batch.
"""

from __future__ import annotations

import random
import sys
import threading
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from nexo.lake.settings import LakeSettings
from pyspark_nexo.continuous import Continuous
from pyspark_nexo.pipeline import Pipeline
from pyspark_nexo.sessions import session
from tests.spark.killed_pipeline import CONF, LIMITS, Killer
from tests.unit.lake.misbehaving import FAULTS, MisbehavingCatalog, MisbehavingLake, conflict

FAULTY = 0.1
"""The share of commits that the catalog fails, before or after it has done them."""


class UnreliableCatalog(MisbehavingCatalog):
    """Fails at random: a commit before or after it is done, or the reading of a table."""

    chance: random.Random

    def commit_tables(self, changes: Any) -> Any:
        if self.chance.random() < FAULTY:
            fault = self.chance.choice([conflict, *FAULTS.values()])
            self.plan = [(fault, fault is not conflict and self.chance.random() < 0.5)]
        return super().commit_tables(changes)

    def load_table(self, identifier: Any) -> Any:
        if self.chance.random() < FAULTY / 10:
            self.loads = [self.chance.choice(list(FAULTS.values()))]
        return super().load_table(identifier)


class UnreliableLake(MisbehavingLake):
    """A lake in a folder with such a catalog."""

    kind = UnreliableCatalog


def main(url: str, folder: str, point: str, nth: str, seed: str) -> None:
    spark = session("local[2]", conf=CONF)
    lake = UnreliableLake(LakeSettings(Path(folder)))
    catalog = lake.catalog
    assert isinstance(catalog, UnreliableCatalog)
    catalog.chance = random.Random(int(seed))
    probe = Killer(point, int(nth), Path(folder).with_suffix(f".count-{seed}"))
    pipeline = Pipeline(spark, lake, url, probe=probe, limits=LIMITS)
    service = Continuous(pipeline, 0.2, maintain_every_s=2.0)
    started = threading.Event()

    def report(_: object) -> None:
        if not started.is_set():
            started.set()
            sys.stdout.write("started\n")
            sys.stdout.flush()

    service.run(threading.Event(), report, say)


def say(note: str) -> None:
    sys.stderr.write(f"{note}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
