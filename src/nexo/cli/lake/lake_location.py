"""Finds the lake that a command works on: from options, or from the server."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nexo.cli.options import F, check_reachable, common, config_option
from nexo.client.address import Address, parse_url
from nexo.errors import ConfigError, ConnectionLost, NexoError, NotFound
from nexo.lake.settings import SAY_IT, LakeSettings, servers_lake

if TYPE_CHECKING:
    from nexo.lake.catalog import Lake

# ruff: noqa: PLC0415 - Spark and Arrow are slow to import, and optional

_SAID_BY = ("NEXO_LAKE_PATH", "NEXO_LAKE_CATALOG", "NEXO_DATA_DIR")


def lake_options(function: F) -> F:
    """``--config``, ``--lake`` and ``--catalog``: where the lake is."""
    for option in (
        click.option("--catalog", metavar="NAME", help="A catalog of PyIceberg's configuration."),
        click.option(
            "--lake", "folder", type=click.Path(path_type=Path),
            help="Its folder. Default: the one that the server says.",
        ),
        config_option("The server's settings, to find its lake."),
    ):  # fmt: skip
        function = option(function)
    return function


def open_lake(
    file: Path | None, folder: Path | None, catalog: str | None, *, make: bool = False
) -> Lake:
    """The lake that the options name, or else the server's.

    Nothing is created yet; unless a command may ``make`` a lake, a named one must exist.
    """
    from nexo.lake.catalog import Lake

    if any((file, folder, catalog, *map(os.environ.get, _SAID_BY))):
        where = _settings(file, {"lake_path": folder, "lake_catalog": catalog})
        if not make and not where.exists:
            raise NotFound(f"there is no lake in {where.folder}: 'nexo pipeline run' makes one")
    else:
        where = _servers()
    return Lake(where)


def _settings(file: Path | None, flags: dict[str, object]) -> LakeSettings:
    from nexo import config  # the server is asked more often

    settings = config.load(file, os.environ, flags)
    return LakeSettings(settings.lake_folder, settings.lake_catalog)


def _servers() -> LakeSettings:
    """The server's lake; if the server does not answer, a lake at the default place."""
    try:
        return _asked()
    except NexoError as error:
        here = _settings(None, {})
        if here.exists:
            return here
        if isinstance(error, ConfigError | ConnectionLost):
            raise
        raise ConfigError(
            f"the server does not say where its lake is: {error}; {SAY_IT}"
        ) from error


def _asked() -> LakeSettings:
    from nexo.hot_log import HotLog  # a whole client takes longer to import

    check_reachable(common().url)
    with HotLog(server_address()) as broker:
        return servers_lake(broker.status())


def server_address() -> Address:
    """The address of the server that the command uses."""
    given = common()
    return parse_url(given.url, **given.client_options())
