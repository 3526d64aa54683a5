"""Avro files that we put together are read like any other."""

from __future__ import annotations

import io
from typing import Any

import fastavro
import pytest

from nexo.lake.avro import RecordSchema, container

SCHEMA = {
    "type": "record",
    "name": "thing",
    "fields": [
        {"name": "n", "type": "long", "field-id": 1},
        {"name": "text", "type": ["null", "string"], "default": None},
    ],
}


@pytest.mark.parametrize("count", [0, 1, 63, 64, 5_000])
def test_a_file_of_encoded_records_is_read_by_another_reader(count: int) -> None:
    schema = RecordSchema.of(SCHEMA)
    records: list[dict[str, Any]] = [
        {"n": n * 10**9, "text": "x" * (n % 200) or None} for n in range(count)
    ]
    content = container(schema, {"own": "ü"}, [schema.encode(each) for each in records])
    found = fastavro.reader(io.BytesIO(content))
    assert list(found) == records
    assert found.metadata["own"] == "ü"
    assert found.codec == ("deflate" if count > 1_000 else "null")
    written: Any = found.writer_schema
    assert written["fields"][0]["field-id"] == 1


def test_fields_that_a_record_lacks_have_their_defaults() -> None:
    schema = RecordSchema.of(SCHEMA)
    content = container(schema, {}, [schema.encode({"n": 1, "of ours": b""})])
    assert list(fastavro.reader(io.BytesIO(content))) == [{"n": 1, "text": None}]
