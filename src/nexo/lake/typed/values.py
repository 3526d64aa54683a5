"""Values parsed into the typed columns of their rows.

Schema registries put five bytes before each value in a format other than JSON: a zero and the
schema's id. A format with ids reads a value with the schema of its id; one without ids has a single
schema.

A value that does not fit leaves its typed columns null and says why in ``rejected``: those rows are
the stream's dead letters. In permissive mode only the fields that do not fit are null, and
``misfits`` names them; then only what cannot be read at all is a dead letter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from struct import Struct
from typing import Any

import msgspec
import pyarrow as pa

from nexo.lake.typed.columns import MISFITS, REJECTED, Terms
from nexo.lake.typed.debezium import EnvelopeReader, settings_of
from nexo.lake.typed.formats import AVRO, DEBEZIUM, Unpack, ValueFormat
from nexo.lake.typed.infer import MOST_COLUMNS, Inference
from nexo.lake.typed.kinds import arrow_type, parse
from nexo.lake.typed.reading import BAD, LenientReader, finisher, python_type, raw_by_name

_HEADER = Struct(">BI")


def unpacker(value_format: ValueFormat) -> Unpack:
    """What reads values; `ConfigError` if the format's package is not installed."""
    if value_format.name == AVRO:
        from nexo.lake.typed.avro import reader  # noqa: PLC0415 - optional
    else:
        from nexo.lake.typed.protobuf import reader  # noqa: PLC0415 - optional
    readers = {key: reader(value_format, key) for key in value_format.schemas}
    return readers[""] if "" in readers else _by_id(readers)


def _by_id(readers: Mapping[str, Unpack]) -> Unpack:
    def unpack(value: bytes) -> Mapping[str, Any]:
        if len(value) < _HEADER.size or value[0]:
            raise msgspec.DecodeError("value does not begin with a zero and the id of a schema")
        schema_id = str(_HEADER.unpack_from(value)[1])
        if schema_id not in readers:
            raise msgspec.DecodeError(f"the contract has no schema with the id {schema_id}")
        return readers[schema_id](value[_HEADER.size :])

    return unpack


_MISFITS_SHOWN = 10


