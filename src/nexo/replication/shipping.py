"""Ships operations as numbered objects: one put in flight, the next group gathers meanwhile.

The numbers are the fence. A put is create-if-absent, so of two writers that try the same
number one is refused; whoever is refused by another's object has lost the lead for good, and
confirms nothing from then on. A put whose outcome is unknown is tried again with the same bytes:
if the number then holds exactly these bytes, it was this put that had succeeded.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from nexo.replication.log_objects import FORMAT, LogObject, Mark
from nexo.replication.objects import log_key
from nexo.storage.disk.recording import FileWritten, Operation

MAX_GROUP_BYTES = 8 * 1024 * 1024
"""Data in one object, unless a single turn has more."""
_OPERATION_BYTES = 64
"""Bytes that an operation costs beside its data."""


class LeadLost(Exception):
    """Another writer has taken the lead: nothing may be confirmed any more."""


class Put(NamedTuple):
    """An object to create if absent."""

    key: str
    data: bytes
    ticket: int
    """Of the last operations in it."""


@dataclass(frozen=True, slots=True)
class _Gathered:
    ticket: int
    operations: list[Operation]
    size_bytes: int


class Shipper:
    """The writing side. The owner does the puts that it is given and reports their outcome."""

    def __init__(self, writer: str, end: Mark, reset: str = "") -> None:
        """The first object takes the lead at the ``end`` of what was read.

        If that put is refused, the log had not ended: read on, and make another shipper.
        ``reset`` is the key of a manifest: see `nexo.replication.log_objects.LogObject`.
        """
        self.epoch = end.epoch + 1
        self.number = end.number
        self.fenced_by: LogObject | None = None
        self.shipped = 0
        """Everything up to this ticket is in the store."""
        self.leads = False
        """Whether an object of this writer is in the store."""
        self.writer = writer
        self._ticket = 0
        self._waiting: deque[_Gathered] = deque()
        self._in_flight: Put | None = None
        self._reset = reset
        self._cut = -1
        self.waiting_bytes = 0
        """What is gathered and not in flight."""

    def cut(self, ticket: int) -> None:
        """Have an object end with this ticket: what is gathered later goes into the next one."""
        self._cut = ticket

    def discard(self) -> None:
        """Forget what is gathered and not in flight: it will never be shipped."""
        self._waiting.clear()
        self.waiting_bytes = 0

    def gather(self, operations: list[Operation]) -> int:
        """Take operations in, in order; returns the ticket that `shipped` will reach."""
        self._check()
        self._ticket += 1
        gathered = _Gathered(self._ticket, operations, _size(operations))
        self._waiting.append(gathered)
        self.waiting_bytes += gathered.size_bytes
        return self._ticket

    def next_put(self, now_ms: int) -> Put | None:
        """What to put now: nothing while a put is in flight, or there is no need.

        A put whose outcome is unknown is to be tried again as it is.
        """
        self._check()
        if self._in_flight is not None or (self.leads and not self._waiting):
            return None
        ticket, operations = self._take_group() if self.leads else (self.shipped, [])
        reset = "" if self.leads else self._reset
        group = LogObject(self.epoch, self.writer, operations, now_ms, reset)
        self._in_flight = Put(log_key(self.number), FORMAT.pack(group, self.number), ticket)
        return self._in_flight

    def created(self) -> None:
        """The put in flight created its object."""
        self._check()
        assert self._in_flight is not None, "no put is in flight"
        self.shipped, self._in_flight = self._in_flight.ticket, None
        self.number += 1
        self.leads = True

    def refused(self, found: bytes) -> None:
        """The put in flight met an object: its own, from a try whose reply was lost, or another's.

        Raises `LeadLost` if it is another's.
        """
        self._check()
        assert self._in_flight is not None, "no put is in flight"
        if found == self._in_flight.data:
            self.created()
            return
        self.fenced_by = FORMAT.unpack(found, self.number)
        self.discard()
        self._check()

    def is_free(self, number: int, found: bytes | None) -> bool:
        """Whether the writer's next number holds nothing, or its own; False if it has moved on.

        Raises `LeadLost` if another writer's object is there.
        """
        self._check()
        if number != self.number:
            return False
        if found is None or (self._in_flight is not None and found == self._in_flight.data):
            return True
        self.fenced_by = FORMAT.unpack(found, number)
        self.discard()
        self._check()
        return False

    def _take_group(self) -> tuple[int, list[Operation]]:
        first = self._waiting.popleft()
        ticket, operations, size = first.ticket, list(first.operations), first.size_bytes
        while ticket != self._cut and self._fits(size):
            gathered = self._waiting.popleft()
            ticket, size = gathered.ticket, size + gathered.size_bytes
            operations += gathered.operations
        self.waiting_bytes -= size
        return ticket, operations

    def _fits(self, size_bytes: int) -> bool:
        waiting = self._waiting
        return bool(waiting) and size_bytes + waiting[0].size_bytes <= MAX_GROUP_BYTES

    def _check(self) -> None:
        if self.fenced_by is not None:
            raise LeadLost(
                f"{self.fenced_by.writer} leads with epoch {self.fenced_by.epoch} since object "
                f"{self.number}: this writer must stop"
            )


def _size(operations: list[Operation]) -> int:
    data = sum(len(each.data) for each in operations if isinstance(each, FileWritten))
    return data + _OPERATION_BYTES * len(operations)
