"""The catalog of a lake in a folder: PyIceberg's SQLite catalog with a shorter, safer commit.

PyIceberg loads and copies a table's metadata again for each commit, and points the catalog at a
metadata file that a power cut may still take away. Here the caller's table is taken as it is, the
metadata is synced before the catalog names it, and one SQL statement decides: the update counts
only if the catalog still names the metadata that the caller's table was read from.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.serializers import ToOutputFile
from pyiceberg.table import CommitTableResponse
from pyiceberg.table.update import update_table_metadata
from sqlalchemy import update
from sqlalchemy.orm import Session

from nexo.lake.paths import sync_local

if TYPE_CHECKING:
    from pyiceberg.table import Table


class FolderCatalog(SqlCatalog):
    """A SQLite catalog and plain files."""

    def commit_table(
        self, table: Table, requirements: tuple[Any, ...], updates: tuple[Any, ...]
    ) -> CommitTableResponse:
        """Apply updates to the table that the caller knows; `CommitFailedException` if it moved."""
        if not table.metadata_location:  # a table that is being created
            return super().commit_table(table, requirements, updates)
        for requirement in requirements:
            requirement.validate(table.metadata)
        known = table.metadata_location
        made = update_table_metadata(table.metadata, updates, metadata_location=known)
        location = _next(known)
        ToOutputFile.table_metadata(made, table.io.new_output(location))
        sync_local([location])
        self._point(table.name(), known, location)
        return CommitTableResponse.model_validate({"metadata": made, "metadata-location": location})

    def _point(self, name: tuple[str, ...], known: str, location: str) -> None:
        rows = IcebergTables
        moved = (
            update(rows)
            .where(
                rows.catalog_name == self.name,
                rows.table_namespace == Catalog.namespace_to_string(name[:-1]),
                rows.table_name == name[-1],
                rows.metadata_location == known,
            )
            .values(metadata_location=location, previous_metadata_location=known)
        )
        with Session(self.engine) as session:
            changed = session.connection().execute(moved).rowcount
            session.commit()
        if changed < 1:
            raise CommitFailedException(f"another commit to {'.'.join(name)} was first")


def _next(known: str) -> str:
    """A path for the metadata that follows ``known``."""
    folder, _, name = known.rpartition("/")
    number = name.partition("-")[0]
    version = int(number) + 1 if number.isdigit() else 0
    return f"{folder}/{version:05}-{uuid.uuid4()}.metadata.json"
