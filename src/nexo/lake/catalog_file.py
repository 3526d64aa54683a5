"""Where a lake's catalog is a file, which then goes along with the server's data."""

from __future__ import annotations

from pathlib import Path

from nexo.lake.settings import CATALOG, LakeSettings

_SQLITE = "sqlite:///"


def catalog_file(settings: LakeSettings) -> Path | None:
    """The SQLite file of the catalog; None if a service keeps it."""
    if not settings.catalog:
        return settings.folder / CATALOG
    try:
        from pyiceberg.utils.config import Config  # noqa: PLC0415 - not installed everywhere
    except ImportError:
        return None
    uri = str((Config().get_catalog_config(settings.catalog) or {}).get("uri", ""))
    return Path(uri.removeprefix(_SQLITE)) if uri.startswith(_SQLITE) else None
