"""Stored batches as Kafka clients get them; what was converted is kept for the next reader."""

from __future__ import annotations

from collections import OrderedDict
from struct import Struct
from typing import Any

from nexo.batch import decode
from nexo.batch.kafka_write import to_kafka
from nexo.storage.header import SIZE, Flags, parse

KEPT_BYTES = 16 * 1024**2
_KAFKA = int(Flags.KAFKA)
_BASE = Struct(">q")
_AFTER_BASE = _BASE.size
_AFTER_LENGTH = 12
_AFTER_EPOCH = 16
_NO_EPOCH = bytes(4)


class Encodings:
    """Converts batches, and keeps the latest of them."""

    def __init__(self, limit_bytes: int = KEPT_BYTES) -> None:
        self._kept: OrderedDict[tuple[int, int, int], bytes] = OrderedDict()
        self._size = 0
        self._limit = limit_bytes

    def parts(self, entry: Any) -> list[Any]:
        """One stored entry as parts of Kafka's bytes, at its offset."""
        header = parse(entry)
        if not header.flags & _KAFKA:
            return [self._converted(entry, (header.crc, header.base_offset, header.length))]
        body = memoryview(entry)[SIZE:]
        length = bytes(body[_AFTER_BASE:_AFTER_LENGTH])
        size = _AFTER_LENGTH + int.from_bytes(length, "big")
        # The batch as it came, but for two fields that its CRC does not cover.
        base = _BASE.pack(header.base_offset)
        return [base + length + _NO_EPOCH, body[_AFTER_EPOCH:size]]

    def _converted(self, entry: Any, key: tuple[int, int, int]) -> bytes:
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
            return found
        found = to_kafka(decode(entry))
        self._kept[key] = found
        self._size += len(found)
        while self._size > self._limit and self._kept:
            self._size -= len(self._kept.popitem(last=False)[1])
        return found
