"""Debezium's envelopes as changes of rows: what was written, what was deleted, in which order.

An envelope has the row ``before`` and ``after`` a change, with or without a schema beside it. What
a source did not send, such as a large value that did not change, is an unknown column. What is no
row (a heartbeat, a transaction's mark, a schema change, a message) is nothing.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import pyarrow as pa
from msgspec import UNSET, Raw, UnsetType

from nexo.errors import InvalidInput
from nexo.lake.typed.connect import (
    ConnectSchema,
    DecimalText,
    FieldForm,
    ReadField,
    TimeUnit,
    columns_of_schema,
    field_reader,
    form_of,
)
from nexo.lake.typed.formats import DEBEZIUM, ValueFormat
from nexo.lake.typed.kinds import Kind, arrow_type
from nexo.lake.typed.reading import BAD, Misfit, raw_by_name

OP, IS_DELETED, TS_MS, SEQ, UNKNOWN_COLUMNS = "_op", "_deleted", "_ts_ms", "_seq", "_unknown"
CHANGE_COLUMNS = (
    pa.field(OP, pa.string()),
    pa.field(IS_DELETED, pa.bool_()),
    pa.field(TS_MS, pa.int64()),
    pa.field(
        SEQ, pa.struct([("position", pa.int64()), ("offset", pa.int64()), ("sub", pa.int32())])
    ),
    pa.field(UNKNOWN_COLUMNS, pa.list_(pa.field("element", pa.string()))),
)
"""Beside a row's own: the operation (r, c, u, d, or t: all rows were removed), whether it deletes,
when it happened, its place in the order, and the columns that the source did not send."""
_KEPT_SCHEMAS = 64
_NO_ROWS = ("status", "ddl", "tableChanges", "databaseName")
"""Fields by which transactions' marks and schema changes are known."""


class DebeziumSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How a connector writes what its envelopes do not say."""

    decimals: DecimalText = ""
    times: TimeUnit = ""
    tombstones: Literal["skip", "delete"] = "skip"
    """``delete``: the values are rows without an envelope, and a tombstone deletes its key."""
    unavailable: str = "__debezium_unavailable_value"


def debezium_format(
    settings: Mapping[str, Any], sample: bytes | None = None
) -> tuple[ValueFormat, dict[str, str]]:
    """The format of such values, and the columns that a value's own schema names."""
    try:
        found = msgspec.convert(dict(settings), DebeziumSettings)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"settings of Debezium's format: {error}") from None
    columns = {} if sample is None else _sampled(sample)
    return ValueFormat(DEBEZIUM, {"": msgspec.json.encode(found).decode()}), columns


def settings_of(value_format: ValueFormat) -> DebeziumSettings:
    return msgspec.json.decode(value_format.schemas[""], type=DebeziumSettings)


def _sampled(value: bytes) -> dict[str, str]:
    try:
        found = _decode(value)
        schema = None if isinstance(found.schema, UnsetType) else _schema(bytes(found.schema))
    except BAD:
        schema = None
    row = schema and (schema.part("after") or schema.part("before"))
    return columns_of_schema(row) if row else {}


# -- envelopes -------------------------------------------------------------------------


class _Source(msgspec.Struct):
    lsn: int | None = None
    pos: int | None = None
    file: str | None = None
    scn: int | str | None = None


class _Envelope(msgspec.Struct):
    op: str | UnsetType | None = UNSET
    before: dict[str, Raw] | None = None
    after: dict[str, Raw] | None = None
    ts_ms: int | None = None
    source: _Source | None = None
    schema: Raw | UnsetType = UNSET
    payload: _Envelope | UnsetType | None = UNSET


@dataclass(frozen=True, slots=True)
class RowChange:
    """A change of one row, or with the operation ``t`` of all."""

    op: str
    values: Mapping[str, Any]
    """By the source's name; of a deleted row its key."""
    unknown: tuple[str, ...] = ()
    ts_ms: int | None = None
    position: int = 0
    """Where the change is in the source's log; 0 if it does not say."""
    sub: int = 0
    misfits: tuple[str, ...] = ()

    @property
    def deleted(self) -> bool:
        return self.op == "d"


_decode = msgspec.json.Decoder(_Envelope).decode
_schema: Callable[[bytes], ConnectSchema] = msgspec.json.Decoder(ConnectSchema).decode
_Readers = Mapping[str, ReadField]


