"""A state's journal: records in a log, and the snapshot they apply to.

The body of an entry is::

    int64     synced: bytes of this segment known to be durable when the entry was written
    int32     n+1 times: where each record begins in what follows, and where the last one ends
    bytes     the records, and zeros up to a multiple of 8 with what follows
    uint32    the second sum of all before it (`nexo.storage.mending`)

The producer id in its header identifies the boot of the machine that wrote it. Entries with
the control flag belong to the journal: without records a *sync mark*, with records a *copy*
of the entry before it.

**Damage or loss?** Power loss may keep a later write and lose an earlier one. A damaged
entry was durable if a later entry says so in ``synced``, or if a later entry was written
since this boot, during which no power was lost. Then only that entry is lost: it is
reported, and the entries on both sides are used. Otherwise neither it nor anything after it
was ever synced, so none of it was acknowledged: the tail is cut off there, and a copy is
kept.

A sync mark is written once a journal is synced and idle (`Journal.settle`), so that its
last entries are covered as well. Records that later ones depend on are written twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from struct import Struct, pack, unpack_from
from typing import Any

from google_crc32c import value

from nexo.errors import NexoError
from nexo.storage.header import ALIGN, SIZE, Flags, parse, seal
from nexo.storage.log import SEGMENT_BYTES, SegmentedLog
from nexo.storage.mending import SUM_BYTES, second_sum
from nexo.storage.ports import Files
from nexo.storage.segment import Damage
from nexo.storage.snapshot import Snapshots

_SYNCED, _ONE = Struct("<q"), Struct("<qii")
_SUMMED, _CONTROL = int(Flags.SUMMED), int(Flags.CONTROL)
"""Plain numbers: combining members of an enum costs as much as a checksum."""
_SHOWN = 10
DAMAGED = "damaged"
"""The reason for losing an entry that fails its check."""

logger = logging.getLogger("nexo.storage")


@dataclass(frozen=True, slots=True)
class Loss:
    """Offsets of a journal whose records are lost, and why."""

    offset: int
    next_offset: int
    reason: str

    def __str__(self) -> str:
        return f"offsets {self.offset} to {self.next_offset - 1}: {self.reason}"


@dataclass(slots=True)
class Recovery:
    """The findings of a journal's recovery."""

    snapshot: bytes | None
    records: Iterator[tuple[int, bytes]]
    """Offset and bytes of each record since the snapshot."""
    losses: list[Loss] = field(default_factory=list)
    """The losses; complete once ``records`` is exhausted."""

    def replay(self, apply: Callable[[int, bytes], None]) -> None:
        """Apply every record. One that fails to apply because others are missing is lost too."""
        for offset, record in self.records:
            try:
                apply(offset, record)
            except Exception as error:  # whatever the gap caused, the rest must be served
                logger.exception("the record at offset %d cannot be applied", offset)
                self.losses.append(Loss(offset, offset + 1, f"cannot be applied: {error!r}"))


