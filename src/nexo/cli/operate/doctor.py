"""``nexo doctor``: check a data folder, and repair it."""

from __future__ import annotations

import logging
import os
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nexo import config
from nexo.cli import output
from nexo.cli.options import common, config_option
from nexo.errors import Conflict, NotFound
from nexo.options.units import size_text
from nexo.server.processes.folders import FolderInUse, FolderLock, holds_data

if TYPE_CHECKING:
    from nexo.server.checkup import Finding

# ruff: noqa: PLC0415 - help need not import the storage


@click.command()
@click.argument("data_dir", required=False, type=click.Path(path_type=Path))
@click.option(
    "--data-dir", "named_dir", type=click.Path(path_type=Path), help="The same as DATA_DIR."
)
@config_option("The server's settings, to find its folders.", "settings_file")
@click.option("--repair", is_flag=True, help="Cut torn tails, rebuild indexes, remove leftovers.")
@click.option("--read-only", is_flag=True, help="Look even if a server runs; it may be mid-write.")
@click.pass_context
def command(
    ctx: click.Context,
    data_dir: Path | None,
    named_dir: Path | None,
    settings_file: Path | None,
    repair: bool,
    read_only: bool,
) -> None:
    """Read every log, journal and snapshot in DATA_DIR and list what is damaged.

    Exit code 1 if acknowledged data is. Nothing is changed without --repair, and nothing
    that is damaged is ever removed: readers get an error for it and continue after it.
    """
    if repair and read_only:
        raise click.UsageError("--repair changes files, --read-only does not: choose one")
    if data_dir and named_dir:
        raise click.UsageError("give the folder once: as DATA_DIR or with --data-dir")
    settings = config.load(settings_file, os.environ, {"data_dir": data_dir or named_dir})
    _check_there(settings)
    logging.getLogger("nexo").addHandler(logging.NullHandler())  # findings say it all
    with _lock(settings, read_only):
        found, mended, size = _examine(settings, repair)
    _show(settings.data_dir, found, mended, size)
    ctx.exit(1 if any(finding.serious for finding in found) else 0)


def _check_there(settings: config.Settings) -> None:
    """A wrong folder must not pass for a sound one."""
    if not settings.data_dir.is_dir():
        raise NotFound(f"there is no folder {settings.data_dir.absolute()}")
    if not holds_data(settings):
        folder = settings.data_dir.absolute()
        raise NotFound(f"{folder} holds no data of Nexo: name the server's data folder")


def _lock(settings: config.Settings, read_only: bool) -> AbstractContextManager[object]:
    """Keep servers away meanwhile."""
    if read_only:
        return nullcontext()
    try:
        return closing(FolderLock(settings, wait_s=0, touch=False))
    except FolderInUse as error:
        raise Conflict(f"{error.message}: stop it, or say --read-only") from None


def _examine(settings: config.Settings, repair: bool) -> tuple[list[Finding], list[Finding], int]:
    """Findings: damage, repairs, and how much was read."""
    from nexo.server.checkup import Checkup

    size = Checkup(settings).size_bytes
    with output.progress("checking", size) as bar:
        found = Checkup(settings, bar.advance).find()
    if not (repair and found):
        return found, [], size
    checkup = Checkup(settings)
    checkup.mend()
    left = checkup.find()
    return left, [finding for finding in found if finding not in left], size


def _show(folder: Path, found: list[Finding], mended: list[Finding], size: int) -> None:
    shown = [_row(folder, one, mended=False) for one in found]
    shown += [_row(folder, one, mended=True) for one in mended]
    if common().as_json:
        for row in shown:
            output.line(row)
        output.line({"checked_bytes": size, "findings": len(found), "mended": len(mended)})
        return
    output.rows(shown, ("path", "kind", "serious", "mended", "detail"))
    serious = sum(finding.serious for finding in found)
    verdict = f"{serious} places are damaged" if serious else "all data is sound"
    click.echo(f"{size_text(size)} read: {verdict}")


def _row(folder: Path, finding: Finding, *, mended: bool) -> dict[str, object]:
    path = finding.path
    inside = path.is_relative_to(folder.absolute())
    return {
        "path": str(path.relative_to(folder.absolute()) if inside else path),
        "kind": finding.kind,
        "serious": finding.serious,
        "mended": mended,
        "detail": finding.detail,
    }
