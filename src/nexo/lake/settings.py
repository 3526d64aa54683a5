"""Where the lake is."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nexo.errors import ConfigError

NAMESPACE = "nexo"
CATALOG = "catalog.db"
"""The catalog of a lake in a folder."""
SAY_IT = "say where it is with --lake or NEXO_LAKE_PATH"
_SQLITE = "sqlite:///"


@dataclass(frozen=True, slots=True)
class LakeSettings:
    """A catalog and its warehouse.

    Without ``catalog``, both are in ``folder``: a SQLite catalog and plain files. With it,
    they are what PyIceberg's own configuration (``~/.pyiceberg.yaml`` or
    ``PYICEBERG_CATALOG__…``) says about the catalog of that name.
    """

    folder: Path = Path("data/lake")
    catalog: str = ""
    namespace: str = NAMESPACE

    @property
    def exists(self) -> bool:
        """Whether there is a catalog; a named one is assumed to be."""
        return bool(self.catalog) or (self.folder / CATALOG).exists()

    def catalog_file(self) -> Path | None:
        """The catalog's SQLite file, to be backed up with the server's data; None for a service."""
        if not self.catalog:
            return self.folder / CATALOG
        try:
            from pyiceberg.utils.config import Config  # noqa: PLC0415 - not installed everywhere
        except ImportError:
            return None
        uri = str((Config().get_catalog_config(self.catalog) or {}).get("uri", ""))
        return Path(uri.removeprefix(_SQLITE)) if uri.startswith(_SQLITE) else None


def servers_lake(status: Mapping[str, Any]) -> LakeSettings:
    """The lake that a stream broker's status names; `ConfigError` if it is on another machine."""
    where = status.get("lake")
    if not where:
        raise ConfigError(f"the server does not say where its lake is: {SAY_IT}")
    if not where["catalog"] and where["host"] != this_host():
        raise ConfigError(
            f"the lake is in {where['folder']} on {where['host']}, and this is {this_host()}: "
            f"run the command there, or {SAY_IT} here"
        )
    return LakeSettings(Path(where["folder"]), where["catalog"])


def this_host() -> str:
    """The machine's name, as the server's status and pipelines' progress have it."""
    return platform.node() or "localhost"
