"""Stored batches as Kafka clients get them; what was converted is kept for the next reader."""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from struct import Struct
from typing import Any, TypeAlias

from nexo.batch import MAX_BODY_BYTES, decode
from nexo.batch.kafka import parse_kafka
from nexo.batch.kafka_check import check_records
from nexo.batch.kafka_write import gap, to_kafka
from nexo.errors import InvalidOption, NexoError, PayloadTooLarge
from nexo.storage.header import SIZE, Flags, parse

KEPT_BYTES = 16 * 1024**2
_KAFKA, _SOUND = int(Flags.KAFKA), int(Flags.SOUND)
_CHECKED = 10_000
"""Batches whose check is remembered; only those that an older version stored need one."""
_BASE = Struct(">q")
_AFTER_BASE = _BASE.size
_AFTER_LENGTH = 12
_AFTER_EPOCH = 16
_NO_EPOCH = bytes(4)


log = logging.getLogger("nexo.stream")

EntryKey: TypeAlias = tuple[int, int, int]
"""The CRC, base offset and length of an entry."""


class Encodings:
    """Converts batches, and keeps the latest of them."""

    def __init__(self, limit_bytes: int = KEPT_BYTES) -> None:
        self._kept: OrderedDict[EntryKey, bytes] = OrderedDict()
        self._size = 0
        self._limit = limit_bytes
        self._checked: OrderedDict[EntryKey, bool] = OrderedDict()

    def parts(self, entry: Any) -> list[Any]:
        """One stored entry as parts of Kafka's bytes, at its offset.

        A batch of a Kafka client that others could not read is left out: they would stop there.
        """
        header = parse(entry)
        key = header.crc, header.base_offset, header.length
        if not header.flags & _KAFKA:
            return [self._converted(entry, key)]
        body = memoryview(entry)[SIZE:]
        if not (header.flags & _SOUND or self._is_sound(body, key)):
            return [gap(header.base_offset, header.span)]
        length = bytes(body[_AFTER_BASE:_AFTER_LENGTH])
        size = _AFTER_LENGTH + int.from_bytes(length, "big")
        # The batch as it came, but for two fields that its CRC does not cover.
        base = _BASE.pack(header.base_offset)
        return [base + length + _NO_EPOCH, body[_AFTER_EPOCH:size]]

    def _is_sound(self, body: memoryview, key: EntryKey) -> bool:
        found = self._checked.get(key)
        if found is None:
            found = self._checked[key] = _readable(body, key)
            if len(self._checked) > _CHECKED:
                self._checked.popitem(last=False)
        return found

    def _converted(self, entry: Any, key: EntryKey) -> bytes:
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


def _readable(body: memoryview, key: EntryKey) -> bool:
    """Whether Kafka's clients can read the records; what cannot be known counts as read."""
    try:
        deque(check_records(parse_kafka(body), body, MAX_BODY_BYTES), maxlen=0)
    except (InvalidOption, PayloadTooLarge):
        return True
    except NexoError as error:
        log.warning("Kafka clients skip the batch at offset %d: %s", key[1], error.message)
        return False
    return True
