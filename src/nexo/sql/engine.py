"""DuckDB over streams: a query gets the views that it names, which `nexo.sql.views` describes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from nexo.client.address import Address
from nexo.errors import ConfigError, Conflict, InvalidInput, NotFound
from nexo.hot_log import HotLog
from nexo.lake.catalog import Lake
from nexo.lake.own_columns import ROWS
from nexo.lake.reading.stored import StoredTable, find, find_made
from nexo.lake.settings import LakeSettings, servers_lake
from nexo.lake.tables import NEWEST, SUFFIXES, USER, StreamId, derived_view, table_name
from nexo.sql import dialect
from nexo.sql.dialect import Parsed, literal, quoted_name
from nexo.sql.lake_files import LakeFiles, nothing
from nexo.sql.result import Result
from nexo.sql.streams import SeenStream, copy_table, look, look_at, make_hot_table
from nexo.sql.topics import asked_topics
from nexo.sql.views import (
    COLUMNS,
    GROUPS,
    MESSAGE,
    MESSAGES,
    MOST_STREAMS,
    OFFSETS,
    SHOWN_AS_TEXT,
    check_moment,
    group_rows,
    offset_rows,
)

_KIND = re.compile(r"^[\w ]+ Error: ")


@dataclass(frozen=True, slots=True)
class Engine:
    """Answers queries about one server's streams.

    Without a ``lake`` that can be read from here, the broker reads it, which is slower.
    """

    lake: Lake | None = None
    url: str | Address | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    """DuckDB's own, such as ``{"memory_limit": "2GB"}``."""
    confined: bool = False
    """For queries of strangers: one question at a time, about streams that the user may read, and
    DuckDB opens no file but those of these streams."""

    def query(
        self,
        text: str,
        *,
        limit: int | None = None,
        streams: Sequence[str] | None = None,
        as_of: datetime | None = None,
    ) -> Result:
        """Run a query over the present records; ``as_of`` leaves out what was published later.

        ``streams`` are those that ``stream_messages`` covers. At most ``limit`` rows are returned.
        """
        with self._prepared(text, streams, as_of) as (connection, query):
            return Result(_first(connection.execute(query), limit))

    def plan(self, text: str, *, as_of: datetime | None = None) -> str:
        """How a query would be run, as DuckDB draws it."""
        with self._prepared(text, None, as_of) as (connection, query):
            rows = connection.execute(f"explain {query}").fetchall()
            return "\n".join(str(drawn) for _, drawn in rows)

    @contextmanager
    def _prepared(
        self, text: str, streams: Sequence[str] | None, as_of: datetime | None
    ) -> Iterator[tuple[duckdb.DuckDBPyConnection, str]]:
        """DuckDB with the views that a query names, and the query in its words."""
        check_moment(as_of)
        with plain_errors(), duckdb.connect(config=dict(self.settings)) as connection:
            connection.execute("set timezone = 'UTC'")
            for macro in dialect.MACROS:
                connection.execute(macro)
            if self.confined:
                dialect.check_question(text)
            query = dialect.parse(connection, text)
            files = LakeFiles(connection)
            if query.tables:
                with HotLog(self.url) as broker:
                    views = QueryViews(
                        connection, broker, self.lake, as_of, streams, query, files, self.confined
                    )
                    views.make()
            if self.confined:
                _confine(connection, files.paths)
            yield connection, query.text

    def names(self) -> list[str]:
        """Every view that a query may name; for completion."""
        with HotLog(self.url) as broker:
            return [*COLUMNS, *(table_name(name) for name in broker.names())]


def answer(
    address: Address,
    status: Mapping[str, Any],
    query: str,
    *,
    streams: Sequence[str] | None = None,
    as_of: datetime | None = None,
    lake: str | None = None,
) -> Result:
    """Run a client's query; ``status`` is what the stream broker says of itself."""
    where = _reachable(status) if lake is None else LakeSettings(Path(lake))
    engine = Engine(None if where is None else Lake(where), address)
    return engine.query(query, streams=streams, as_of=as_of)


def _reachable(status: Mapping[str, Any]) -> LakeSettings | None:
    """The server's lake; None if it cannot be read from here."""
    try:
        return servers_lake(status)
    except ConfigError:
        return None


