"""Second sums of the entries of a segment, in a file beside it: ``<segment>.sums``.

Clients make the entries of streams, which are stored as they come, so their second sums
(`nexo.storage.mending`) lie beside them. They are written once a log is quiet, or much was
written; entries of one record need none, as only that record could be lost. The file is rows of 24
bytes, each with a check of its own::

    int64   position of an entry, or the complement of the position up to which there are sums
    int64   base offset of the entry there
    uint32  second sum of the entry's body
    uint32  CRC32 of the 20 bytes before
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from struct import Struct

from nexo.errors import NexoError
from nexo.storage.header import SIZE, Flags, Header
from nexo.storage.mending import SUM_BYTES, second_sum
from nexo.storage.ports import Files

_ROW = Struct("<qq4s")
ROW_BYTES = _ROW.size + SUM_BYTES
_NO_SUM = bytes(SUM_BYTES)
_WORTH_A_NOTE = 64 * 1024
"""That up to here no entry needs a sum is noted after so many bytes, which are quick to read."""


class Sums:
    """The second sums of one segment, and how far they reach."""

    __slots__ = ("_files", "_noted", "_path", "_size", "offset", "position")

    def __init__(self, files: Files, path: Path) -> None:
        """Find out how far the file at ``path`` reaches; an unreadable one reaches nowhere."""
        self._files = files
        self._path = path
        self._size = 0
        self.position = self.offset = 0
        """Where the sums end, and the offset of the entry there."""
        for position, offset, _ in self._rows():
            if position < 0:
                self.position, self.offset = ~position, offset
        self._noted = self.position
        """Where the file says that they end."""

    def of(self, position: int) -> bytes | None:
        """The sum of the entry at a position."""
        found = [each for at, _, each in self._rows() if at == position]
        return found[-1] if found else None

    def _rows(self) -> list[tuple[int, int, bytes]]:
        try:
            with closing(self._files.open(self._path)) as file:
                self._size = file.size() // ROW_BYTES * ROW_BYTES
                data = file.read_at(0, self._size)
        except (OSError, NexoError):
            return []
        rows = (data[at : at + ROW_BYTES] for at in range(0, len(data), ROW_BYTES))
        return [
            _ROW.unpack_from(row)
            for row in rows
            if second_sum(row[: _ROW.size]) == row[_ROW.size :]
        ]

    def write(self, entries: list[tuple[int, Header, bytes]], position: int, offset: int) -> None:
        """Add the sums of entries, given with their positions, up to ``position``."""
        rows = [
            _ROW.pack(at, head.base_offset, second_sum(entry[SIZE:]))
            for at, head, entry in entries
            if head.count > 1 and not head.flags & Flags.SUMMED
        ]
        self.position, self.offset = position, offset
        if not rows and position - self._noted < _WORTH_A_NOTE:
            return
        rows.append(_ROW.pack(~position, offset, _NO_SUM))
        data = b"".join(row + second_sum(row) for row in rows)
        with closing(self._files.open(self._path, create=True)) as file:
            self._size += file.write_at(self._size, [data])
        self._noted = position