class Parser:
    """Adds typed columns to rows."""

    def __init__(self, terms: Terms) -> None:
        kinds = {column.source: parse(column.kind) for column in terms.columns}
        names = [terms.names[column.field_id] for column in terms.columns]
        self._sources = list(kinds)
        self._columns = list(zip(names, map(arrow_type, kinds.values()), strict=True))
        self._envelopes = None
        unpack = None
        if terms.format is not None and terms.format.name == DEBEZIUM:
            self._envelopes = EnvelopeReader(
                kinds, settings_of(terms.format), permissive=terms.permissive
            )
        elif terms.format is not None:
            unpack = unpacker(terms.format)
        as_json = unpack is None
        fields = [
            (f"f{n}", python_type(kind, as_json), msgspec.field(name=source, default=None))
            for n, (source, kind) in enumerate(kinds.items())
        ]
        record = msgspec.defstruct("Record", fields)
        self._empty = msgspec.structs.astuple(record())
        self._decode: Callable[[bytes], Any] = msgspec.json.Decoder(record).decode
        self._split: Callable[[bytes], Any] = raw_by_name
        if unpack is not None:
            self._decode, self._split = partial(_converted, unpack, record), unpack
        found = [finisher(kind, f"$.{source}", as_json) for source, kind in kinds.items()]
        self._finishers = [(n, finish) for n, finish in enumerate(found) if finish is not None]
        self._permissive = terms.permissive
        self._lenient = [
            (source, LenientReader(kind, f"$.{source}", as_json))
            for source, kind in kinds.items()
            if terms.permissive
        ]
        self._room = MOST_COLUMNS - len(kinds)
        is_open = terms.additions and terms.format is None and self._room > 0
        self._found = Inference(kinds) if is_open else None

    def add_to(self, rows: pa.Table) -> pa.Table:
        """``rows`` with the typed columns, ``rejected``, and in permissive mode ``misfits``."""
        reasons: list[str | None] = []
        misfits: list[str | None] = []
        values = rows.column("value").to_pylist()
        if self._envelopes is None:
            records = [self._items(value, reasons, misfits) for value in values]
        else:
            keys, read = rows.column("key").to_pylist(), self._envelopes
            found = zip(keys, values, strict=True)
            records = [self._row(read, *each, reasons, misfits) for each in found]
        for number, (name, kind) in enumerate(self._columns):
            items = [record[number] for record in records]
            rows = rows.append_column(name, pa.array(items, kind))
        rows = rows.append_column(REJECTED, pa.array(reasons, pa.string()))
        if self._permissive:
            rows = rows.append_column(MISFITS, pa.array(misfits, pa.string()))
        return rows

    def new_fields(self) -> dict[str, str]:
        """Fields of the values so far that may become columns, with types that fit them."""
        return {} if self._found is None else self._found.columns(self._room)

    def _items(
        self, value: bytes | None, reasons: list[str | None], misfits: list[str | None]
    ) -> Sequence[Any]:
        """A value's fields, all null if it does not fit; adds the reasons."""
        items: Sequence[Any] = self._empty
        reason = misfit = None
        if value is not None:
            try:
                items = self._finish(msgspec.structs.astuple(self._decode(value)))
            except BAD as error:
                items, reason, misfit = self._fitting(value, _text(error))
            if self._found is not None and reason is None:
                self._found.add_json(value)
        reasons.append(reason)
        misfits.append(misfit)
        return items

    def _row(
        self,
        envelopes: EnvelopeReader,
        key: bytes | None,
        value: bytes | None,
        reasons: list[str | None],
        misfits: list[str | None],
    ) -> Sequence[Any]:
        """The row after a change, or the key of the deleted one; adds the reasons."""
        items: Sequence[Any] = self._empty
        reason = misfit = None
        try:
            for change in envelopes.read(key, value)[-1:]:
                items = [change.values.get(source) for source in self._sources]
                misfit = _shown(change.misfits) if change.misfits else None
        except BAD as error:
            reason = _text(error)
        reasons.append(reason)
        misfits.append(misfit)
        return items

    def _finish(self, items: Sequence[Any]) -> Sequence[Any]:
        if not self._finishers:
            return items
        done = list(items)
        for number, finish in self._finishers:
            if (item := items[number]) is not None:
                done[number] = finish(item)
        return done

    def _fitting(self, value: bytes, reason: str) -> tuple[Sequence[Any], str | None, str | None]:
        """In permissive mode the fields that fit, and what is wrong with the others."""
        if not self._permissive:
            return self._empty, reason, None
        try:
            parts = self._split(value)
        except BAD:
            return self._empty, reason, None
        found: list[str] = []
        items = [
            reader.read(parts[source], found) if source in parts else None
            for source, reader in self._lenient
        ]
        return items, None, _shown(found)


def _converted(unpack: Callable[[bytes], Any], record: Any, value: bytes) -> Any:
    return msgspec.convert(unpack(value), record)


def _shown(misfits: Sequence[str]) -> str:
    more = len(misfits) - _MISFITS_SHOWN
    return "; ".join([*misfits[:_MISFITS_SHOWN], *([f"and {more:,} more"] if more > 0 else [])])


def _text(error: BaseException) -> str:
    return "the value is nested too deeply" if isinstance(error, RecursionError) else str(error)


def parsed(tables: Iterable[pa.Table], terms: Terms | None) -> Iterator[pa.Table]:
    """Rows with their typed columns, if any; for readers, which add no columns."""
    parser = None if terms is None else Parser(replace(terms, additions=False))
    for table in tables:
        yield table if parser is None else parser.add_to(table)