@dataclass
class QueryViews:
    """Makes the views of one query."""

    connection: duckdb.DuckDBPyConnection
    broker: HotLog
    lake: Lake | None
    as_of: datetime | None
    streams: Sequence[str] | None
    query: Parsed
    files: LakeFiles
    check_reading: bool = False
    """The lake's files know no permissions: ask the broker whether the user may read a stream."""
    _seen: dict[str, SeenStream] = field(default_factory=dict)
    _made: set[str] = field(default_factory=set)
    _views: set[str] = field(default_factory=set)

    def make(self) -> None:
        """Make the views that the query names; other names are left to DuckDB."""
        spelled: dict[str, str] = {}
        for name in sorted(self.query.tables):
            if (other := spelled.setdefault(name.lower(), name)) == name:
                self._make(name, name.lower())
            elif {name, other} <= self._names:
                raise InvalidInput(
                    f"streams {other!r} and {name!r} differ in case alone, which SQL ignores: ask "
                    "for one at a time"
                )

    def _make(self, name: str, plain: str) -> None:
        if name in self._names and name not in self._by_view:
            self._view(name, f"select * from {quoted_name(self._stream(name))}")
        elif plain == MESSAGES:
            self._messages()
        elif plain == OFFSETS:
            self._rows(plain, offset_rows(self.broker, self._readable(self._asked(OFFSETS))))
        elif plain == GROUPS:
            self._rows(plain, group_rows(self.broker, self._readable(self._covered())))
        elif name == dialect.VIEWS:
            self._list(name)
        elif plain in self._by_view:
            self._stream(self._by_view[plain])
        elif (stream := self._named(name)) is not None:
            self._view(name, f"select * from {quoted_name(self._stream(stream))}")
        else:
            self._derived(plain)
            self._derived_of_named(name)
            self._made_by_users(name)

    def _named(self, name: str) -> str | None:
        """The stream of that name, which no SQL name need be; upper case may be written lower."""
        if name in self._names:
            return name
        alike = [each for each in self._names if each.lower() == name.lower()]
        return alike[0] if len(alike) == 1 else None

    @cached_property
    def _names(self) -> set[str]:
        return set(self._by_view.values())

    def _list(self, name: str) -> None:
        """The views that a query may name, with their streams."""
        views = [*((each, None) for each in COLUMNS), *self._by_view.items()]
        schema = pa.schema([("name", pa.string()), ("stream", pa.string())])
        rows = [{"name": view, "stream": stream} for view, stream in sorted(views)]
        copy_table(self.connection, name, pa.Table.from_pylist(rows, schema=schema))

    @cached_property
    def _by_view(self) -> dict[str, str]:
        return {table_name(name): name for name in self.broker.names()}

    def _look(self, name: str) -> SeenStream:
        if name not in self._seen:
            if self.check_reading:
                self.broker.check_readable(name)
            self._seen[name] = look(self.broker, self.lake, name)
        return self._seen[name]

    def _look_at(self, names: Sequence[str]) -> None:
        """Look at several streams together."""
        unseen = [name for name in names if name not in self._seen]
        self._seen |= look_at(self.broker, self.lake, self._readable(unseen))

    def _readable(self, names: list[str]) -> list[str]:
        """The same names; raises for one whose stream the user may not read."""
        for name in names if self.check_reading else ():
            self.broker.check_readable(name)
        return names

    def _covered(self) -> list[str]:
        return list(self.streams or self._by_view.values())

    def _asked(self, view: str) -> list[str]:
        """The streams that the query reads from a view of all."""
        topics = asked_topics(self.query.tree, view)
        return [name for name in self._covered() if topics is None or name in topics]

    # -- views -------------------------------------------------------------------------

    def _stream(self, name: str) -> str:
        """A stream's view: the files of its table, then the log; returns its name."""
        view = table_name(name)
        if view in self._made:
            return view
        self._made.add(view)
        seen = self._look(name)
        hot = f"__hot_{len(self._made)}"
        make_hot_table(self.connection, hot, self.broker, seen)
        parts = [f'select * from "{hot}"']
        if seen.table is not None and (lake := self.files.query(seen.table)) is not None:
            parts.insert(0, lake)
        self._view(view, self._until(" union all by name ".join(parts)))
        return view

    def _derived(self, name: str) -> None:
        """The newest records or the dead letters of a stream, if that is what the name says."""
        for kind, suffix in SUFFIXES.items():
            for stream in self._candidates(name, suffix):
                if self.lake is None or derived_view(stream, kind, self._by_view) != name:
                    continue
                created_ms = self._look(stream).info.created_ms
                table = find(self.lake, StreamId(stream, created_ms), kind)
                if table is not None:
                    self._derived_view(name, stream, table, kind)

    def _derived_of_named(self, name: str) -> None:
        """The same where the stream's own name is written."""
        for kind, suffix in SUFFIXES.items():
            stream = self._named(name.removesuffix(suffix)) if name.endswith(suffix) else None
            if self.lake is None or stream is None or self._is_there(name):
                continue
            created_ms = self._look(stream).info.created_ms
            table = find(self.lake, StreamId(stream, created_ms), kind)
            if table is not None:
                self._derived_view(name, stream, table, kind)

    def _made_by_users(self, name: str) -> None:
        """A table that users' code fills; its name may be written in lower case."""
        if self.lake is None or self._is_there(name):
            return
        table = find_made(self.lake, name) or find_made(self.lake, name.lower())
        if table is None:
            return
        if self.check_reading:
            self._check_made(table.properties[USER])
        if self.as_of is not None:
            raise InvalidInput(f"table {name!r} has its present rows only: ask without --as-of")
        from nexo.sql.keyed import made_query  # noqa: PLC0415 - slow, and only such tables need it

        label = f"__made_{len(self._views)}"
        self._view(name, made_query(self.connection, self.files, self.lake, table, label))

    def _check_made(self, name: str) -> None:
        """Raise `Forbidden` unless the user may read a stream of a table's name."""
        with suppress(NotFound):
            self.broker.check_readable(name)

    def _is_there(self, name: str) -> bool:
        return name.lower() in self._views

    def _candidates(self, name: str, suffix: str) -> list[str]:
        """Streams that a derived view may be of: with or without a number after its suffix."""
        bases = {name.removesuffix(suffix), name.rpartition("_")[0].removesuffix(suffix)}
        return [self._by_view[base] for base in bases if base != name and base in self._by_view]

    def _derived_view(self, name: str, stream: str, table: StoredTable, kind: str) -> None:
        if kind == NEWEST and self.as_of is not None:  # the table has only the present ones
            self._view(name, _newest(self._stream(stream)))
        else:
            self._view(name, self._until(self.files.query(table) or nothing(table)))

    def _messages(self) -> None:
        names = self._asked(MESSAGES)
        if len(names) > MOST_STREAMS:
            raise InvalidInput(
                f"{MESSAGES} would read {len(names):,} streams, and covers {MOST_STREAMS} at a "
                "time: say which ones, as in where topic = 'orders' or where topic in ('a', 'b')"
            )
        self._look_at(names)
        columns = ", ".join(
            f"nexo_shown({each}) as {each}" if each in SHOWN_AS_TEXT else quoted_name(each)
            for each in MESSAGE
        )
        parts = [
            f"select {literal(name)} as topic, {columns} from {quoted_name(self._stream(name))}"
            for name in names
        ]
        if parts:
            self._view(MESSAGES, " union all ".join(parts))
        else:
            self._rows(MESSAGES, iter(()))

    def _rows(self, name: str, rows: Iterator[tuple[object, ...]]) -> None:
        schema = COLUMNS[name]
        found = [dict(zip(schema.names, row, strict=True)) for row in rows]
        copy_table(self.connection, name, pa.Table.from_pylist(found, schema=schema))

    def _view(self, name: str, query: str) -> None:
        self._views.add(name.lower())
        self.connection.execute(f"create view {quoted_name(name)} as {query}")

    def _until(self, query: str) -> str:
        if self.as_of is None:
            return query
        moment = self.as_of.astimezone(UTC).isoformat()
        return f"select * from ({query}) where timestamp <= timestamptz '{moment}'"


