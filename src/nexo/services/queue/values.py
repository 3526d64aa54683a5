"""The values of jobs: the next ones in memory, all of them in the log.

Pushed values stay in memory, within the broker's budget, until they are delivered; the rest
is read from the log when needed, some entries ahead. A million waiting jobs cost their
bookkeeping, not their bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from nexo.brokers.queue.places import JobPlace, Places
from nexo.brokers.queue.records import Moved, Pushed, decode_record
from nexo.errors import Corrupt
from nexo.model.blocks import block_count, cut
from nexo.storage.header import parse
from nexo.storage.journal import Journal, decode

MEMORY_BYTES = 64 * 1024 * 1024
_OVERHEAD_BYTES = 200
"""What a cached block costs besides its bytes."""
_NOWHERE = -1
"""The offset of values that are not written yet."""
_READ_AHEAD_BYTES = 128 * 1024
_READ_KEPT_BYTES = 1024 * 1024


@dataclass(slots=True)
class Budget:
    """Memory that all queues of the broker share for values."""

    free_bytes: int = MEMORY_BYTES


BlockHeaders: TypeAlias = list[bytes | None] | None
"""Headers of the jobs of a block, one item per job."""


class JobSlice(NamedTuple):
    """Neighbouring jobs whose values lie in one block."""

    first: int
    jobs: int
    pushed_ms: int
    ends: bytes
    content: bytes
    headers: BlockHeaders = None
    """One per job, if any job has headers."""


class Values:
    """Finds the values of one queue's jobs."""

    def __init__(self, journal: Journal, places: Places, budget: Budget) -> None:
        self.places = places
        self._log = journal.log
        self._budget = budget
        self._kept: dict[int, tuple[bytes, BlockHeaders]] = {}
        self._unwritten: dict[int, Pushed] = {}
        """Pushes that the disk has refused so far: their values are nowhere else."""
        self._read: dict[int, Pushed | Moved] = {}
        """Records that were read from the log recently, by offset."""
        self._read_bytes = 0

    def add(self, pushed: Pushed, offset: int) -> None:
        """Record where a push was written, and cache its values if there is room."""
        self.places.add(pushed.base, offset, pushed.now_ms)
        cost = _cost(pushed.block, pushed.headers)
        if not pushed.due_ms and cost <= self._budget.free_bytes:
            self._budget.free_bytes -= cost
            self._kept[pushed.base] = pushed.block, pushed.headers

    def moved(self, record: Moved, offset: int) -> None:
        """Record that values were copied forward."""
        for job, pushed_ms in zip(record.jobs, record.pushed_ms, strict=True):
            self.places.move(job, offset, pushed_ms)

    def hold(self, pushes: Iterable[Pushed]) -> None:
        """Keep the values of exactly these pushes, which wait to be written."""
        self._unwritten = {push.base: push for push in pushes}

    def slice_at(self, lo: int, hi: int) -> JobSlice:
        """The values of jobs from ``lo`` on, as far as they lie together; for a delivery.

        A block leaves memory once its end is reached: it is rarely needed again.
        """
        base, offset, pushed_ms = self._find(lo)
        block, headers, index, usable = self._block(lo, base, offset)
        count = min(hi - lo, usable)
        if count == usable:
            self._let_go(base)
        ends, content = cut(block, index, index + count)
        some = None if headers is None else headers[index : index + count]
        return JobSlice(lo, count, pushed_ms, ends, content, some)

    def one(self, job: int) -> tuple[bytes, int, bytes | None]:
        """One job's value, when it was pushed, and its headers."""
        base, offset, pushed_ms = self._find(job)
        block, headers, index, _ = self._block(job, base, offset)
        return cut(block, index, index + 1)[1], pushed_ms, headers[index] if headers else None

    def _find(self, job: int) -> JobPlace:
        for push in self._unwritten.values():
            if push.base <= job < push.base + push.count:
                return JobPlace(push.base, _NOWHERE, push.now_ms)
        return self.places.find(job)

    def _block(self, job: int, base: int, offset: int) -> tuple[bytes, BlockHeaders, int, int]:
        """The block and headers that hold a job, its index there, and how many follow it."""
        if offset == _NOWHERE:
            push = self._unwritten[base]
            found = push.block, push.headers
        elif base in self._kept:
            found = self._kept[base]
        else:
            record = self._read.get(offset) or self._read_at(offset)
            if isinstance(record, Moved):
                return record.block, record.headers, record.jobs.index(job), 1
            found, base = (record.block, record.headers), record.base
        block, headers = found
        return block, headers, job - base, block_count(block) - (job - base)

    def _read_at(self, offset: int) -> Pushed | Moved:
        """Read the entry at ``offset`` and some after it, which are likely to be next."""
        data, at = self._log.read(offset, _READ_AHEAD_BYTES), 0
        self._read_bytes += len(data)
        if self._read_bytes > _READ_KEPT_BYTES:
            self._read.clear()
            self._read_bytes = len(data)
        while at < len(data):
            head = parse(data, at)
            entry = data[at : at + head.length]
            for number, raw in enumerate(decode(entry, head.count)[1], head.base_offset):
                record = decode_record(raw)
                if isinstance(record, Pushed | Moved):
                    self._read[number] = record
            at += head.length
        if offset not in self._read:
            raise Corrupt(f"no values at offset {offset} of a queue's log")
        return self._read[offset]

    def _let_go(self, base: int) -> None:
        kept = self._kept.pop(base, None)
        if kept is not None:
            self._budget.free_bytes += _cost(*kept)

    def forget(self) -> None:
        """Release all memory."""
        for base in list(self._kept):
            self._let_go(base)
        self._read.clear()


def _cost(block: bytes, headers: BlockHeaders) -> int:
    """How much of the budget a cached block takes."""
    size = len(block) + _OVERHEAD_BYTES
    return size + sum(len(each or b"") for each in headers) if headers else size
