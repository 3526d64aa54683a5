"""The format of a data folder, so that an older server refuses a newer one.

The file ``nexo.format`` in the data folder is ``{"format": 2, "nexo": "0.2.0"}``. It is written
before the first broker opens its files. Version 0.1.0 wrote none: that is format 1.
"""

from __future__ import annotations

import msgspec

from nexo.config import Settings
from nexo.errors import ConfigError
from nexo.storage import sealed
from nexo.storage.disk.files import OsFiles
from nexo.version import __version__

FILE = "nexo.format"
FORMAT = 2
"""Increases whenever older servers cannot read, or would misread, what this one writes."""


class Stamp(msgspec.Struct, frozen=True):
    """The contents of the file; fields unknown here are ignored."""

    format: int
    nexo: str = "an unknown version"


def settle(settings: Settings) -> None:
    """Mark the data folder as ours; `ConfigError` if a newer version has written it."""
    file = settings.data_dir.absolute() / FILE
    try:
        found = msgspec.json.decode(file.read_bytes(), type=Stamp)
    except (OSError, msgspec.MsgspecError):
        found = Stamp(0)  # every file has a version of its own: nothing is read wrongly
    if found.format > FORMAT:
        raise ConfigError(
            f"data_dir = {settings.data_dir} was written by Nexo {found.nexo}, and this is "
            f"{__version__}, which cannot read it: start the newer version, or restore a backup"
        )
    if found.format < FORMAT:
        sealed.write(OsFiles(), file, msgspec.json.encode(Stamp(FORMAT, __version__)))
