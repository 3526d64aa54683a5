"""Values in a format other than JSON, as Python values.

Schema registries put five bytes before each value: a zero and the schema's id. A format with ids
reads a value with the schema of its id; one without ids has a single schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from typing import Any

import msgspec

from nexo.lake.typed.formats import AVRO, Unpack, ValueFormat

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