class EnvelopeReader:
    """Reads records; ``keys`` are the names of the key's columns, None for those of each record."""

    def __init__(
        self,
        columns: Mapping[str, Kind],
        settings: DebeziumSettings,
        keys: Sequence[str] | None = None,
        *,
        permissive: bool = False,
    ) -> None:
        self._columns = columns
        self._keys = None if keys is None else tuple(keys)
        self._settings = settings
        self._permissive = permissive
        self._form = FieldForm(settings.decimals, None, settings.times)
        self._plain = self._readers(None)
        self._known: dict[bytes, tuple[_Readers, _Readers]] = {}
        text = settings.unavailable
        quoted = msgspec.json.encode(text)
        encoded = msgspec.json.encode(base64.b64encode(text.encode()).decode())
        both = b"{" + quoted + b":" + quoted + b"}"
        self._unavailable = {quoted, encoded, b"[" + quoted + b"]", both}

    def read(self, key: bytes | None, value: bytes | None) -> list[RowChange]:
        """What a record changes; raises one of `BAD` for a dead letter."""
        if value is None or value.strip() == b"null":
            return self._tombstone(key)
        if self._settings.tombstones == "delete":
            return [self._flat(key, value)]
        found = _decode(value)
        before, after = self._plain, self._plain
        if not isinstance(found.payload, UnsetType):
            if found.payload is None:
                return self._tombstone(key)
            schema = b"" if isinstance(found.schema, UnsetType) else bytes(found.schema)
            if schema.startswith(b"{"):
                before, after = self._described(schema)
            found = found.payload
        if isinstance(found.op, UnsetType) or found.op is None:
            _check_no_row(value)
            return []
        return self._changes(key, found, before, after)

    def _changes(
        self, key: bytes | None, found: _Envelope, before: _Readers, after: _Readers
    ) -> list[RowChange]:
        at = found.ts_ms, _position(found.source)
        match found.op:
            case "r" | "c" | "u" if found.after is not None:
                made = self._row(found.op, found.after, after, *at)
                keys = self._checked(made, key)
                old = None if found.before is None else _of_key(found.before, keys, before)
                if old is None or all(old[name] == made.values[name] for name in keys):
                    return [made]
                gone = RowChange("d", old, (), *at)
                return [gone, RowChange(made.op, made.values, made.unknown, *at, 1, made.misfits)]
            case "r" | "c" | "u":
                raise Misfit(f"an operation {found.op!r} without the row after it")
            case "d":
                return [RowChange("d", self._gone(key, found.before, before), (), *at)]
            case "t":
                return [RowChange("t", {}, (), *at)]
            case "m":
                return []
        raise Misfit(f"an unknown operation {found.op!r}")

    def _row(
        self,
        op: str,
        fields: Mapping[str, Raw],
        readers: _Readers,
        ts_ms: int | None,
        position: int,
    ) -> RowChange:
        values: dict[str, Any] = {}
        unknown: list[str] = []
        misfits: list[str] = []
        for name, read in readers.items():
            raw = fields.get(name)
            if raw is None:
                continue
            if bytes(raw) in self._unavailable:
                unknown.append(name)
                continue
            try:
                values[name] = read(raw)
            except BAD as error:
                if not self._permissive:
                    raise
                misfits.append(str(error))
        return RowChange(op, values, tuple(unknown), ts_ms, position, 0, tuple(misfits))

    # -- keys --------------------------------------------------------------------------

    def _checked(self, made: RowChange, key: bytes | None) -> tuple[str, ...]:
        """The names of the key's columns, none of which is null."""
        keys = self._keys or tuple(name for name in _key_fields(key) if name in self._columns)
        if not keys:
            raise Misfit("no key: the record has none with columns, and none is set")
        for name in keys:
            if made.values.get(name) is None:
                raise Misfit(f"column {name!r} of the key is null")
        return keys

    def _gone(
        self, key: bytes | None, before: Mapping[str, Raw] | None, readers: _Readers
    ) -> Mapping[str, Any]:
        """The key of a deleted row: of the row itself, else of the record."""
        fields = _key_fields(key)
        keys = self._keys or tuple(name for name in fields if name in self._columns)
        if not keys:
            raise Misfit("no key: the record has none with columns, and none is set")
        found = None if before is None else _of_key(before, keys, readers)
        found = found or _of_key(fields, keys, self._plain)
        if found is None:
            raise Misfit("a deleted row without its key")
        return found

    def _tombstone(self, key: bytes | None) -> list[RowChange]:
        if self._settings.tombstones != "delete":
            return []
        return [RowChange("d", self._gone(key, None, self._plain))]

    def _flat(self, key: bytes | None, value: bytes) -> RowChange:
        """A row without an envelope, with what a transform has added to it."""
        fields = raw_by_name(value)
        if fields.keys() == {"schema", "payload"}:
            fields = raw_by_name(fields["payload"])
        if bytes(fields.get("__deleted", b"")).strip(b'"') == b"true":
            return RowChange("d", self._gone(key, fields, self._plain))
        op = bytes(fields.get("__op", b'"u"')).strip(b'"').decode()
        made = self._row(op, fields, self._plain, None, 0)
        self._checked(made, key)
        return made

    # -- schemas -----------------------------------------------------------------------

    def _described(self, schema: bytes) -> tuple[_Readers, _Readers]:
        """What reads the rows before and after changes that have this schema beside them."""
        if schema not in self._known:
            if len(self._known) >= _KEPT_SCHEMAS:
                self._known.clear()
            found = _schema(schema)
            before, after = (self._readers(found.part(name)) for name in ("before", "after"))
            self._known[schema] = before, after
        return self._known[schema]

    def _readers(self, schema: ConnectSchema | None) -> _Readers:
        return {
            name: field_reader(
                kind,
                f"$.{name}",
                form_of(None if schema is None else schema.part(name), self._form),
            )
            for name, kind in self._columns.items()
        }


