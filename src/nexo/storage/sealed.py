"""Small files that are either intact or absent: a header with a checksum, and a payload.

======  ====  =====================================================
offset  size  field
======  ====  =====================================================
0       8     magic, one per kind of file
8       2     version (1)
10      2     zero
12      4     CRC32C over all other bytes
16      8     length of the payload
24      8     mark: an offset the payload is bound to
32            payload
======  ====  =====================================================
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from struct import Struct

from google_crc32c import extend, value

from nexo.errors import Corrupt
from nexo.storage.ports import Files

VERSION = 1
_FRAME = Struct("<8sHHIQq")
SIZE = _FRAME.size


def pack(magic: bytes, payload: bytes, mark: int = 0) -> bytes:
    blank = _FRAME.pack(magic, VERSION, 0, 0, len(payload), mark)
    return _FRAME.pack(magic, VERSION, 0, _crc(blank, payload), len(payload), mark) + payload


def unpack(magic: bytes, data: bytes) -> tuple[bytes, int]:
    """Payload and mark; `Corrupt` if ``data`` is not what `pack` made."""
    if len(data) < SIZE:
        raise Corrupt(f"sealed file cut short: {len(data)} bytes")
    found, version, zero, crc, length, mark = _FRAME.unpack_from(data)
    if found != magic or version != VERSION or zero:
        raise Corrupt(f"sealed file starts with {found!r} version {version}, expected {magic!r}")
    payload = data[SIZE:]
    if length != len(payload) or crc != _crc(
        _FRAME.pack(magic, VERSION, 0, 0, length, mark), payload
    ):
        raise Corrupt("sealed file fails its CRC")
    return payload, mark


def _crc(blank: bytes, payload: bytes) -> int:
    return int(extend(value(blank), payload))


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
