"""Tables that take the names of others, all in one transaction of the catalog.

So a table that was made anew takes the place of the old one, with those beside it, between two
moments of its readers; whatever dies, there are the old ones or the new ones. A catalog that
is no database renames them one by one instead.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nexo.errors import Conflict, Unavailable
from nexo.lake.catalog import Lake
from nexo.lake.failures import lake_errors
from nexo.lake.maintenance.sweep import stored_files
from nexo.lake.paths import delete_files, sync_local, write_file
from nexo.lake.tables import USER, table_name
from nexo.lake.user_tables import find_user_table

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.table import Table
    from sqlalchemy import Connection

# ruff: noqa: PLC0415 - PyIceberg takes half a second to import

KEPT_UNTIL = "nexo.kept-until-ms"
"""A property of a table that nothing needs any more: when it may be dropped."""
MADE_FOR = "nexo.made-for"
"""A property of a table that is being made anew: whose place it is to take."""
CHECKPOINT = "nexo.checkpoint"
"""A property of a table: the folder of its flows' checkpoints, if it is not its own name's."""
CHECKPOINTS = "flows"
"""Where these folders are, below the lake's."""
_ATTEMPTS = 20


@dataclass(frozen=True, slots=True)
class Renaming:
    """A table that gets another name, by what its users call it, and other properties."""

    old: str
    new: str
    properties: Mapping[str, str]
    removed: Sequence[str] = ()


def rename_together(lake: Lake, renamings: Sequence[Renaming]) -> None:
    """Rename tables in this order, all or none; tables that are not there are left out."""
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = lake.catalog
    with lake_errors("cannot rename tables"):
        if not isinstance(catalog, SqlCatalog):
            _one_by_one(lake, renamings)
            return
        for _ in range(_ATTEMPTS):
            if _attempted(catalog, list(_moves(lake, renamings))):
                return
    raise Unavailable(f"the tables changed {_ATTEMPTS} times while they were renamed: try again")


@dataclass(frozen=True, slots=True)
class _Move:
    """A table, its next metadata, and its next name in the catalog."""

    table: Table
    location: str
    name: str


def _moves(lake: Lake, renamings: Sequence[Renaming]) -> Iterator[_Move]:
    """Write the next metadata of each table, which nothing names yet."""
    from nexo.lake.folder.catalog import applied, encoded, snapshot_texts
    from nexo.lake.folder.relocation import next_metadata

    for each in renamings:
        table = find_user_table(lake, each.old)
        if table is None:
            continue
        made = applied(table.metadata, _updates(table, each), table.metadata_location)
        location = next_metadata(table.metadata_location)
        write_file(table.io, location, encoded(made, snapshot_texts(made, {})))
        sync_local([location])
        yield _Move(table, location, table_name(each.new))


def _updates(table: Table, renaming: Renaming) -> tuple[object, ...]:
    from pyiceberg.table.update import RemovePropertiesUpdate, SetPropertiesUpdate

    given = {USER: renaming.new, **renaming.properties}
    removed = [each for each in renaming.removed if each in table.properties]
    updates: list[object] = [SetPropertiesUpdate(updates=given)]
    return (*updates, RemovePropertiesUpdate(removals=removed)) if removed else tuple(updates)


def _attempted(catalog: SqlCatalog, moves: Sequence[_Move]) -> bool:
    """Rename in one transaction; False if one of the tables has changed meanwhile."""
    from sqlalchemy.exc import IntegrityError

    try:
        with catalog.engine.begin() as connection:
            for move in moves:
                if not _moved(catalog.name, connection, move):
                    raise _ChangedMeanwhile
    except _ChangedMeanwhile:
        for move in moves:
            delete_files(move.table.io, [move.location])
        return False
    except IntegrityError as error:
        raise Conflict(f"a table has that name already: {error.orig}") from None
    return True


class _ChangedMeanwhile(Exception):
    pass


def _moved(catalog: str, connection: Connection, move: _Move) -> bool:
    from pyiceberg.catalog.sql import IcebergTables as Tables
    from sqlalchemy import update

    *spaces, name = move.table.name()
    asked = update(Tables).where(
        Tables.catalog_name == catalog,
        Tables.table_namespace == ".".join(spaces),
        Tables.table_name == name,
        Tables.metadata_location == move.table.metadata_location,
    )
    changed = asked.values(
        table_name=move.name,
        metadata_location=move.location,
        previous_metadata_location=move.table.metadata_location,
    )
    return bool(connection.execute(changed).rowcount)


def _one_by_one(lake: Lake, renamings: Sequence[Renaming]) -> None:
    for each in renamings:
        table = find_user_table(lake, each.old)
        if table is None:
            continue
        new = (*table.name()[:-1], table_name(each.new))
        moved = lake.catalog.rename_table(table.name(), new)
        with moved.transaction() as change:
            change.set_properties({USER: each.new, **each.properties})
            if removed := [name for name in each.removed if name in moved.properties]:
                change.remove_properties(*removed)


# -- tables that nothing needs any more --------------------------------------------------


def drop_expired(lake: Lake, now_ms: int) -> list[str]:
    """Drop the tables whose time is over, files included; returns what they were called."""
    every = list(lake.every())
    due = [each for each in every if now_ms >= int(each.properties.get(KEPT_UNTIL, now_ms + 1))]
    return [drop(lake, each, every) for each in due]


def checkpoints_of(lake: Lake, table: Table) -> Path:
    """Where Spark keeps how far the flows of a table are."""
    place = table.properties.get(CHECKPOINT) or table_name(table.properties[USER])
    return lake.settings.folder.absolute() / CHECKPOINTS / place


def drop(lake: Lake, table: Table, every: Sequence[Table]) -> str:
    """Drop a table of users with its checkpoints, and its files unless another has its folder."""
    name, location = table.properties.get(USER, ".".join(table.name())), table.location()
    shared = [
        each
        for each in every
        if each.metadata.table_uuid != table.metadata.table_uuid
        and f"{each.location()}/".startswith(f"{location}/")
    ]
    shutil.rmtree(checkpoints_of(lake, table), ignore_errors=True)
    with lake_errors(f"cannot drop table {name!r}"):
        if not shared:
            delete_files(table.io, list(stored_files(table)))
        lake.catalog.drop_table(table.name())
    return name
