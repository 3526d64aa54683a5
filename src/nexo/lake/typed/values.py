"""Values parsed into the typed columns of their rows.

A value that does not fit leaves its typed columns null and says why in ``rejected``: those rows are
the stream's dead letters. In permissive mode only the fields that do not fit are null, and
``misfits`` names them; then only what cannot be read at all is a dead letter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa

from nexo.lake.typed.columns import MISFITS, REJECTED, Terms
from nexo.lake.typed.infer import MOST_COLUMNS, Inference
from nexo.lake.typed.kinds import arrow_type, parse
from nexo.lake.typed.reading import BAD, LenientReader, finisher, python_type, raw_by_name
from nexo.lake.typed.unpacking import unpacker

_MISFITS_SHOWN = 10


class Parser:
    """Adds typed columns to rows."""

    def __init__(self, terms: Terms) -> None:
        kinds = {column.source: parse(column.kind) for column in terms.columns}
        names = [terms.names[column.field_id] for column in terms.columns]
        self._columns = list(zip(names, map(arrow_type, kinds.values()), strict=True))
        unpack = None if terms.format is None else unpacker(terms.format)
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
        is_open = terms.additions and as_json and self._room > 0
        self._found = Inference(kinds) if is_open else None

    def add_to(self, rows: pa.Table) -> pa.Table:
        """``rows`` with the typed columns, ``rejected``, and in permissive mode ``misfits``."""
        reasons: list[str | None] = []
        misfits: list[str | None] = []
        records = [
            self._items(value, reasons, misfits) for value in rows.column("value").to_pylist()
        ]
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
        more = len(found) - _MISFITS_SHOWN
        shown = [*found[:_MISFITS_SHOWN], *([f"and {more:,} more"] if more > 0 else [])]
        return items, None, "; ".join(shown)


def _converted(unpack: Callable[[bytes], Any], record: Any, value: bytes) -> Any:
    return msgspec.convert(unpack(value), record)


def _text(error: BaseException) -> str:
    return "the value is nested too deeply" if isinstance(error, RecursionError) else str(error)


def parsed(tables: Iterable[pa.Table], terms: Terms | None) -> Iterator[pa.Table]:
    """Rows with their typed columns, if any; for readers, which add no columns."""
    parser = None if terms is None else Parser(replace(terms, additions=False))
    for table in tables:
        yield table if parser is None else parser.add_to(table)
