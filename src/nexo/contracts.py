"""The contract of a stream: typed columns of its table in the lake (SPEC I11).

For the command line, for `nexo.client`'s `Contract`, and for programs beside the pipeline. Blocks,
as reading and changing a catalog does. A running pipeline follows a change with its next
micro-batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nexo.client._sync.link.link import Link
from nexo.client._sync.stream.stream import Stream
from nexo.client.address import Address, parse_url
from nexo.client.views import BackfillResult, ContractColumn, ContractInfo
from nexo.errors import Conflict, InvalidOption, NotFound
from nexo.hot_log import HotLog
from nexo.lake.catalog import Lake
from nexo.lake.derived import dead_letters
from nexo.lake.derived import redrive as driving
from nexo.lake.maintenance import backfill as filling
from nexo.lake.own_columns import ROWS
from nexo.lake.settings import LakeSettings, servers_lake
from nexo.lake.tables import CREATED_MS, StreamId
from nexo.lake.typed import columns
from nexo.lake.typed.formats import ValueFormat, extended, format_of
from nexo.lake.typed.infer import infer
from nexo.lake.typed.models import columns_from
from nexo.model import Broker

if TYPE_CHECKING:
    from pyiceberg.table import Table

SAMPLE = 1_000
"""Records per partition that columns are inferred from."""


@dataclass(frozen=True, slots=True)
class StreamContract:
    """Shows and changes one stream's contract.

    Changes make the stream's table if need be; `Conflict` if its tiering is off.
    """

    lake: Lake
    url: str | Address | None
    stream: str

    def info(self) -> ContractInfo:
        """The contract as it is now."""
        table, _ = self.known_table()
        return self._shown(table)

    # -- changes -----------------------------------------------------------------------

    def set(self, source: object) -> ContractInfo:
        """Add or widen columns: ``{"amount": "double"}``, or those of a model or JSON Schema."""
        return self._shown(columns.set_schema(self.table(), wanted_columns(source)))

    def infer(self) -> ContractInfo:
        """Add columns that fit the JSON values that were published last."""
        return self.set(self.inferred())

    def inferred(self) -> dict[str, str]:
        """The columns that `infer` adds; `NotFound` if no value is a JSON object."""
        found = infer(sample(self.url, self.stream))
        if not found:
            raise NotFound(f"the newest values of stream {self.stream!r} are no JSON objects")
        return found

    def avro(self, schema: object, *, schema_id: int | None = None) -> ContractInfo:
        """Read values as Avro of this schema, given as JSON text or what it means.

        With a ``schema_id``, values begin with a zero and the id of their schema, as Confluent's
        serializers write them; schemas of other ids stay.
        """
        from nexo.lake.typed.avro import avro_format  # noqa: PLC0415 - optional

        return self._encoded(*avro_format(schema), schema_id)

    def protobuf(
        self, descriptors: bytes, message: str, *, schema_id: int | None = None
    ) -> ContractInfo:
        """Read values as this Protobuf message, a full name in a descriptor set."""
        from nexo.lake.typed.protobuf import protobuf_format  # noqa: PLC0415 - optional

        return self._encoded(*protobuf_format(descriptors, message), schema_id)

    def debezium(self, settings: Mapping[str, Any] | None = None) -> ContractInfo:
        """Read values as Debezium's envelopes: the columns are those of the row after a change.

        The newest value gives the columns if it has a schema beside it; `set` adds to them, and
        gives them otherwise. Settings say what envelopes without a schema do not: how
        ``decimals`` are written (``text``, ``base64``), the unit of ``times`` (``millis``,
        ``micros``, ``nanos``), ``tombstones`` (``delete`` for rows without an envelope) and the
        text for what is ``unavailable``.
        """
        from nexo.lake.typed.debezium import debezium_format  # noqa: PLC0415 - as the others

        self.table()  # or why it has none
        wanted: dict[str, str] = {}
        made, _ = debezium_format(settings or {})
        for value in sample(self.url, self.stream):
            made, found = debezium_format(settings or {}, value)
            wanted |= found
        return self._encoded(made, wanted, None)

    def _encoded(
        self, new: ValueFormat, wanted: Mapping[str, str], schema_id: int | None
    ) -> ContractInfo:
        table = self.table()
        known = format_of(table.properties.get(columns.FORMAT))
        return self._shown(columns.set_format(table, extended(known, new, schema_id), wanted))

    def json(self) -> ContractInfo:
        """Read values as JSON again."""
        return self._shown(columns.set_format(self.table(), None, {}))

    def permissive(self, on: bool = True) -> ContractInfo:
        """Whether a field that does not fit is null alone; otherwise its record is refused."""
        return self._shown(columns.set_permissive(self.table(), on))

    def additions(self, on: bool = True) -> ContractInfo:
        """Whether new fields of JSON values become columns by themselves."""
        return self._shown(columns.set_additions(self.table(), on))

    def rename(self, old: str, new: str) -> ContractInfo:
        """Give a column another name; nothing is rewritten."""
        return self._shown(columns.rename(self.table(), old, new))

    # -- records -----------------------------------------------------------------------

    def backfill(self) -> BackfillResult:
        """Fill the columns of records that are older than they are."""
        table, _ = self.known_table()
        if table is None:
            raise NotFound(
                f"stream {self.stream!r} has no table in the lake: run the pipeline first"
            )
        done = filling.backfill(table)
        return BackfillResult(done.files, done.rows)

    def redrive(self, to: str | None = None) -> int:
        """Publish dead letters again, those that were not yet, to the stream or another one."""
        with closing(Link(parse_url(self.url), Broker.STREAM)) as link:
            source: Stream[Any] = Stream(link, self.stream)
            made = StreamId(self.stream, source.info().created_ms)
            target: Stream[Any] = Stream(link, to or self.stream)

            def publish(values: Sequence[Any], keys: Sequence[Any], headers: Sequence[Any]) -> None:
                target.publish_many(values, keys=keys, headers=headers)

            return driving.redrive(self.lake, made, publish)

    # -- the table ---------------------------------------------------------------------

    def known_table(self) -> tuple[Table | None, bool]:
        """The stream's table if it has one, and whether the stream has tiering on."""
        with HotLog(self.url) as broker:
            info = broker.describe(self.stream)
        made = StreamId(self.stream, info.created_ms)
        return self.lake.known(made), bool(info.options.get("tiering"))

    def table(self) -> Table:
        """The stream's table, made if need be; `NotFound` if there is no such stream."""
        with HotLog(self.url) as broker:
            info = broker.describe(self.stream)
        made = StreamId(self.stream, info.created_ms)
        if not info.options.get("tiering") and self.lake.known(made) is None:
            raise Conflict(
                f"stream {self.stream!r} has tiering off, so nothing of it is taken into the lake: "
                "update it with tiering on first"
            )
        return self.lake.ensure(made, ROWS)

    def _shown(self, table: Table | None) -> ContractInfo:
        terms = None if table is None else columns.parser_of(table)
        shown = terms or columns.Terms([], {})
        ids = shown.format.schemas if shown.format is not None else {}
        return ContractInfo(
            self.stream,
            "json" if shown.format is None else shown.format.name,
            "" if shown.format is None else shown.format.message,
            tuple(sorted(int(each) for each in ids if each)),
            shown.permissive,
            shown.additions,
            tuple(
                ContractColumn(shown.names[each.field_id], each.kind, each.source)
                for each in shown.columns
            ),
            0 if table is None else self._dead_letters(table),
        )

    def _dead_letters(self, table: Table) -> int:
        created_ms = int(table.properties[CREATED_MS])
        return sum(dead_letters.count(self.lake, StreamId(self.stream, created_ms)).values())


def open_contract(
    address: Address, status: Mapping[str, Any], stream: str, lake: str | None = None
) -> StreamContract:
    """For a client; ``status`` is what the stream broker says of itself."""
    where = servers_lake(status) if lake is None else LakeSettings(Path(lake))
    return StreamContract(Lake(where), address, stream)


def wanted_columns(source: object) -> Mapping[str, str]:
    """Columns as they are given: by name and type, or as a model or a JSON Schema."""
    if isinstance(source, Mapping) and all(isinstance(each, str) for each in source.values()):
        if not source:
            raise InvalidOption("no columns are given")
        return source
    return columns_from(source)


def sample(url: str | Address | None, stream: str) -> list[bytes | None]:
    """The newest values of a stream."""
    found: list[bytes | None] = []
    with HotLog(url) as broker:
        for number, part in enumerate(broker.describe(stream).partitions):
            first = max(part.hot_offset, part.stable_offset - SAMPLE)
            batches = broker.read(stream, number, first, part.stable_offset)
            found += islice(chain.from_iterable(batch.values() for batch in batches), SAMPLE)
    return found
