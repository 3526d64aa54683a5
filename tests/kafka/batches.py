"""Kafka batches, sound and otherwise."""

from __future__ import annotations

import time

from aiokafka.record.default_records import DefaultRecordBatchBuilder


def batch(*values: bytes | None, key: bytes | None = None, compression: int = 0) -> bytes:
    """A batch as clients make it."""
    builder = DefaultRecordBatchBuilder(2, compression, 0, -1, -1, -1, 1 << 30)
    for offset, value in enumerate(values):
        builder.append(offset, int(time.time() * 1_000), key, value, [])
    return bytes(builder.build())
