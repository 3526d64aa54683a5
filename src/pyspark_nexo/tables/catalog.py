"""Streams and lake tables in Spark's own catalog, without a jar: ``select … from nexo.orders``.

Each name is registered when it is first used: its data source is generated, and a table of Spark's
session catalog, in its database ``nexo``, names that source. A name may be any text, in backticks.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from nexo.errors import InvalidInput, NotFound
from nexo.hot_log import HotLog
from nexo.lake.catalog import Lake
from nexo.lake.changes.terms import CHANGES_SUFFIX
from nexo.lake.reading.growing import rows_version
from nexo.lake.tables import DEAD_LETTERS, NEWEST, SUFFIXES, TERMS, StreamId
from nexo.lake.typed.columns import parser_of
from nexo.lake.typed.formats import format_text
from nexo.lake.user_tables import find_user_table
from pyspark_nexo.tables.envelopes import EnvelopeNames
from pyspark_nexo.tables.sources import PROVIDER, lake_table, stream_table

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import SparkSession

DATABASE = "nexo"
RAW = "__raw"
"""How the name of a stream ends without its typed columns."""
_HOME = ("spark_catalog", DATABASE)
_PARTS = re.compile(r"`((?:[^`]|``)*)`|([^`.]+)")
_MOST = 200
"""Names that one query may mention."""
_T = TypeVar("_T")


class ExtraNames(Protocol):
    """Further names, such as those of change events: a data source, None for an unknown name."""

    def __call__(self, name: str) -> type[Any] | None: ...


def parts_of(name: str) -> list[str]:
    """The parts of a name in SQL: ``nexo.`a-b.c``` has two."""
    return [
        quoted.replace("``", "`") if quoted else plain for quoted, plain in _PARTS.findall(name)
    ]


def lake_name(name: str) -> str:
    """What the lake calls a table that SQL calls by that name."""
    parts = parts_of(name)
    while len(parts) > 1 and parts[0] in _HOME:
        parts = parts[1:]
    return ".".join(parts)


def quoted(*parts: str) -> str:
    """A name for SQL."""
    return ".".join("`" + part.replace("`", "``") + "`" for part in parts)


@dataclass(slots=True)
class SparkCatalog:
    """Names of one session; ``extra`` are looked up before streams and tables."""

    spark: SparkSession
    lake: Lake
    url: str | None = None
    extra: Sequence[ExtraNames] = ()
    max_records: int = 1_000_000
    """Of a stream, in one batch of a streaming query."""
    between: tuple[str, str] = ("", "")
    """The times from and until which records of streams count; empty for no limit."""
    _known: dict[tuple[str, str], str] = field(default_factory=dict)
    """What each name was registered for: its source's description."""

    def __post_init__(self) -> None:
        self.extra = (*self.extra, EnvelopeNames(self.lake, self.url, self.max_records))

    def open(self) -> None:
        """Make the database, and look names up there first."""
        self.spark.sql(f"create database if not exists {DATABASE}")
        self.spark.sql(f"use {DATABASE}")
        self._known.clear()
        found: Any = self._external.listDatabases()
        for database in [str(found.apply(number)) for number in range(found.size())]:
            self._clear(database)

    @property
    def _external(self) -> Any:
        """Where Spark keeps the names of all sessions of a JVM."""
        session: Any = self.spark._jsparkSession
        return session.sessionState().catalog().externalCatalog()

    def _clear(self, database: str) -> None:
        """Drop what an earlier session named."""
        found = self._external.listTables(database)
        for name in [str(found.apply(number)) for number in range(found.size())]:
            provider = self._external.getTable(database, name).provider()
            if provider.isDefined() and str(provider.get()).startswith(PROVIDER):
                self._external.dropTable(database, name, True, True)

    def resolved(self, ask: Callable[[], _T], missing: Callable[[str], bool] | None = None) -> _T:
        """What ``ask`` returns, once the names that Spark does not find are registered.

        ``missing`` may provide a name itself. Raises `NotFound` for a name that nobody has.
        """
        from pyspark.errors import AnalysisException  # noqa: PLC0415 - slow to import

        seen = set[str]()
        while True:
            try:
                with _quiet():
                    return ask()
            except AnalysisException as error:
                name = self._unknown(error, ask)
                if name is None or name in seen or len(seen) >= _MOST:
                    raise
                seen.add(name)
                if not (missing is not None and missing(lake_name(name))) and not self.add(name):
                    raise NotFound(
                        f"no stream and no table is called {lake_name(name)!r}"
                    ) from None

    def _unknown(self, error: Any, ask: Callable[[], Any]) -> str | None:
        """The name that Spark did not find; ``nexo.x`` it takes for a file, unless told not to."""
        from pyspark.errors import AnalysisException  # noqa: PLC0415 - slow to import

        found = error.getMessageParameters() or {}
        if error.getCondition() == "TABLE_OR_VIEW_NOT_FOUND":
            return str(found["relationName"])
        if found.get("dataSourceType") != DATABASE:
            return None
        self.spark.conf.set("spark.sql.runSQLOnFiles", "false")
        try:
            with _quiet():
                ask()
        except AnalysisException as other:
            same = other.getCondition() == "TABLE_OR_VIEW_NOT_FOUND"
            return str((other.getMessageParameters() or {})["relationName"]) if same else None
        finally:
            self.spark.conf.unset("spark.sql.runSQLOnFiles")
        return None

    # -- names -------------------------------------------------------------------------

    def add(self, name: str) -> bool:
        """Register a name as SQL spells it; returns whether there is such a stream or table."""
        wanted = lake_name(name)
        source = self.source(wanted)
        if source is None:
            return False
        self.register(name, source)
        return True

    def register(self, name: str, source: type[Any]) -> None:
        """Have a name mean this data source from now on."""
        parts = parts_of(name)
        while len(parts) > 1 and parts[0] in _HOME:
            parts = parts[1:]
        *spaces, label = parts
        if len(spaces) > 1:
            raise InvalidInput(f"{name} has too many parts: write `{'.'.join(parts)}`")
        database = spaces[0] if spaces else DATABASE
        self.spark.dataSource.register(source)
        self._place(database.lower(), label.lower(), source.name())

    def _place(self, database: str, label: str, provider: str) -> None:
        """Name a source in the session catalog, whose own checks allow no hyphens and dots."""
        if (database, label) in self._known:
            self._external.dropTable(database, label, True, True)
        plain = f"placing_{provider}"
        self.spark.sql(f"create database if not exists {quoted(database)}")
        self.spark.sql(f"drop table if exists {quoted(database, plain)}")
        self.spark.sql(f"create table {quoted(database, plain)} using {provider}")
        self._external.renameTable(database, plain, label)
        self._known[database, label] = provider

    def source(self, name: str) -> type[Any] | None:
        """The data source of a name; None if nothing has it."""
        for each in self.extra:
            if (found := each(name)) is not None:
                return found
        if (options := self._stream(name)) is not None:
            return stream_table(name, options)
        table = find_user_table(self.lake, name) or self._derived(name)
        return None if table is None else lake_table(name, self.lake.settings, table)

    def is_stream(self, name: str) -> bool:
        """Whether a stream has that name, in any case."""
        with HotLog(self.url) as broker:
            return name.lower() in {each.lower() for each in broker.names()}

    def _stream(self, name: str) -> Mapping[str, str] | None:
        """The options that read a stream, typed if it has a contract."""
        with HotLog(self.url) as broker:
            names = {each.lower(): each for each in broker.names()}
            stream, raw = names.get(name.lower()), False
            if stream is None and name.lower().endswith(RAW):
                stream, raw = names.get(name[: -len(RAW)].lower()), True
            if stream is None:
                return None
            info = broker.describe(stream)
        options = {"stream": stream, "maxOffsetsPerTrigger": str(self.max_records)}
        if self.url:
            options["url"] = self.url
        limits = zip(("startingTimestamp", "endingTimestamp"), self.between, strict=True)
        options |= {name: text for name, text in limits if text}
        table = self.lake.known(StreamId(stream, info.created_ms))
        terms = None if table is None or raw else parser_of(table)
        if terms is None or not terms.columns:
            return options
        typed = {terms.names[each.field_id]: [each.source, each.kind] for each in terms.columns}
        return options | {
            "typed": json.dumps(typed),
            "permissive": str(terms.permissive).lower(),
            "valueFormat": format_text(terms.format),
        }

    def state(self, names: Sequence[str]) -> dict[str, str] | None:
        """What tells that streams and tables have changed; None if it cannot be told for all."""
        found = {}
        with HotLog(self.url) as broker:
            streams = {each.lower(): each for each in broker.names()}
            for name in names:
                stream = streams.get(name.lower().removesuffix(RAW))
                if stream is not None:
                    info = broker.describe(stream)
                    ends = [part.stable_offset for part in info.partitions]
                    found[name] = f"{info.created_ms} {ends}"
                    continue
                table = find_user_table(self.lake, name) or self._derived(name)
                if table is None:
                    return None
                found[name] = " ".join(self._said(each) for each in self._parts(name, table))
        return found

    def _parts(self, name: str, table: Table) -> list[Table]:
        """A table, and the changes that wait for it."""
        changes = name + CHANGES_SUFFIX
        beside = find_user_table(self.lake, changes) if TERMS in table.properties else None
        return [table] if beside is None else [table, beside]

    @staticmethod
    def _said(table: Table) -> str:
        return f"{table.metadata.table_uuid} {rows_version(table)}"

    def _derived(self, name: str) -> Table | None:
        """A stream's newest records, or its dead letters."""
        for kind in (NEWEST, DEAD_LETTERS):
            stream = name.removesuffix(SUFFIXES[kind])
            if stream != name and (found := self.lake.find(stream, kind)) is not None:
                return found
        return None


@contextmanager
def _quiet() -> Iterator[None]:
    """Spark logs, with its stack, what it raises anyway."""
    log = logging.getLogger("SQLQueryContextLogger")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before
