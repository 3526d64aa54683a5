"""A state's journal: records in a log, and the snapshot they apply to.

The body of an entry is::

    int64     synced: bytes of this segment known to be durable when the entry was written
    int32     n+1 times: where each record begins in what follows, and where the last one ends
    bytes     the records, padded with zeros to a multiple of 8

``synced`` tells lost writes from decay. Power loss may keep a later write and lose an earlier
one. If no later entry was written after a sync that covered the damaged place, that place was
never durable, so neither it nor anything behind it was ever acknowledged, and both are dropped
(a copy is set aside). Otherwise acknowledged records are damaged, and that is an error.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from struct import Struct
from sys import byteorder

from nexo.errors import Corrupt
from nexo.storage.header import ALIGN, SIZE, seal
from nexo.storage.log import SEGMENT_BYTES, SegmentedLog
from nexo.storage.ports import Files
from nexo.storage.segment import Damage
from nexo.storage.snapshot import Snapshot, Snapshots

_SYNCED = Struct("<q")
_COUNT = Struct("<I")
_COUNT_AT = 24

logger = logging.getLogger("nexo.storage")


class Journal:
    """Records since the last checkpoint. Call `recover`, exhaust it, then append."""

    def __init__(self, files: Files, folder: Path, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        self.log = SegmentedLog(files, folder, segment_bytes=segment_bytes, sync_on_roll=True)
        self._snapshots = Snapshots(files, folder)

    @property
    def next_offset(self) -> int:
        """The offset the next record gets."""
        return self.log.next_offset

    @property
    def size_bytes(self) -> int:
        """What the journal takes on disk, snapshots not counted."""
        return self.log.size_bytes

    def append(self, records: Sequence[bytes], now_ms: int) -> int:
        """Write records as one entry, found whole or not at all; returns the first's offset.

        Not durable before the next sync.
        """
        if not records:
            return self.log.next_offset
        body = encode(records, self.log.synced_bytes)
        head = seal(body, count=len(records), first_ms=now_ms, last_ms=now_ms)
        return self.log.append(head, body)

    def checkpoint(self, payload: bytes) -> None:
        """Make ``payload``, the state after all records so far, what recovery begins with.

        Durable on return. The records since the snapshot before are kept beside it.
        """
        self.log.sync()
        self._snapshots.save(Snapshot(self.log.next_offset, payload))
        self.log.drop_before(max(self.log.start_offset, self._snapshots.offsets()[0]))

    def recover(self) -> tuple[bytes | None, Iterator[bytes]]:
        """The last snapshot, if any, and the records that followed it.

        Raises `Corrupt`, now or while iterating, if anything acknowledged is damaged.
        """
        snapshot = self._snapshots.load()
        if snapshot is None:
            return None, self.replay(self.log.start_offset)
        if not self.log.start_offset <= snapshot.offset <= self.log.next_offset:
            raise Corrupt(
                f"the snapshot is of offset {snapshot.offset}, the journal holds "
                f"{self.log.start_offset} to {self.log.next_offset}: restore a backup"
            )
        return snapshot.payload, self.replay(snapshot.offset)

    def replay(self, from_offset: int) -> Iterator[bytes]:
        """The records from ``from_offset`` on."""
        at = from_offset
        try:
            for entry in self.log.entries(from_offset):
                base = int.from_bytes(entry[8:16], "little")
                records = decode(entry)[1]
                yield from records[max(0, from_offset - base) :]
                at = base + len(records)
        except Corrupt as error:
            self._settle(error, at)

    def _settle(self, error: Corrupt, at: int) -> None:
        """Drop damage that was never durable; raise ``error`` for any other."""
        damage = next((d for d in self.log.damaged() if d.offset == at < d.next_offset), None)
        if damage is None or self._was_synced(damage):
            raise error
        self.log.drop_damaged_tail(damage)

    def _was_synced(self, damage: Damage) -> bool:
        if damage.next_offset >= self.log.next_offset:
            return True  # the log found no sign of a torn write in its last entry
        last = self.log.segments()[-1]
        if damage.offset < last.base_offset:
            return True
        later = self.log.entries(damage.next_offset)
        return any(decode(entry)[0] > damage.position for entry in later)

    def close(self) -> None:
        """Give back what is held. Does not sync."""
        self.log.close()


def encode(records: Sequence[bytes], synced: int = 0) -> list[bytes]:
    """The body of an entry that holds ``records``."""
    ends = array("i", accumulate(map(len, records), initial=0))
    size = ends[-1]
    if byteorder == "big":
        ends.byteswap()
    index = ends.tobytes()
    padding = bytes(-(_SYNCED.size + len(index) + size) % ALIGN)
    return [_SYNCED.pack(synced), index, *records, padding]


def decode(entry: bytes) -> tuple[int, list[bytes]]:
    """How much was durable, and the records, from a verified entry."""
    (synced,) = _SYNCED.unpack_from(entry, SIZE)
    (count,) = _COUNT.unpack_from(entry, _COUNT_AT)
    first = SIZE + _SYNCED.size
    start = first + 4 * (count + 1)
    ends = array("i", entry[first:start])
    if byteorder == "big":
        ends.byteswap()
    return synced, [entry[start + a : start + b] for a, b in pairwise(ends)]
