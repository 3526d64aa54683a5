"""Avro files made of records that are encoded already.

A commit writes two small Avro files whose content is mostly that of the previous commit. fastavro's
writer encodes the schema and every record again each time; here both are kept encoded.

A file is ``Obj\\x01``, a map of metadata (the schema is part of it), 16 bytes that mark the ends of
blocks, then blocks: how many records, how many bytes, the records, the mark.
"""

from __future__ import annotations

import io
import json
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import fastavro

from nexo.batch.varint import varint

_MAGIC = b"Obj\x01"
_MARK_BYTES = 16
_COMPRESSED_FROM = 16 * 1024
"""Smaller blocks are stored as they are."""


@dataclass(frozen=True, slots=True)
class RecordSchema:
    """A schema, ready to encode records with."""

    text: bytes
    parsed: Any

    @staticmethod
    def of(schema: Any) -> RecordSchema:
        text = json.dumps(schema, separators=(",", ":")).encode()
        return RecordSchema(text, fastavro.parse_schema(schema))

    def encode(self, record: Mapping[str, Any]) -> bytes:
        buffer = io.BytesIO()
        fastavro.schemaless_writer(buffer, self.parsed, record)
        return buffer.getvalue()


def container(schema: RecordSchema, head: Mapping[str, str], records: Sequence[bytes]) -> bytes:
    """A file of encoded records; ``head`` is its metadata."""
    content, codec = b"".join(records), b"null"
    if len(content) >= _COMPRESSED_FROM:
        content, codec = zlib.compress(content, wbits=-zlib.MAX_WBITS), b"deflate"
    known = {"avro.schema": schema.text, "avro.codec": codec}
    known |= {name: text.encode() for name, text in head.items()}
    mark = os.urandom(_MARK_BYTES)
    parts = [_MAGIC, varint(len(known))]
    for name, value in known.items():
        parts += (_bytes(name.encode()), _bytes(value))
    parts += (varint(0), mark)
    if records:
        parts += (varint(len(records)), _bytes(content), mark)
    return b"".join(parts)


def _bytes(content: bytes) -> bytes:
    return varint(len(content)) + content
