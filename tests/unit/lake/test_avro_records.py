"""Avro files read without fastavro hold what fastavro reads from them."""

from __future__ import annotations

import io
from typing import Any

import fastavro
import pytest

from nexo.lake import avro_records
from nexo.lake.avro_records import records

SCHEMA: dict[str, Any] = {
    "type": "record", "name": "entry", "namespace": "of.tests", "fields": [
        {"name": "status", "type": "int"},
        {"name": "snapshot", "type": ["null", "long"], "default": None},
        {"name": "path", "type": "string"},
        {"name": "is_live", "type": "boolean"},
        {"name": "ratio", "type": "double"},
        {"name": "share", "type": "float"},
        {"name": "uuid", "type": {"type": "fixed", "name": "uuid", "size": 4}},
        {"name": "format", "type": {"type": "enum", "name": "format", "symbols": ["ORC", "AVRO"]}},
        {"name": "head", "type": {"type": "map", "values": "bytes"}},
        {"name": "bounds", "type": ["null", {"type": "array", "items": {
            "type": "record", "name": "pair", "fields": [
                {"name": "key", "type": "int"}, {"name": "value", "type": "bytes"}]}}]},
        {"name": "other", "type": ["null", "of.tests.pair"]},
        {"name": "next", "type": ["null", "entry"]},
    ],
}  # fmt: skip


def entry(n: int) -> dict[str, Any]:
    pairs = [{"key": -key, "value": b"\xff" * key} for key in range(n)]
    return {
        "status": n - 3, "snapshot": None if n % 2 else 2**62 + n, "path": f"file:///ü/{n}",
        "is_live": bool(n % 2), "ratio": n / 3, "share": n / 4, "uuid": bytes([n]) * 4,
        "format": ("ORC", "AVRO")[n % 2], "head": {f"k{n}": b"v" * n}, "bounds": pairs or None,
        "other": pairs[0] if pairs else None, "next": entry(n - 5) if n >= 5 else None,
    }  # fmt: skip


def written(count: int, codec: str = "null") -> bytes:
    """A file of several blocks."""
    stream = io.BytesIO()
    fastavro.writer(stream, SCHEMA, map(entry, range(count)), codec, sync_interval=300)
    return stream.getvalue()


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2"])
def test_records_are_those_that_were_written(codec: str) -> None:
    assert records(written(0, codec)) == []
    assert records(written(20, codec)) == [entry(n) for n in range(20)]


def test_large_files_are_read_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro_records, "SMALL_BYTES", 100)
    assert records(written(20)) == [entry(n) for n in range(20)]


@pytest.mark.parametrize("codec", ["null", "deflate"])
def test_a_file_that_was_cut_is_an_error(codec: str) -> None:
    whole = written(8, codec)
    ends = [at for at in range(len(whole)) if _holds_fewer(whole[:at])]
    assert len(ends) < 10, "only where a block ends"


def _holds_fewer(content: bytes) -> bool:
    """Whether this can be read; any error must be one that says that it cannot."""
    try:
        return len(records(content)) < 8
    except (ValueError, EOFError):
        return False


def test_damage_is_an_error_or_other_values_but_never_another_failure() -> None:
    whole = bytearray(written(3))
    for at in range(len(whole)):
        for flipped in (0x01, 0x80, 0xFF):
            whole[at] ^= flipped
            _holds_fewer(bytes(whole))
            whole[at] ^= flipped


def test_what_is_no_avro_file_is_an_error() -> None:
    with pytest.raises(ValueError, match="not an Avro file"):
        records(b"PAR1 and more of it")
