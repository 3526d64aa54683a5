"""``nexo restore``: put a backup into an empty data folder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import click

from nexo import config
from nexo.cli import output
from nexo.cli.operate import backup_file
from nexo.cli.sizes import size_text
from nexo.errors import Conflict
from nexo.model import Broker
from nexo.server.processes.folder_lock import FolderLock, absent_paths

_ASIDE = ".restoring"


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option("--data-dir", type=click.Path(path_type=Path),
              help="The new server's folder.  [default: the setting's]")  # fmt: skip
@click.option("--config", "settings_file", envvar="NEXO_CONFIG", type=click.Path(path_type=Path),
              help="The new server's settings, to find its folders.")  # fmt: skip
def command(file: Path, data_dir: Path | None, settings_file: Path | None) -> None:
    """Put the backup FILE where a server that does not run will find it.

    The folders must be empty. All of the backup is checked before any of it counts.
    """
    settings = config.load(settings_file, os.environ, {"data_dir": data_dir})
    folders = {broker: settings.folder(broker) for broker in Broker}
    lock = FolderLock(settings, wait_s=0)
    try:
        _check_empty(folders)
        with backup_file.reading(file) as archive:
            _restore(archive, folders)
            manifest = archive.manifest
    except BaseException:
        lock.undo()
        raise
    lock.close()
    count = sum(manifest.files.values())
    output.done(
        f"{count:,} files, {size_text(manifest.size_bytes)}, restored to {settings.data_dir}",
        data_dir=str(settings.data_dir), files=count, size_bytes=manifest.size_bytes,
    )  # fmt: skip


def _check_empty(folders: dict[Broker, Path]) -> None:
    for folder in folders.values():
        if folder.exists() and any(folder.iterdir()):
            raise Conflict(f"{folder} is not empty: restore to another folder, or move it away")


def _restore(archive: backup_file.Reader, folders: dict[Broker, Path]) -> None:
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
    _sync_folder(folder.parent)


def _empty(folder: Path) -> None:
    with suppress(OSError):  # the failure before is the one to be told
        for path in folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
