"""Reads the log of another writer in order, and claims the lead at its end."""

from __future__ import annotations

from nexo.errors import Corrupt
from nexo.replication import groups
from nexo.replication.groups import LogObject
from nexo.replication.objects import log_key
from nexo.replication.shipping import Shipper


class Follower:
    """The reading side. The owner gets the object of `key`, gives it to `take`, and applies it."""

    def __init__(self, number: int = 0, epoch: int = 0) -> None:
        """``number`` is the first that is not in the files yet: 0, or a base's."""
        self.number = number
        self.epoch = epoch
        self.writer = ""
        """Who wrote the last object."""
        self.time_ms = 0

    @property
    def key(self) -> str:
        """The object to get next."""
        return log_key(self.number)

    def take(self, data: bytes) -> LogObject:
        """Verify the next object; its operations are to be applied in order.

        Raises `Corrupt` if it is damaged, another number's, or of an epoch that is over.
        """
        group = groups.unpack(data, self.number)
        if group.epoch < self.epoch or (group.epoch == self.epoch and self._is_other(group)):
            raise Corrupt(
                f"log object {self.number} is of {group.writer} in epoch {group.epoch}, "
                f"though epoch {self.epoch} of {self.writer} had begun"
            )
        self.number += 1
        self.epoch, self.writer, self.time_ms = group.epoch, group.writer, group.time_ms
        return group

    def _is_other(self, group: LogObject) -> bool:
        return self.writer not in {"", group.writer}

    def claim(self, writer: str) -> Shipper:
        """A shipper whose first object takes the lead, at the end of what was read.

        If that put is refused, the log had not ended: read on, and claim again.
        """
        return Shipper(writer, self.epoch + 1, self.number, claim=True)
