"""Entries as the storage tests write and check them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from nexo.errors import Corrupt
from nexo.storage.header import seal, verify
from nexo.storage.log import SegmentedLog
from nexo.storage.ports import Files

FOLDER = Path("/data/log")


def body_of(number: int, size: int = 40) -> bytes:
    """Bytes that differ for every number and hold no zeros."""
    text = f"<{number}>".encode()
    return (text * (size // len(text) + 1))[: size - size % 8]


def entry(
    number: int, *, count: int = 1, size: int = 40, at_ms: int | None = None, base: int = 0
) -> tuple[bytearray, list[bytes]]:
    body = [body_of(number, size)]
    ms = 1_000 + number if at_ms is None else at_ms
    return seal(body, count=count, first_ms=ms, last_ms=ms, base_offset=base), body


def fill(log: SegmentedLog, numbers: range, *, size: int = 40) -> None:
    for number in numbers:
        log.append(*entry(number, size=size))


def whole(number: int, base: int, size: int = 40) -> bytes:
    head, body = entry(number, size=size, base=base)
    return bytes(head) + body[0]


def rewrite(log: SegmentedLog, first: int, end: int, entries: Iterable[bytes]) -> int:
    """Replace closed segments as compaction does, at once; returns the bytes freed."""
    rewriting = log.begin_rewrite(first, end)
    try:
        rewriting.add(entries)
        return log.finish_rewrite(rewriting)
    finally:
        rewriting.abandon()


def bodies(log: SegmentedLog) -> list[bytes]:
    return [data[64:] for data in log.entries()]


def readable(log: SegmentedLog) -> Iterator[tuple[int, bytes]]:
    """Offset and body of everything that can be read, stepping over reported damage."""
    at = log.start_offset
    while at < log.next_offset:
        try:
            data = log.read(at, 1)
        except Corrupt as error:
            at = _behind(error, at)
            continue
        header = verify(data)
        yield header.base_offset, data[64:]
        at = header.next_offset


def _behind(error: Corrupt, at: int) -> int:
    assert error.offset is not None
    assert error.next_offset is not None
    assert error.offset <= at < error.next_offset
    return error.next_offset


def overwrite(files: Files, path: Path, data: bytes) -> None:
    file = files.open(path, create=True)
    file.truncate(0)
    file.write_at(0, [data])
    file.close()


def content(files: Files, path: Path) -> bytes:
    file = files.open(path)
    data = file.read_at(0, file.size())
    file.close()
    return data