class Journal:
    """Records since the last checkpoint. Call `recover`, exhaust it, then append."""

    def __init__(self, files: Files, folder: Path, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        self.log = SegmentedLog(files, folder, segment_bytes=segment_bytes, sync_on_roll=True)
        self._files = files
        self._snapshots = Snapshots(files, folder)
        self._boot_id = value(files.boot_id.encode())
        self._unsettled = False
        self._seen_bytes = 0

    @property
    def size_bytes(self) -> int:
        """Bytes on disk, without snapshots."""
        return self.log.size_bytes

    # -- writing --------------------------------------------------------------

    def append(self, records: Sequence[bytes], now_ms: int, *, twice: bool = False) -> int:
        """Write records as one entry, which recovery finds whole or not at all.

        Returns the first offset. Not durable before the next sync. ``twice`` adds a copy, for
        records that later ones depend on; the copy is left out if there is no room for it.
        """
        if not records:
            return self.log.next_offset
        offset = self._append(records, now_ms)
        if twice:
            with suppress(NexoError, OSError):
                self._append(records, now_ms, _CONTROL)
        if not self._unsettled:
            self._unsettle()
        return offset

    def _unsettle(self) -> None:
        self._unsettled = True
        self._files.on_unsettled(self)

    def _append(self, records: Sequence[bytes], now_ms: int, flags: int = 0) -> int:
        count = len(records)
        body = encode(records, self.log.synced_bytes)
        head = seal(
            body, count=count, span=count or 1, first_ms=now_ms, last_ms=now_ms,
            flags=flags | _SUMMED, producer_id=self._boot_id,
        )  # fmt: skip
        return self.log.append(head, body)

    def settle(self) -> bool:
        """Write the sync mark if everything is synced and nothing was written since the last call.

        Returns whether nothing is left to do. The mark is durable with the next sync.
        """
        if not self._unsettled:
            return True
        size = self.log.size_bytes
        quiet, self._seen_bytes = size == self._seen_bytes, size
        if not quiet or not self.log.is_synced:
            return False
        self._unsettled = False
        with suppress(NexoError, OSError):  # a full disk: what was written stays as it is
            self._append((), 0, _CONTROL)
        return True

    def checkpoint(self, payload: bytes, keep_from: int | None = None) -> None:
        """Make ``payload``, the state after all records so far, the starting point of recovery.

        Durable on return. Drops records up to the older of two snapshots, so that either may be
        damaged; records from ``keep_from`` on are always kept.
        """
        self.log.sync()
        self._snapshots.save(self.log.next_offset, payload)
        older, *newer = self._snapshots.offsets()
        if newer:
            needed = older if keep_from is None else min(older, keep_from)
            self.log.drop_before(max(self.log.start_offset, needed))

    def begin_segment(self) -> None:
        """Start a new segment, so that the next checkpoint can drop everything before it."""
        self.log.roll()
        self._append((), 0, _CONTROL)  # that checkpoint needs an offset of its own

    def finish(self) -> None:
        """Sync and close, after writing a sync mark if one is due (durable with the next sync)."""
        if self._unsettled:
            with suppress(NexoError, OSError):  # the flusher already knows of a failed sync
                self.log.sync()
                self._append((), 0, _CONTROL)
        self.close()

    def close(self) -> None:
        """Close the files. Does not sync."""
        self._unsettled = False
        self.log.close()

    def abandon(self) -> None:
        """Close a folder that was set aside, without touching its files."""
        self._unsettled = False
        self.log.abandon()

    # -- recovery -------------------------------------------------------------

    def recover(self) -> Recovery:
        """The newest valid snapshot, the readable records since, and what is lost."""
        offset, payload, damaged = self._snapshots.load()
        log, losses = self.log, []
        end = max(offset, *damaged) if damaged else offset
        if end > log.next_offset:
            losses.append(Loss(log.next_offset, end, "the log ends before its snapshot"))
            log.advance_to(end)
        if offset < log.start_offset:
            what = "every snapshot is damaged" if damaged else "the snapshot is older"
            losses.append(Loss(offset, log.start_offset, f"dropped before, and {what}"))
            offset = log.start_offset
        for loss in losses:
            logger.error("%s: %s", log.path, loss)
        return Recovery(payload, self._replay(offset, losses), losses)

    def _replay(self, at: int, losses: list[Loss]) -> Iterator[tuple[int, bytes]]:
        damaged_until, settled = -1, True
        for found in self.log.entries_and_damage(at):
            if isinstance(found, Damage):
                settled = False
                if not self._was_synced(found):
                    self.log.drop_damaged_tail(found)
                    return
                damaged_until = found.next_offset
                losses.append(Loss(found.offset, damaged_until, DAMAGED))
                continue
            head = parse(found)
            settled = not head.count
            if head.flags & _CONTROL and head.base_offset != damaged_until:
                continue
            for offset, record in enumerate(decode(found, head.count)[1], head.base_offset):
                if offset >= at:
                    yield offset, record
        if not settled:
            self.log.adopt()
            self._unsettle()

    def _was_synced(self, damage: Damage) -> bool:
        if damage.offset < self.log.segments()[-1].base_offset:
            return True
        if damage.next_offset >= self.log.next_offset:
            return not self.log.looks_torn(damage)
        later = self.log.entries_and_damage(damage.next_offset)
        return any(isinstance(entry, bytes) and self._vouches(entry, damage) for entry in later)

    def _vouches(self, entry: bytes, damage: Damage) -> bool:
        """Whether a later entry proves that the damaged entry was durable."""
        head = parse(entry)
        return head.producer_id == self._boot_id or decode(entry, head.count)[0] > damage.position


def shown(losses: Sequence[Loss | str]) -> dict[str, Any]:
    """Losses as a status shows them: their number, and the first few."""
    return {"count": len(losses), "first": [str(loss) for loss in losses[:_SHOWN]]}


def encode(records: Sequence[bytes], synced: int = 0) -> list[bytes]:
    """The body of an entry, in parts."""
    if len(records) == 1:
        content = records[0]
        index = _ONE.pack(synced, 0, len(content))
    else:
        ends = [*accumulate(map(len, records), initial=0)]
        index = _SYNCED.pack(synced) + pack(f"<{len(ends)}i", *ends)
        content = b"".join(records)
    padding = bytes(-(len(index) + len(content) + SUM_BYTES) % ALIGN)
    return [index, content, padding + second_sum(index, content, padding)]


def decode(entry: bytes, count: int) -> tuple[int, list[bytes]]:
    """The durable length and the ``count`` records of a verified entry."""
    (synced,) = _SYNCED.unpack_from(entry, SIZE)
    first = SIZE + _SYNCED.size
    start = first + 4 * (count + 1)
    ends = unpack_from(f"<{count + 1}i", entry, first)
    return synced, [entry[start + a : start + b] for a, b in pairwise(ends)]
