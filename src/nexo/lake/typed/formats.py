"""How values are encoded: JSON, what a schema beside them says (Avro, Protobuf), or envelopes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import msgspec

from nexo.errors import InvalidInput

AVRO: Final = "avro"
PROTOBUF: Final = "protobuf"
DEBEZIUM: Final = "debezium"
MOST_BYTES = 512 * 1024
"""The limit for all schemas of a contract: they are part of the table's metadata."""

Unpack: TypeAlias = Callable[[bytes], Mapping[str, Any]]
"""A value's fields as Python values; ``msgspec.DecodeError`` if it does not fit its format."""


@dataclass(frozen=True, slots=True)
class ValueFormat:
    """An encoding other than JSON."""

    name: Literal["avro", "protobuf", "debezium"]
    schemas: Mapping[str, str]
    """By id, or under ``""`` for values without one: an Avro schema, descriptors as base64, or the
    settings of Debezium's envelopes."""
    message: str = ""
    """Protobuf: the full name of the message."""


def format_of(text: str | None) -> ValueFormat | None:
    """A format from a table's properties; None for JSON."""
    return msgspec.json.decode(text, type=ValueFormat) if text else None


def format_text(value_format: ValueFormat | None) -> str:
    return "" if value_format is None else msgspec.json.encode(value_format).decode()


def extended(
    known: ValueFormat | None, new: ValueFormat, schema_id: int | None = None
) -> ValueFormat:
    """``new``, with the known schemas of other ids if it has an id itself."""
    if schema_id is not None and not 0 <= schema_id < 2**32:
        raise InvalidInput(f"schema id {schema_id} is not between 0 and {2**32 - 1}")
    schemas = {"" if schema_id is None else str(schema_id): new.schemas[""]}
    same = known is not None and (known.name, known.message) == (new.name, new.message)
    if known is not None and same and schema_id is not None:
        schemas = {key: each for key, each in known.schemas.items() if key} | schemas
    if sum(map(len, schemas.values())) > MOST_BYTES:
        raise InvalidInput(f"the schemas have more than {MOST_BYTES:,} bytes")
    return ValueFormat(new.name, schemas, new.message)
