"""Where the server's lake is, as the server tells it."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nexo.errors import ConfigError
from nexo.lake.settings import LakeSettings

SAY_IT = "say where it is with --lake or NEXO_LAKE_PATH"


def told_lake(status: Mapping[str, Any]) -> LakeSettings:
    """The lake that a stream broker's status names; `ConfigError` if it is on another machine."""
    told = status.get("lake")
    if not told:
        raise ConfigError(f"the server does not tell where its lake is: {SAY_IT}")
    if not told["catalog"] and told["host"] != this_host():
        raise ConfigError(
            f"the lake is in {told['folder']} on {told['host']}, and this is {this_host()}: "
            f"run the command there, or {SAY_IT} here"
        )
    return LakeSettings(Path(told["folder"]), told["catalog"])


def reachable_lake(status: Mapping[str, Any]) -> LakeSettings | None:
    """The same, or None if it cannot be read from here: then the broker reads it for us."""
    try:
        return told_lake(status)
    except ConfigError:
        return None


def this_host() -> str:
    """The machine's name, as servers and pipelines tell it too."""
    return platform.node() or "localhost"
