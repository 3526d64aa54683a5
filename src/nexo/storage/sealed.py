"""Small files that are either intact or absent: a header with a checksum, and a payload.

======  ====  =====================================================
offset  size  field
======  ====  =====================================================
0       8     magic, one per kind of file
8       2     version (2; 1 has no second sum)
10      2     zero
12      4     CRC32C over all other bytes but the second sum
16      8     length of the payload
24      8     mark: an offset the payload is bound to
32            payload
        4     second sum of the payload (`nexo.storage.mending`)
======  ====  =====================================================
"""

from __future__ import annotations

import logging
from contextlib import closing
from pathlib import Path
from struct import Struct

from google_crc32c import extend, value

from nexo.errors import Corrupt
from nexo.storage.mending import SUM_BYTES, mended, second_sum
from nexo.storage.ports import Files

VERSION = 2
_UNSUMMED = 1
_FRAME = Struct("<8sHHIQq")
SIZE = _FRAME.size
_MARK_AT = 24
_MARK = Struct("<q")

logger = logging.getLogger("nexo.storage")


def pack(magic: bytes, payload: bytes, mark: int = 0) -> bytes:
    return _frame(magic, payload, mark) + payload + second_sum(payload)


def unpack(magic: bytes, data: bytes) -> tuple[bytes, int]:
    """Payload and mark; `Corrupt` if ``data`` is not what `pack` made, but for one wrong byte."""
    try:
        return _checked(magic, data)
    except Corrupt:
        whole = _mended(magic, data)
        if whole is None:
            raise
        logger.warning("a flipped byte of a sealed file (%r) was mended", magic)
        return _checked(magic, whole)


def _checked(magic: bytes, data: bytes) -> tuple[bytes, int]:
    if len(data) < SIZE:
        raise Corrupt(f"sealed file cut short: {len(data)} bytes")
    found, version, zero, _, length, mark = _FRAME.unpack_from(data)
    if found != magic or version not in (VERSION, _UNSUMMED) or zero:
        raise Corrupt(f"sealed file starts with {found!r} version {version}, expected {magic!r}")
    payload = data[SIZE : -SUM_BYTES if version == VERSION else None]
    if length != len(payload) or data[:SIZE] != _frame(magic, payload, mark, version):
        raise Corrupt("sealed file fails its CRC")
    return payload, mark


def _frame(magic: bytes, payload: bytes, mark: int, version: int = VERSION) -> bytes:
    blank = _FRAME.pack(magic, version, 0, 0, len(payload), mark)
    crc = int(extend(value(blank), payload))
    return _FRAME.pack(magic, version, 0, crc, len(payload), mark)


def _mended(magic: bytes, data: bytes) -> bytes | None:
    """``data`` with its wrong byte put right; all but the mark and the CRC is known or summed."""
    if len(data) < SIZE + SUM_BYTES:
        return None
    frame, payload, stored = data[:SIZE], data[SIZE:-SUM_BYTES], data[-SUM_BYTES:]

    def is_sound(payload: bytes, frame: bytes = frame) -> bool:
        return frame == _frame(magic, payload, *_MARK.unpack_from(frame, _MARK_AT))

    if second_sum(payload) != stored:
        whole = mended(payload, stored, is_sound)
        return None if whole is None else frame + whole + stored
    right = _frame(magic, payload, *_MARK.unpack_from(frame, _MARK_AT))
    if sum(a != b for a, b in zip(frame, right, strict=True)) == 1:
        return right + payload + stored
    for at in range(_MARK_AT, SIZE):
        for byte in range(256):
            changed = frame[:at] + bytes((byte,)) + frame[at + 1 :]
            if is_sound(payload, changed):
                return changed + payload + stored
    return None


def write(files: Files, path: Path, data: bytes) -> None:
    """Replace the file at ``path`` atomically and durably: write aside, sync, rename."""
    aside = path.with_name(path.name + ".new")
    with closing(files.open(aside, create=True)) as file:
        file.truncate(0)
        file.write_at(0, [data])
        file.sync()
    files.rename(aside, path)


def read(files: Files, path: Path, magic: bytes) -> tuple[bytes, int] | None:
    """Payload and mark of the file at ``path``; None if it is absent."""
    try:
        file = files.open(path)
    except FileNotFoundError:
        return None
    with closing(file):
        return unpack(magic, file.read_at(0, file.size()))
