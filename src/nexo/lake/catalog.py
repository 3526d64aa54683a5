"""The lake's catalog: one Iceberg table per stream."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from nexo.errors import Conflict, NexoError, NotFound
from nexo.lake.failures import lake_errors
from nexo.lake.folder.relocation import WAREHOUSE, relocate
from nexo.lake.paths import location_of
from nexo.lake.settings import CATALOG, LakeSettings
from nexo.lake.tables import (
    CREATED_MS,
    KIND,
    NEWEST,
    OFFSETS,
    RECORDS,
    STREAM,
    USER,
    NewTable,
    StreamId,
    belongs,
    is_of,
    table_name,
    table_names,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table

# ruff: noqa: PLC0415 - PyIceberg takes half a second to import

NEW_TABLE = {
    "format-version": "2",
    "write.parquet.compression-codec": "zstd",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "write.delete.mode": "copy-on-write",
    "write.update.mode": "copy-on-write",
    "write.merge.mode": "copy-on-write",
    "commit.retry.num-retries": "20",
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "2",
}
"""Properties of each table of Nexo."""
FEW_TABLES = 200
KEPT_OF_MANY = {"history.expire.min-snapshots-to-keep": "20"}
"""Further ones, of tables beyond so many of a lake: a pipeline has all snapshots in memory."""


class Lake:
    """The tables behind the streams. Opens its catalog on first use.

    Looking creates nothing; a lake that is not there has no tables.
    """

    def __init__(self, settings: LakeSettings) -> None:
        self.settings = settings

    @cached_property
    def catalog(self) -> Catalog:
        """PyIceberg's catalog; the one of a folder is created if missing."""
        with lake_errors(f"cannot open the catalog {self._label}", settings=True):
            if not self.settings.catalog:
                return self._local()
            from pyiceberg.catalog import load_catalog

            from nexo.lake.folder.catalog import close_with

            catalog = load_catalog(self.settings.catalog)
            close_with(catalog)
            return catalog

    @property
    def _label(self) -> str:
        return self.settings.catalog or str(self.settings.folder / CATALOG)

    def _local(self) -> Catalog:
        from nexo.lake.folder.catalog import FolderCatalog

        folder = self.settings.folder.absolute()
        folder.mkdir(mode=0o750, parents=True, exist_ok=True)  # its files are readable by all
        (folder / WAREHOUSE).mkdir(exist_ok=True)
        relocate(folder)
        return FolderCatalog(
            "nexo",
            uri=f"sqlite:///{folder / CATALOG}",
            warehouse=location_of(folder / WAREHOUSE),
        )

    # -- tables ----------------------------------------------------------------------

    def find(self, stream: str, kind: str = RECORDS) -> Table | None:
        """A stream's table as it is now, None if there is none yet.

        A stream ``orders_latest`` and the newest records of a stream ``orders`` want the same name:
        the second one gets a hash in its name.
        """
        for name in table_names(stream, kind):
            table = self.at(name)
            if table is not None and belongs(table.properties, stream, kind):
                return table
        return None

    def at(self, name: str) -> Table | None:
        """The table of that name, which may be any stream's or another program's."""
        if not self.settings.exists:
            return None
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        with lake_errors(f"cannot read table {self.settings.namespace}.{name}"):
            try:
                return self.catalog.load_table((self.settings.namespace, name))
            except (NoSuchTableError, NoSuchNamespaceError):
                return None

    def get(self, stream: str, kind: str = RECORDS) -> Table:
        """A stream's table; `NotFound` if there is none."""
        found = self.find(stream, kind)
        if found is None:
            raise NotFound(f"stream {stream!r} has no table in the lake: run the pipeline first")
        return found

    def known(self, stream: StreamId, kind: str = RECORDS) -> Table | None:
        """The table of this stream; None if there is none, or only an earlier stream's."""
        found = self.find(stream.name, kind)
        return found if found is not None and is_of(found.properties, stream) else None

    def ensure(self, stream: StreamId, columns: pa.Schema, kind: str = RECORDS) -> Table:
        """A stream's table, created if missing.

        The table of an earlier stream of the same name is kept under another name, in its folder.
        """
        found, folder = self.find(stream.name, kind), None
        if found is not None:
            if is_of(found.properties, stream):
                return found
            self._set_aside(found)
            folder = f"{found.location().rpartition('/')[0]}/{_folder(stream, kind)}"
        return self._create(stream, columns, kind, folder)

    def ensure_all(
        self, streams: Sequence[StreamId], columns: pa.Schema, kind: str = RECORDS
    ) -> dict[str, Table | Exception]:
        """`ensure` of several, or why it failed; new tables of a folder are made together."""
        absent = self.absent(streams, kind)
        wanted = self._new([each for each in streams if each.name in absent], columns, kind)
        made: dict[str, Table | Exception] = {}
        if len(wanted) > 1:
            made |= self._create_together(wanted)
        for stream in streams:
            if stream.name not in made:
                try:
                    made[stream.name] = self.ensure(stream, columns, kind)
                except Exception as error:  # of this table alone
                    made[stream.name] = error
        return made

    def absent(self, streams: Iterable[StreamId], kind: str = RECORDS) -> set[str]:
        """Which streams have no table, as far as one query to a folder's catalog says."""
        if self.settings.catalog:
            return set()
        there = self._locations().keys() if self.settings.exists else set[str]()
        return {each.name for each in streams if there.isdisjoint(table_names(each.name, kind))}

    def _locations(self, names: Collection[str] | None = None) -> dict[str, str]:
        """Where the metadata of tables is; nothing with a catalog that is not a folder's."""
        from nexo.lake.folder.catalog import FolderCatalog

        catalog = self.catalog
        if not isinstance(catalog, FolderCatalog):
            return {}
        with lake_errors(f"cannot read the catalog {self._label}"):
            return catalog.locations(self.settings.namespace, names)

    def _create_together(self, wanted: Sequence[NewTable]) -> dict[str, Table]:
        """New tables in one transaction; those that others have just made are missing."""
        from nexo.lake.folder.catalog import FolderCatalog

        catalog = self.catalog
        if not isinstance(catalog, FolderCatalog):
            return {}
        with lake_errors(f"cannot create {len(wanted)} tables", settings=True):
            catalog.create_namespace_if_not_exists(self.settings.namespace)
            made = catalog.make_tables(self.settings.namespace, wanted)
        return {each.properties[STREAM]: each for each in made}

    def keep(self, count: int) -> None:
        """Keep in memory what commits to so many tables need again."""
        from nexo.lake.folder.catalog import FolderCatalog
        from nexo.lake.manifests import keep_lists

        keep_lists(count)
        if isinstance(self.catalog, FolderCatalog):
            self.catalog.keep(count)

    def unchanged(self, tables: Mapping[str, Table]) -> set[str]:
        """Which of these tables are as they were read; one query, to a folder's catalog only.

        With another catalog no table counts as unchanged.
        """
        if not tables or self.settings.catalog or not self.settings.exists:
            return set()
        found = self._locations({table.name()[-1] for table in tables.values()})
        return {
            label
            for label, table in tables.items()
            if found.get(table.name()[-1]) == table.metadata_location
        }

    def _set_aside(self, table: Table) -> None:
        old = table.name()
        new = (*old[:-1], f"{old[-1]}_until_{table.properties[CREATED_MS]}")
        with lake_errors(f"cannot rename table {'.'.join(old)}"):
            self.catalog.rename_table(old, new)

    def _create(self, stream: StreamId, columns: pa.Schema, kind: str, folder: str | None) -> Table:
        from pyiceberg.exceptions import TableAlreadyExistsError

        name = self._free_name(stream.name, kind)
        (new,) = self._new([stream], columns, kind)
        with lake_errors(f"cannot create the table of stream {stream.name!r}", settings=True):
            self.catalog.create_namespace_if_not_exists(self.settings.namespace)
            try:
                return self.catalog.create_table(
                    (self.settings.namespace, name),
                    new.schema,
                    location=folder,
                    partition_spec=new.spec,
                    properties=new.properties,
                )
            except TableAlreadyExistsError:
                return self.get(stream.name, kind)

    def _new(self, streams: Iterable[StreamId], columns: pa.Schema, kind: str) -> list[NewTable]:
        from nexo.lake.schema import iceberg_schema

        schema = iceberg_schema(columns)
        spec, there = _spec(schema, kind), len(self._locations())
        return [
            NewTable(table_name(each.name, kind), schema, spec, _properties(each, kind, number))
            for number, each in enumerate(streams, there + 1)
        ]

    def _free_name(self, stream: str, kind: str) -> str:
        """A name for a new table: the stream's own, unless another stream has it."""
        own, other = table_names(stream, kind)
        taken = self.at(own)
        if taken is None:
            return own
        if STREAM not in taken.properties and USER not in taken.properties:
            raise Conflict(
                f"table {'.'.join(taken.name())} is not Nexo's: rename it, or give the lake "
                f"another namespace, to keep stream {stream!r} there"
            )
        return other

    def tables(self) -> Iterator[Table]:
        """Every table that a stream has."""
        yield from (table for table in self.every() if STREAM in table.properties)

    def kept(self) -> Iterator[Table]:
        """Every table that is Nexo's to maintain: those of streams, and of users' code."""
        yield from (each for each in self.every() if not {STREAM, USER}.isdisjoint(each.properties))

    def every(self) -> Iterator[Table]:
        """Every table of the lake, whoever made it; raises after them why others cannot be read."""
        failed = None
        for name in self._listed() if self.settings.exists else ():
            try:
                table = self.at(name)
            except NexoError as error:
                failed = error
                continue
            if table is not None:  # it may have been dropped since
                yield table
        if failed is not None:
            raise failed

    def _listed(self) -> list[str]:
        from pyiceberg.exceptions import NoSuchNamespaceError

        with lake_errors("cannot list the lake's tables"):
            try:
                found = self.catalog.list_tables(self.settings.namespace)
            except NoSuchNamespaceError:
                return []
            return [name for *_, name in found]


def _folder(stream: StreamId, kind: str) -> str:
    """A folder that no earlier stream of the same name has used."""
    return f"{table_name(stream.name, kind)}-{stream.created_ms}"


def _properties(stream: StreamId, kind: str, number: int) -> dict[str, str]:
    """The properties of a new table, which is the lake's so-manieth."""
    created_ms = str(stream.created_ms)
    own = {STREAM: stream.name, CREATED_MS: created_ms, OFFSETS: "{}", KIND: kind}
    return own | NEW_TABLE | (KEPT_OF_MANY if number > FEW_TABLES else {})


def _spec(schema: Schema, kind: str) -> PartitionSpec:
    """By day; newest records are not partitioned, because each step rewrites them."""
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.transforms import DayTransform

    if kind == NEWEST:
        return PartitionSpec()
    source = schema.find_field("timestamp").field_id
    return PartitionSpec(PartitionField(source, 1000, DayTransform(), "day"))
