"""Checks the files of a stopped server, and repairs what can be repaired.

A check changes nothing: it recovers every log, journal and snapshot on files that only
record what would be done to them. A repair runs the same code on the real files.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from nexo.brokers.store.engine import StoreEngine
from nexo.config import Settings
from nexo.errors import Corrupt, NexoError
from nexo.model import Broker
from nexo.services.store import snapshot as store_snapshot
from nexo.storage import index, sealed
from nexo.storage.disk.dry_files import DryChange, DryFiles
from nexo.storage.disk.files import OsFiles
from nexo.storage.disk.freezing import NOT_DATA
from nexo.storage.journal import DAMAGED, Journal, Loss
from nexo.storage.log import SegmentedLog
from nexo.storage.ports import Files
from nexo.storage.removal import REMOVED
from nexo.storage.segment import Damage, parse_name
from nexo.storage.snapshot import MAGIC as SNAPSHOT_MAGIC

ProblemKind: TypeAlias = Literal[
    "damage", "journal", "snapshot", "torn tail", "flip", "header", "index", "leftover", "copy"
]

SERIOUS: frozenset[ProblemKind] = frozenset({"damage", "journal"})
"""Acknowledged data may be lost; anything else is repaired at the next start, or harmless."""
_LEFTOVERS = (*(f"{prefix}*" for prefix in (*NOT_DATA, REMOVED)), "*.new", "*.restoring")
_COPIES = ("*.cut", "*.damaged")


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it should be."""

    path: Path
    kind: ProblemKind
    detail: str

    @property
    def serious(self) -> bool:
        return self.kind in SERIOUS


ReportRead: TypeAlias = Callable[[float], None]


class Checkup:
    """All files of one server."""

    def __init__(self, settings: Settings, advance: ReportRead = lambda steps: None) -> None:
        """``advance`` is called with every log's size once it was read."""
        self._folders = {broker: settings.folder(broker) for broker in Broker}
        self._advance = advance

    @property
    def size_bytes(self) -> int:
        """How much there is to read."""
        return sum(_size_of(log) for log in self._logs())

    def find(self) -> list[Finding]:
        """Everything that is wrong; changes nothing."""
        found = [finding for log in self._logs() for finding in self._look(log)]
        found += self._saved_store()
        found += self._strays()
        return sorted(set(found), key=lambda finding: (not finding.serious, finding.path))

    def mend(self) -> None:
        """Do what a start would do: cut torn tails, rebuild indexes, remove leftovers."""
        files = OsFiles()
        for log in self._logs():
            try:
                self._recover(files, log)
            except NexoError:
                continue  # what cannot be repaired is found again
        for folder in self._folders.values():
            for path in _matching(folder, _LEFTOVERS):
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)

    # -- logs ---------------------------------------------------------------------

    def _logs(self) -> Iterator[Path]:
        """Every folder with segments or snapshots."""
        for root in self._folders.values():
            yield from sorted({path.parent for path in _matching(root, ("*.log", "*.snap"))})

    def _is_journal(self, folder: Path) -> bool:
        return self._folders[Broker.STREAM] / "streams" not in folder.parents

    def _look(self, folder: Path) -> Iterator[Finding]:
        files = DryFiles()
        yield from _damaged_indexes(files, folder)
        yield from _damaged_snapshots(files, folder)
        try:
            log, losses = self._recover(files, folder)
        except NexoError as error:
            yield Finding(folder, "journal", error.message)
            log, losses = SegmentedLog(DryFiles(), folder), []
        for loss in losses:
            if loss.reason != DAMAGED:  # those are among the log's own
                yield Finding(folder, "journal", str(loss))
        for damage in log.verify():
            yield _damage(log, folder, damage)
        yield from _planned(files.changes)
        self._advance(_size_of(folder))

    def _recover(self, files: Files, folder: Path) -> tuple[SegmentedLog, list[Loss]]:
        """Open a log as a server would; its indexes are loaded, or rebuilt and saved."""
        losses: list[Loss] = []
        if not self._is_journal(folder):
            log = SegmentedLog(files, folder)
        else:
            journal = Journal(files, folder)
            recovery = journal.recover()
            losses = recovery.losses
            for _ in recovery.records:
                pass
            log = journal.log
        log.segments()
        if isinstance(files, OsFiles):
            log.verify()
            log.close()
        return log, losses

    # -- other files ----------------------------------------------------------------

    def _saved_store(self) -> Iterator[Finding]:
        for name in (store_snapshot.NAME, store_snapshot.STOPPED):
            path = self._folders[Broker.STORE] / name
            try:
                store_snapshot.load(DryFiles(), path, StoreEngine(), now_ms=0)
            except Corrupt as error:
                yield Finding(path, "damage", error.message)

    def _strays(self) -> Iterator[Finding]:
        for folder in self._folders.values():
            for path in _matching(folder, _LEFTOVERS):
                yield Finding(path, "leftover", "of work that was cut short; not needed")
            for path in _matching(folder, _COPIES):
                yield Finding(path, "copy", "of damaged bytes that were set aside; yours to remove")


def _size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.log"))


def _matching(folder: Path, patterns: tuple[str, ...]) -> Iterator[Path]:
    """The paths that match one of ``patterns``, and are in no hidden folder."""
    for pattern in patterns:
        for path in sorted(folder.rglob(pattern)):
            hidden = any(part.startswith(".") for part in path.parent.relative_to(folder).parts)
            if not hidden:
                yield path


def _damaged_indexes(files: DryFiles, folder: Path) -> Iterator[Finding]:
    for path in sorted(folder.glob("*.idx")):
        try:
            index.read(files, path)
        except Corrupt as error:
            yield Finding(path, "index", f"{error.message}; it is rebuilt")


def _damaged_snapshots(files: DryFiles, folder: Path) -> Iterator[Finding]:
    for path in sorted(folder.glob("*.snap")):
        try:
            stored = sealed.read(files, path, SNAPSHOT_MAGIC)
            if stored is None or not path.stem.isdecimal() or stored[1] != int(path.stem):
                raise Corrupt("it is not the one its name says")
        except Corrupt as error:
            yield Finding(path, "snapshot", f"{error.message}; another one is used, if there is")


def _damage(log: SegmentedLog, folder: Path, damage: Damage) -> Finding:
    holders = [info for info in log.segments() if info.base_offset <= damage.offset]
    path = holders[-1].path if holders else folder
    if damage.offset == damage.next_offset:
        return Finding(path, "header", "the file header is damaged; all entries are intact")
    lost = f"offsets {damage.offset} to {damage.next_offset - 1} at byte {damage.position}"
    return Finding(path, "damage", f"{lost} are lost; readers get an error and continue after them")


def _planned(changes: list[DryChange]) -> Iterator[Finding]:
    """The changes that opening would make to the files, as findings."""
    for change in changes:
        name = change.path.name
        if change.verb == "cut" and parse_name(name):
            detail = f"{change.size_bytes} bytes of an unfinished write; they are cut off"
            yield Finding(change.path, "torn tail", detail)
        elif change.verb == "write" and parse_name(name):
            yield Finding(change.path, "flip", "a flipped byte; it is put right, nothing is lost")
        elif change.verb == "write" and name.endswith(".idx"):
            yield Finding(change.path, "index", "absent or out of date; it is rebuilt")
