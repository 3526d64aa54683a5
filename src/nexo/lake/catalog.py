"""The lake's catalog: one Iceberg table per stream."""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from nexo.errors import ConfigError, Conflict, Corrupt, NexoError, NotFound, Unavailable
from nexo.lake.folder.relocation import WAREHOUSE, relocate
from nexo.lake.paths import location_of
from nexo.lake.settings import CATALOG, LakeSettings

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

# ruff: noqa: PLC0415 - PyIceberg takes half a second to import, and hashlib loads OpenSSL

STREAM, CREATED_MS, OFFSETS = "nexo.stream", "nexo.created-ms", "nexo.offsets"
KIND, COLUMNS = "nexo.kind", "nexo.columns"
"""Table properties: the stream, its offsets in the table (`nexo.lake.commit`), which records the
table holds (all, the newest per key, or those that typed columns rejected), the typed columns."""
RECORDS, NEWEST, DEAD_LETTERS = "records", "latest", "dead letters"
SUFFIXES = {NEWEST: "_latest", DEAD_LETTERS: "_dead_letters"}
"""How the names of derived tables end, by kind."""

_DRIVERS = ("pyiceberg", "pydantic", "sqlalchemy", "sqlite3", "requests", "urllib3", "botocore")
"""Modules whose errors mean that a catalog or a store failed, not our own code."""
_PLAIN = re.compile(r"[a-z][a-z0-9_]{0,120}")
_VIEWS = {"stream_messages", "stream_offsets", "stream_groups"}
"""Names that SQL has for other views."""
_OWN_RETRIES = {"commit.retry.num-retries": "0"}
_FORMAT = {
    "format-version": "2",
    "write.parquet.compression-codec": "zstd",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "write.delete.mode": "copy-on-write",
    "write.update.mode": "copy-on-write",
    "write.merge.mode": "copy-on-write",
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "2",
}


@dataclass(frozen=True, slots=True)
class StreamId:
    """A stream; ``created_ms`` distinguishes it from another one of the same name."""

    name: str
    created_ms: int


def table_name(stream: str, kind: str = RECORDS) -> str:
    """The name of a stream's table: the stream's own if SQL allows it, else readable and unique."""
    suffix = SUFFIXES.get(kind, "")
    if _PLAIN.fullmatch(stream) and stream not in _VIEWS:
        return stream + suffix
    digest = _digest(stream)
    readable = re.sub(r"[^a-z0-9]+", "_", stream.lower()).strip("_")[:80]
    return f"s_{readable}_{digest}{suffix}"


def table_names(stream: str, kind: str) -> Iterator[str]:
    """The name of a table, and its name if another stream has the first."""
    own = table_name(stream, kind)
    yield own
    digest = _digest(f"{stream}\n{SUFFIXES.get(kind, '')}")
    yield f"{own}_{digest}"


def _digest(text: str) -> str:
    from hashlib import blake2s

    return blake2s(text.encode(), digest_size=4).hexdigest()


def derived_view(stream: str, kind: str, taken: Container[str]) -> str:
    """The SQL view of a derived table; ``taken`` are the views of streams."""
    own, other = table_names(stream, kind)
    return other if own in taken else own


def belongs(properties: Mapping[str, str], stream: str, kind: str) -> bool:
    return properties.get(STREAM) == stream and properties.get(KIND, RECORDS) == kind


def is_of(properties: Mapping[str, str], stream: StreamId) -> bool:
    """Whether a table of the stream's name is this stream's, not an earlier one's."""
    return int(properties.get(CREATED_MS, stream.created_ms)) == stream.created_ms


def offsets_of(properties: Mapping[str, str], name: str = OFFSETS) -> dict[int, int]:
    """Per partition: the table holds everything below, or what another property says."""
    found: dict[str, int] = json.loads(properties.get(name, "{}"))
    return {int(partition): offset for partition, offset in found.items()}


