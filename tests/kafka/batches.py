"""Kafka batches, sound and otherwise."""

from __future__ import annotations

from struct import Struct
from typing import Any

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from google_crc32c import value as crc32c

from nexo.dialects.kafka.format.codec import KafkaMessage


def batch(*values: bytes | None, key: bytes | None = None, compression: int = 0) -> bytes:
    """A batch as clients make it."""
    builder = DefaultRecordBatchBuilder(2, compression, 0, -1, -1, -1, 1 << 30)
    for offset, value in enumerate(values):
        builder.append(offset, 1_000, key, value, [])
    return bytes(builder.build())


def keyed(*keys: bytes | None) -> bytes:
    """A batch of records with these keys."""
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 30)
    for offset, key in enumerate(keys):
        builder.append(offset, 1_000, key, b"v", [])
    return bytes(builder.build())


def timed(*times_ms: int) -> bytes:
    """A batch of records with these times."""
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 30)
    for offset, time_ms in enumerate(times_ms):
        builder.append(offset, time_ms, None, b"v", [])
    return bytes(builder.build())


def with_records(
    records: bytes, count: int, compression: int = 0, last_delta: int | None = None
) -> bytes:
    """A batch with any bytes as its records, and a CRC that holds."""
    last = count - 1 if last_delta is None else last_delta
    after = _AFTER_CRC.pack(compression, last, 1_000, 1_000, -1, -1, -1, count) + records
    head = _UP_TO_CRC.pack(0, 9 + len(after), 0, 2, crc32c(after))
    return head + after


def produced(topic: str, *batches: bytes, acks: int = -1) -> KafkaMessage:
    """A request with a batch for each partition."""
    rows: list[dict[str, Any]] = [{"index": i, "records": each} for i, each in enumerate(batches)]
    topics = [{"name": topic, "partitions": rows}]
    return {"transactional_id": None, "acks": acks, "timeout_ms": 9_000, "topics": topics}


def errors(answer: KafkaMessage) -> list[int]:
    """The errors of a topic's partitions."""
    return [row["error"] for row in answer["topics"][0]["partitions"]]


_UP_TO_CRC, _AFTER_CRC = Struct(">qiibI"), Struct(">hiqqqhii")
