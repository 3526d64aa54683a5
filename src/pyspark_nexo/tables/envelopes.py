"""``debezium.<stream>``: the changes in a stream of Debezium's envelopes, as a source of streams.

The columns are those of the stream's contract, whose format is ``debezium``, and of each change
(`nexo.lake.typed.debezium`). What is no change, or is refused, is not among the rows: the stream's
own table says why, in its column ``rejected``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from nexo.errors import Conflict
from nexo.hot_log import HotLog
from nexo.lake.catalog import Lake
from nexo.lake.tables import StreamId
from nexo.lake.typed.columns import Terms, parser_of
from nexo.lake.typed.debezium import EnvelopeReader, change_schema, settings_of, unwrapped
from nexo.lake.typed.formats import DEBEZIUM
from nexo.lake.typed.kinds import parse
from pyspark_nexo.options import parse as parse_options
from pyspark_nexo.source import BatchReader, StreamReader
from pyspark_nexo.tables.sources import new_provider
from pyspark_nexo.types import spark_schema

if TYPE_CHECKING:
    from pyspark.sql.datasource import InputPartition

# ruff: noqa: N802 - Spark names these methods

PREFIX = "debezium."
"""How the names of such sources begin."""


@dataclass(frozen=True, slots=True)
class Envelopes:
    """What is needed to open a stream's envelopes; sent to tasks."""

    terms: Terms

    @property
    def columns(self) -> dict[str, Any]:
        return {each.source: parse(each.kind) for each in self.terms.columns}

    @property
    def schema(self) -> pa.Schema:
        return self._renamed(change_schema(self.columns))

    def _renamed(self, schema: pa.Schema) -> pa.Schema:
        """With the names that the contract's columns have in the lake."""
        names = {each.source: self.terms.names[each.field_id] for each in self.terms.columns}
        return pa.schema([each.with_name(names.get(each.name, each.name)) for each in schema])

    def opened(
        self, batches: Iterator[pa.RecordBatch], wanted: list[str]
    ) -> Iterator[pa.RecordBatch]:
        """The changes in records."""
        assert self.terms.format is not None, "the contract has this format"
        columns, schema = self.columns, self.schema
        settings = settings_of(self.terms.format)
        reader = EnvelopeReader(columns, settings, permissive=self.terms.permissive)
        for batch in batches:
            found = unwrapped(pa.Table.from_batches([batch]), reader, columns).changes
            named = pa.Table.from_arrays(found.columns, names=schema.names)
            yield from named.select(wanted).to_batches()


class EnvelopeTable(DataSource):
    """A stream's changes."""

    provider: ClassVar[str]
    given: ClassVar[Mapping[str, str]]
    envelopes: ClassVar[Envelopes]

    @classmethod
    def name(cls) -> str:
        return cls.provider

    def schema(self) -> StructType:
        return spark_schema(self.envelopes.schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        """For batch queries."""
        return EnvelopeBatchReader(self.given, self.envelopes, schema.names)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """For streaming queries."""
        return EnvelopeStreamReader(self.given, self.envelopes, schema.names)


def _raw(given: Mapping[str, str]) -> Any:
    return parse_options(dict(given))


class EnvelopeBatchReader(BatchReader):
    """Reads the changes that are there when the query is planned."""

    def __init__(self, given: Mapping[str, str], envelopes: Envelopes, names: list[str]) -> None:
        super().__init__(_raw(given))
        self._envelopes, self._names = envelopes, names

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs on an executor."""
        return self._envelopes.opened(super().read(partition), self._names)


class EnvelopeStreamReader(StreamReader):
    """Reads changes as they come."""

    def __init__(self, given: Mapping[str, str], envelopes: Envelopes, names: list[str]) -> None:
        super().__init__(_raw(given))
        self._envelopes, self._names = envelopes, names

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs on an executor."""
        return self._envelopes.opened(super().read(partition), self._names)


@dataclass(frozen=True, slots=True)
class EnvelopeNames:
    """The names ``debezium.<stream>`` of a catalog."""

    lake: Lake
    url: str | None
    max_records: int = 1_000_000

    def __call__(self, name: str) -> type[EnvelopeTable] | None:
        if not name.lower().startswith(PREFIX):
            return None
        wanted = name[len(PREFIX) :].lower()
        with HotLog(self.url) as broker:
            stream = {each.lower(): each for each in broker.names()}.get(wanted)
            if stream is None:
                return None
            info = broker.describe(stream)
        table = self.lake.known(StreamId(stream, info.created_ms))
        terms = None if table is None else parser_of(table)
        if terms is None or terms.format is None or terms.format.name != DEBEZIUM:
            raise Conflict(
                f"stream {stream!r} has no contract that opens Debezium's envelopes: give it one, "
                f"with nexo pipeline schema {stream} --debezium '{{}}' --set '{{\"id\": \"long\"}}'"
            )
        given = {"stream": stream, "maxOffsetsPerTrigger": str(self.max_records)}
        if self.url:
            given["url"] = self.url
        found = {"provider": new_provider(name), "given": given, "envelopes": Envelopes(terms)}
        return type("EnvelopesOf", (EnvelopeTable,), found)