def offsets_text(offsets: Mapping[int, int]) -> str:
    """The property's text; sorted, so that equal offsets are equal texts."""
    return json.dumps({str(key): offsets[key] for key in sorted(offsets)})


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

            return load_catalog(self.settings.catalog)

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

    def unchanged(self, tables: Mapping[str, Table]) -> set[str]:
        """Which of these tables are as they were read; one query, to a folder's catalog only.

        With another catalog no table counts as unchanged.
        """
        if not tables or self.settings.catalog or not self.settings.exists:
            return set()
        from nexo.lake.folder.catalog import FolderCatalog

        catalog = self.catalog
        if not isinstance(catalog, FolderCatalog):
            return set()
        with lake_errors(f"cannot read the catalog {self._label}"):
            found = catalog.locations(self.settings.namespace)
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

        from nexo.lake.schema import iceberg_schema

        schema = iceberg_schema(columns)
        name = self._free_name(stream.name, kind)
        properties = {
            STREAM: stream.name, CREATED_MS: str(stream.created_ms), OFFSETS: "{}", KIND: kind,
        }  # fmt: skip
        with lake_errors(f"cannot create the table of stream {stream.name!r}", settings=True):
            self.catalog.create_namespace_if_not_exists(self.settings.namespace)
            try:
                return self.catalog.create_table(
                    (self.settings.namespace, name),
                    schema,
                    location=folder,
                    partition_spec=_spec(schema, kind),
                    properties=properties | _FORMAT | _OWN_RETRIES,
                )
            except TableAlreadyExistsError:
                return self.get(stream.name, kind)

    def _free_name(self, stream: str, kind: str) -> str:
        """A name for a new table: the stream's own, unless another stream has it."""
        own, other = table_names(stream, kind)
        taken = self.at(own)
        if taken is None:
            return own
        if STREAM not in taken.properties:
            raise Conflict(
                f"table {'.'.join(taken.name())} is not Nexo's: rename it, or give the lake "
                f"another namespace, to keep stream {stream!r} there"
            )
        return other

    def tables(self) -> Iterator[Table]:
        """Every table that a stream has."""
        if not self.settings.exists:
            return
        with lake_errors("cannot list the lake's tables"):
            for identifier in self._listed():
                table = self.catalog.load_table(identifier)
                if STREAM in table.properties:
                    yield table

    def _listed(self) -> list[tuple[str, ...]]:
        from pyiceberg.exceptions import NoSuchNamespaceError

        try:
            return self.catalog.list_tables(self.settings.namespace)
        except NoSuchNamespaceError:
            return []


def _folder(stream: StreamId, kind: str) -> str:
    """A folder that no earlier stream of the same name has used."""
    return f"{table_name(stream.name, kind)}-{stream.created_ms}"


def _spec(schema: Schema, kind: str) -> PartitionSpec:
    """By day; newest records are not partitioned, because each step rewrites them."""
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.transforms import DayTransform

    if kind == NEWEST:
        return PartitionSpec()
    source = schema.find_field("timestamp").field_id
    return PartitionSpec(PartitionField(source, 1000, DayTransform(), "day"))


def newest_snapshot(table: Table) -> Snapshot | None:
    """A table's current snapshot, None before the first: PyIceberg looks for it from the oldest."""
    metadata = table.metadata
    number = metadata.current_snapshot_id
    found = (each for each in reversed(metadata.snapshots) if each.snapshot_id == number)
    return next(found, None)


@contextmanager
def lake_errors(what: str, *, settings: bool = False) -> Iterator[None]:
    """Raise errors of catalogs, object stores and data files as a `NexoError`: ``what`` failed.

    ``settings``: the user's settings are used, so a bad value is a `ConfigError`. Errors of our own
    code pass unchanged.
    """
    try:
        yield
    except (NexoError, ImportError):
        raise
    except Exception as error:  # catalogs raise whatever their drivers raise
        kind = _kind(error, settings)
        if kind is None:
            raise
        raise kind(f"{what}: {first_line(error)}") from error


def _kind(error: Exception, settings: bool) -> type[NexoError] | None:
    """What an error means to the user; None if our own code is wrong."""
    if type(error).__name__ == "NotInstalledError":
        return ConfigError
    home = type(error).__module__
    if home.startswith("pyarrow") and isinstance(error, ValueError):
        return Corrupt
    if settings and isinstance(error, ValueError | TypeError | KeyError):
        return ConfigError
    if isinstance(error, OSError) or home.startswith(_DRIVERS):
        return Unavailable
    return None


def first_line(error: BaseException) -> str:
    """An error's message without the pages that some drivers add."""
    return (str(error) or type(error).__name__).splitlines()[0]