def _of_key(
    fields: Mapping[str, Raw], keys: Sequence[str], readers: _Readers
) -> dict[str, Any] | None:
    """The values of the key's columns; None if one is missing or null."""
    if not all(name in fields for name in keys):
        return None
    found = {name: readers[name](fields[name]) for name in keys}
    return None if any(each is None for each in found.values()) else found


def _key_fields(key: bytes | None) -> Mapping[str, Raw]:
    try:
        fields = raw_by_name(key or b"{}")
        is_described = fields.keys() == {"schema", "payload"}
        return raw_by_name(fields["payload"]) if is_described else fields
    except BAD:
        return {}


def _position(source: _Source | None) -> int:
    """Where a change is in the log of PostgreSQL, MySQL or Oracle."""
    if source is None:
        return 0
    if source.lsn is not None:
        return source.lsn
    if source.pos is not None:
        digits = (source.file or "").rpartition(".")[2]
        return ((int(digits) if digits.isdecimal() else 0) << 40) + source.pos
    scn = str(source.scn or "")
    return int(scn) if scn.isdecimal() else 0


def _check_no_row(value: bytes) -> None:
    """Raise `Misfit` unless it is one of the messages beside the rows."""
    fields = raw_by_name(value)
    if fields.keys() == {"schema", "payload"}:
        fields = raw_by_name(fields["payload"])
    if fields.keys() != {"ts_ms"} and not any(name in fields for name in _NO_ROWS):
        raise Misfit("not an envelope of Debezium: it has no `op`")


# -- tables ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Unwrapped:
    """Rows' changes, and the records that were none."""

    changes: pa.Table
    rejected: Sequence[tuple[int, str]]
    """Offsets and reasons."""
    skipped: int = 0


def change_schema(columns: Mapping[str, Kind]) -> pa.Schema:
    """The columns of changes of rows."""
    own = [pa.field(name, arrow_type(kind)) for name, kind in columns.items()]
    return pa.schema([*own, *CHANGE_COLUMNS])


def unwrapped(rows: pa.Table, reader: EnvelopeReader, columns: Mapping[str, Kind]) -> Unwrapped:
    """The changes in a stream's records, in their order."""
    found: list[tuple[RowChange, int]] = []
    rejected: list[tuple[int, str]] = []
    skipped = 0
    for key, value, offset in _records(rows):
        try:
            made = reader.read(key, value)
        except BAD as error:
            rejected.append((offset, str(error)))
            continue
        skipped += not made
        found += [(each, offset) for each in made]
    schema = change_schema(columns)
    arrays = [
        pa.array([each.values.get(name) for each, _ in found], schema.field(name).type)
        for name in columns
    ]
    arrays += [
        pa.array([each.op for each, _ in found], pa.string()),
        pa.array([each.deleted for each, _ in found], pa.bool_()),
        pa.array([each.ts_ms for each, _ in found], pa.int64()),
        pa.array([_place(each, offset) for each, offset in found], schema.field(SEQ).type),
        pa.array([list(each.unknown) or None for each, _ in found], CHANGE_COLUMNS[-1].type),
    ]
    return Unwrapped(pa.table(arrays, schema=schema), rejected, skipped)


def _records(rows: pa.Table) -> Iterator[tuple[bytes | None, bytes | None, int]]:
    columns = (rows.column(name).to_pylist() for name in ("key", "value", "offset"))
    return zip(*columns, strict=True)


def _place(change: RowChange, offset: int) -> dict[str, int]:
    return {"position": change.position, "offset": offset, "sub": change.sub}
