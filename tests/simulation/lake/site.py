"""A lake in a folder, its pipelines, its clock, and the model beside it."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import blake2b
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyiceberg.table.metadata as pyiceberg_metadata
import pyiceberg.table.update as pyiceberg_update
from pyiceberg.catalog.sql import SqlCatalog

from nexo.lake.catalog import Lake
from nexo.lake.reading.replay import LakeReader
from nexo.lake.settings import CATALOG, LakeSettings
from nexo.lake.tables import NEWEST, RECORDS, StreamId
from tests.simulation.lake.model import Model, State, TableModel
from tests.simulation.world import Finding

if TYPE_CHECKING:
    from pyiceberg.table import Table

LOG = StreamId("log", 1)
KINDS = {"records": RECORDS, "latest": NEWEST}
_EPOCH_NS = 1_790_000_000_000_000_000


@dataclass
class Pipeline:
    """One of two that take the same stream; it remembers its table between its batches."""

    lake: Lake
    tables: dict[str, Table] = field(default_factory=dict)


class Site:
    """What the steps of a run act on."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.root, self.folder = folder, folder / "lake"
        self.seed = seed
        self.now_ns = self.newest_ns = _EPOCH_NS
        self.model = Model()
        self.copied: dict[Path, str] = {}
        """Folders of which a copy is in use, and what was in them then."""
        self.logs: dict[str, list[tuple[int, int]]] = {name: [] for name in KINDS}
        """All entries that a table's log of snapshots ever had."""
        self.drops = 0
        """How many tables were dropped."""
        self.open()

    def open(self) -> None:
        """Open the folder anew, as after a restart."""
        self.lake = Lake(LakeSettings(self.folder))
        self.reader = LakeReader(self.lake, LOG.name)
        """A broker's, which lives as long as it does."""
        self.pipelines = [Pipeline(self.lake), Pipeline(Lake(LakeSettings(self.folder)))]

    def table(self, name: str) -> Table | None:
        return self.lake.known(LOG, KINDS[name])

    @contextmanager
    def theirs(self, table: Table) -> Iterator[Table]:
        """A table by PyIceberg's own catalog, on a machine whose clock is right."""
        our_ns, self.now_ns = self.now_ns, self.newest_ns
        catalog = SqlCatalog("nexo", uri=f"sqlite:///{self.folder / CATALOG}")
        try:
            yield catalog.load_table(table.name())
        finally:
            catalog.engine.dispose()
            self.now_ns = our_ns

    def of(self, name: str) -> TableModel:
        return self.model.tables[name]

    def change(self, name: str, to: Callable[[State], State]) -> None:
        """Change what a table should hold."""
        found = self.of(name)
        found.state = to(found.state)

    def note(self) -> None:
        """Remember what each table's present snapshot should hold, and its log."""
        for name in KINDS:
            table, model = self.table(name), self.of(name)
            snapshot = None if table is None else table.current_snapshot()
            if table is None or snapshot is None:
                continue
            model.snapshots[snapshot.snapshot_id] = model.state
            log = [(each.snapshot_id, each.timestamp_ms) for each in table.metadata.snapshot_log]
            known = self.logs[name]
            since = (n for n in range(len(log), 0, -1) if known and log[n - 1] == known[-1])
            known += log[next(since, 0) :]

    def copy_to(self, new: Path, take: Callable[[Path, Path], Any]) -> None:
        """Move or copy the folder, and go on with what is there."""
        take(self.folder, new)
        if self.folder.exists():
            self.copied[self.folder] = digest(self.folder)
        self.folder = new
        self.open()


def digest(folder: Path) -> str:
    """Of all names and contents below a folder."""
    found = blake2b(digest_size=8)
    for path in sorted(each for each in folder.rglob("*") if each.is_file()):
        found.update(f"{path}\n".encode() + path.read_bytes())
    return found.hexdigest()


@contextmanager
def own_time(site: Site) -> Iterator[None]:
    """Clocks and ids come from the run; to be used in a process of its own."""
    chance = random.Random(f"{site.seed}:ids")

    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return cls.fromtimestamp(time.time(), tz)

    def time_ns() -> int:
        site.now_ns += 1_000_000  # no two commits in one millisecond
        site.newest_ns = max(site.newest_ns, site.now_ns)
        return site.now_ns

    replaced: list[tuple[Any, str, Any]] = [
        (time, "time_ns", time_ns),
        (time, "time", lambda: time_ns() / 1e9),
        (os, "urandom", chance.randbytes),
        (pyiceberg_update, "datetime", Clock),
        (pyiceberg_metadata, "datetime", SimpleNamespace(datetime=Clock)),
    ]
    former = [(module, name, getattr(module, name)) for module, name, _ in replaced]
    try:
        for module, name, value in replaced:
            setattr(module, name, value)
        yield
    finally:
        for module, name, value in former:
            setattr(module, name, value)


def found(check: str, text: str) -> Finding:
    return Finding(check, text[:600])
