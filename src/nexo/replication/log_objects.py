"""What a log object holds: file operations of one writer, or its claim to lead.

The bytes of a log object are a pure function of writer, epoch, number and operations, and writers
differ: two objects with the same bytes are the same put.
"""

from __future__ import annotations

import msgspec

from nexo.errors import Corrupt
from nexo.replication.objects import ObjectFormat
from nexo.storage.disk.recording import Operation


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
    """Claim only: key of the manifest to restore, because the claimant's files are ahead of the
    log."""


def server_name(writer: str) -> str:
    """The data folder whose process wrote."""
    return writer.partition("/")[0]


def term_name(writer: str) -> str:
    """What the processes of one server in one term have in common: ``server/term``."""
    return writer.rpartition("/")[0] or writer


FORMAT = ObjectFormat(b"NEXOGRP\0", LogObject, "log object")


class Mark(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far the log was read: the next number, with epoch and writer of the object before it."""

    number: int = 0
    epoch: int = 0
    writer: str = ""

    def take(self, data: bytes) -> tuple[LogObject, Mark]:
        """Verify the next object, whose operations are to be applied; returns the mark after it.

        Raises `Corrupt` if it is damaged, another number's, or of an epoch that is over.
        """
        group = FORMAT.unpack(data, self.number)
        is_other = self.writer not in {"", group.writer}
        if group.epoch < self.epoch or (group.epoch == self.epoch and is_other):
            raise Corrupt(
                f"log object {self.number} is of {group.writer} in epoch {group.epoch}, "
                f"though epoch {self.epoch} of {self.writer} had begun"
            )
        return group, Mark(self.number + 1, group.epoch, group.writer)
