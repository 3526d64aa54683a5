"""What a log object holds: file operations of one writer, or its claim to lead.

A group is a sealed frame (`nexo.storage.sealed`) whose mark is its number. Its bytes are a pure
function of writer, epoch, number and operations, and writers differ: two objects with the same
bytes are the same put.
"""

from __future__ import annotations

import msgspec

from nexo.errors import Corrupt
from nexo.storage import sealed
from nexo.storage.disk.recording import Operation

MAGIC = b"NEXOGRP\0"


class LogObject(msgspec.Struct, frozen=True, array_like=True):
    """One object of the log."""

    epoch: int
    """Rises with every claim."""
    writer: str
    """Names one process; never used again."""
    operations: list[Operation]
    """Empty for a claim."""
    time_ms: int = 0
    """The writer's clock, for a restore to a chosen time; nothing is decided by it."""
    reset: str = ""
    """Of a claim: the key of a manifest that the files are to be made like, because the claimant
    goes on with files of its own that hold more than the log."""


class Mark(msgspec.Struct, frozen=True):
    """How far the log was read: the next number, with epoch and writer of the object before it."""

    number: int = 0
    epoch: int = 0
    writer: str = ""

    def take(self, data: bytes) -> tuple[LogObject, Mark]:
        """Verify the next object, whose operations are to be applied; returns the mark after it.

        Raises `Corrupt` if it is damaged, another number's, or of an epoch that is over.
        """
        group = unpack(data, self.number)
        is_other = self.writer not in {"", group.writer}
        if group.epoch < self.epoch or (group.epoch == self.epoch and is_other):
            raise Corrupt(
                f"log object {self.number} is of {group.writer} in epoch {group.epoch}, "
                f"though epoch {self.epoch} of {self.writer} had begun"
            )
        return group, Mark(self.number + 1, group.epoch, group.writer)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(LogObject).decode


def pack(group: LogObject, number: int) -> bytes:
    """The bytes of a log object."""
    return sealed.pack(MAGIC, _encode(group), number)


def unpack(data: bytes, number: int) -> LogObject:
    """The group of a number; `Corrupt` if the object is damaged or another one's."""
    payload, mark = sealed.unpack(MAGIC, data)
    if mark != number:
        raise Corrupt(f"log object {number} says that it is {mark}: restore from an earlier base")
    try:
        return _decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Corrupt(f"log object {number} cannot be decoded: {error}") from None
