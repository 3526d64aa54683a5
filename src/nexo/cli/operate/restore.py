"""``nexo restore``: put a backup, or what was replicated, into an empty data folder."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

import click

from nexo import config
from nexo.cli import output
from nexo.cli.operate import backup_file
from nexo.cli.operate.replica import asking_store, log_end
from nexo.cli.options import config_option
from nexo.config import Settings
from nexo.errors import Conflict, Corrupt, NotFound
from nexo.model import Broker
from nexo.options.units import size_text
from nexo.replication.objects import ObjectsBelow, ObjectStore
from nexo.replication.replay import AHEAD, LogReplay
from nexo.replication.small_files import SmallFiles
from nexo.replication.stores import open_store
from nexo.server.processes.folders import FolderLock, absent_paths, stamp_format
from nexo.server.replica.marks import small_paths
from nexo.storage.disk.files import OsFiles, sync_folder

_ASIDE = ".restoring"


@click.command()
@click.argument("source", metavar="FILE_OR_URL")
@click.option("--at", metavar="TIME",
              help="Of a store: as of this time, 2026-01-31T12:00 or with an offset.")  # fmt: skip
@click.option("--data-dir", type=click.Path(path_type=Path),
              help="The new server's folder.  [default: the setting's]")  # fmt: skip
@click.option("--damaged", is_flag=True,
              help="Of a backup that is damaged: what can be read.")  # fmt: skip
@config_option("The new server's settings, to find its folders.", "settings_file")
def command(
    source: str, at: str | None, data_dir: Path | None, damaged: bool, settings_file: Path | None
) -> None:
    """Put a backup file, or what servers replicated to a store's URL, where a server will find it.

    The server must not run, and the folders must be empty. All of a backup is checked before any
    of it counts, but with --damaged, which restores what can be read. A store (s3://, gs://, az://,
    file:///) gives the newest it has, or with --at what it had at that time. If objects of it are
    missing or damaged, each broker is restored up to there. What is missing or damaged is named,
    and the exit status is 1.
    """
    settings = config.load(settings_file, os.environ, {"data_dir": data_dir})
    folders = {broker: settings.folder(broker) for broker in Broker}
    if "://" in source:
        _restore_replicated(source, at, settings, folders)
        return
    if at is not None:
        raise click.UsageError("--at is for a store's URL: a backup has one time")
    file = Path(source)
    if not file.is_file():
        raise click.UsageError(f"there is no file {source!r}")
    with (
        _locked(settings, folders),
        backup_file.reading(file, damaged_too=damaged) as archive,
    ):
        _restore(archive, folders)
    manifest = archive.manifest
    count = sum(manifest.files.values())
    output.done(
        f"{count:,} files, {size_text(manifest.size_bytes)}, restored to {settings.data_dir}",
        data_dir=str(settings.data_dir), files=count, size_bytes=manifest.size_bytes,
        damage=archive.damage,
    )  # fmt: skip
    _report(archive.damage)


def _restore_replicated(
    url: str, at: str | None, settings: Settings, folders: dict[Broker, Path]
) -> None:
    until_ms = None if at is None else _time_ms(at)
    store = open_store(url, settings.replicate_key_file)
    damage: list[str] = []
    with _locked(settings, folders), asking_store():
        with _replacing(folders) as aside:
            objects = sum(
                _replay(store, broker, aside[broker], until_ms, damage) for broker in Broker
            )
        small = _restore_small(store, settings, until_ms, damage)
        stamp_format(settings)
    output.done(
        f"restored to {settings.data_dir} from {objects:,} objects of the log",
        data_dir=str(settings.data_dir), objects=objects, small_files=small, damage=damage,
    )  # fmt: skip
    _report(damage)


def _report(damage: list[str]) -> None:
    """Name what is damaged; then the exit status is 1."""
    for each in damage:
        output.note(f"damaged: {each}")
    if damage:
        sys.exit(1)


def _restore_small(
    store: ObjectStore, settings: Settings, until_ms: int | None, damage: list[str]
) -> list[str]:
    try:
        return SmallFiles(store, _small_paths(settings, until_ms)).restore()
    except Corrupt as error:
        damage.append(f"users and the lake's catalog are not restored: {error.message}")
        return []


def _small_paths(settings: Settings, until_ms: int | None) -> dict[str, Path]:
    """Only the newest are kept; a catalog that is newer than the data would skip records."""
    paths = small_paths(settings)
    if until_ms is not None:
        paths.pop("catalog", None)
    return paths


def _replay(
    store: ObjectStore, broker: Broker, folder: Path, until_ms: int | None, damage: list[str]
) -> int:
    """Restore one broker, up to what is damaged; returns how many log objects were applied."""
    logs = ObjectsBelow(store, f"{broker.label}/")
    with ThreadPoolExecutor(AHEAD, "restore") as readers:
        replay = LogReplay(logs, OsFiles(), folder, readers)
        first = 0
        try:
            replay.load(until_ms)
            first = replay.mark.number
            replay.head = log_end(logs)
            replay.to_end(until_ms)
        except Corrupt as error:
            damage.append(
                f"{broker.label} is restored up to log object {replay.mark.number}, "
                f"what was written later is missing: {broker.label}/{error.message}"
            )
            replay.sync()
            return replay.mark.number - first
    replay.sync()
    if not replay.mark.number:
        raise NotFound(f"the store has nothing of the {broker.label} broker: is the URL right?")
    return replay.mark.number - first


def _time_ms(text: str) -> int:
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        raise click.UsageError(f"--at {text!r} is no time: write 2026-01-31T12:00") from None


@contextmanager
def _locked(settings: Settings, folders: dict[Broker, Path]) -> Iterator[None]:
    """Keep servers away from the folders, which must be empty."""
    lock = FolderLock(settings, wait_s=0)
    try:
        for folder in folders.values():
            if folder.exists() and any(folder.iterdir()):
                raise Conflict(f"{folder} is not empty: restore to another folder, or move it away")
        yield
    except BaseException:
        lock.undo()
        raise
    lock.close()


def _restore(archive: backup_file.ArchiveReader, folders: dict[Broker, Path]) -> None:
    with (
        _replacing(folders) as aside,
        output.progress("restoring", archive.manifest.size_bytes) as bar,
    ):
        for size in archive.extract(aside):
            bar.advance(size)


@contextmanager
def _replacing(folders: dict[Broker, Path]) -> Iterator[dict[Broker, Path]]:
    """Folders beside the real ones, on the same disks, that take their places at the end.

    If anything fails, all is left as it was.
    """
    aside = {broker: path.with_name(path.name + _ASIDE) for broker, path in folders.items()}
    absent = absent_paths(folders.values())
    try:
        for path in aside.values():
            shutil.rmtree(path, ignore_errors=True)
            path.mkdir(parents=True)
        yield aside
        for broker, folder in folders.items():
            _replace(folder, aside[broker])
    except BaseException:
        for path in (*aside.values(), *folders.values()):
            _empty(path)
        for path in (*aside.values(), *absent):
            with suppress(OSError):  # not made yet, or moved already
                path.rmdir()
        raise


def _replace(folder: Path, by: Path) -> None:
    if folder.exists():
        shutil.copymode(folder, by)
    by.rename(folder)
    sync_folder(folder.parent)


def _empty(folder: Path) -> None:
    with suppress(OSError):  # the failure before is the one to report
        for path in folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