def _confine(connection: duckdb.DuckDBPyConnection, files: Sequence[str]) -> None:
    """Let DuckDB open only these files from now on, and keep all its settings."""
    connection.execute(f"set allowed_paths = [{', '.join(map(literal, files))}]")
    connection.execute("set enable_external_access = false")
    connection.execute("set lock_configuration = true")


def _newest(view: str) -> str:
    """The newest record of each key without tombstones, and every record without a key."""
    columns = ", ".join(quoted_name(name) for name in ROWS.names)
    later = '"timestamp" desc, "offset" desc, partition desc'  # a key's partition may have changed
    rank = f"row_number() over (partition by key order by {later})"
    return (
        f"select {columns} from (select *, {rank} as rank_of_key from {quoted_name(view)}) "
        "where key is null or (rank_of_key = 1 and value is not null)"
    )


def _first(found: duckdb.DuckDBPyConnection, limit: int | None) -> pa.Table:
    """The result, or its first rows; sums of whole numbers are 64-bit, as in Spark."""
    wide = [str(column[1]) == "HUGEINT" for column in found.description or ()]
    reader = found.to_arrow_reader()
    batches, count = list[pa.RecordBatch](), 0
    for batch in reader:
        batches.append(batch if limit is None else batch.slice(0, limit - count))
        count += batches[-1].num_rows
        if count == limit:
            break
    table = pa.Table.from_batches(batches, schema=reader.schema)
    for number in (number for number, is_wide in enumerate(wide) if is_wide):
        column, name = table.column(number), table.column_names[number]
        try:
            table = table.set_column(number, name, column.cast(pa.int64()))
        except pa.ArrowInvalid:  # it does not fit
            continue
    return table


@contextmanager
def plain_errors() -> Iterator[None]:
    """Raise DuckDB's errors as a `NexoError`: `InvalidInput` for a query that it rejects."""
    try:
        yield
    except duckdb.Error as error:
        text = " ".join(_KIND.sub("", str(error)).split("\n\n")[0].split())
        if isinstance(error, duckdb.CatalogException) and "does not exist" in text:
            raise NotFound(f"{text.partition('!')[0]}; `show tables` lists all") from error
        if isinstance(error, duckdb.IOException):
            raise Conflict(f"the lake changed while it was read, ask again: {text}") from error
        if 'near "-"' in text or 'near "."' in text:
            text += '; a name with this character is written in quotes: "user-events"'
        raise InvalidInput(text) from error
