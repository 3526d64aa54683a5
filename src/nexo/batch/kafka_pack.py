"""Kafka's batches in another compression, for topics that have one of their own."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Generator, Iterable
from typing import NamedTuple

from google_crc32c import value as crc32c

from nexo.batch.compression import library, unpack_kafka_pieces
from nexo.batch.kafka import COMPRESSION, CRC_FROM, HEAD, HEAD_SIZE, LENGTH_BEFORE, parse_kafka
from nexo.errors import PayloadTooLarge
from nexo.model import Buffer

KINDS = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
"""Kafka's names of compressions, and the bits that a batch has for each."""

_PART_BYTES = 16 * 1024
_SLOW, _FAST = 32, 4
"""Packing a byte is as much work as looking at so many."""
_SNAPPY_HEAD = b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
_GZIP_WINDOW = 31
_LZ4_LEVEL, _ZSTD_LEVEL = 9, 3


class _Packer(NamedTuple):
    head: bytes
    pack: Callable[[bytes], bytes]
    finish: Callable[[], bytes]
    work: int


def repacked(batch: Buffer, kind: int, max_bytes: int) -> Generator[int, None, bytes]:
    """The batch in another compression, in steps: what each yields says how much work it was.

    Its records must have been checked. `PayloadTooLarge` if it takes more than ``max_bytes``.
    """
    head = parse_kafka(batch)
    packed = bytes(batch[HEAD_SIZE : head.size])
    now = head.attributes & COMPRESSION
    pieces = unpack_kafka_pieces(now, packed, _PART_BYTES) if now else (packed,)
    packer, parts, size = _packer(kind), [bytes(HEAD_SIZE)], HEAD_SIZE
    parts.append(packer.head)
    for part in _parts(pieces):
        parts.append(packer.pack(part))
        size += len(parts[-1])
        if size > max_bytes:
            raise PayloadTooLarge(
                f"a batch takes more than {max_bytes:,} bytes as the topic has it"
            )
        yield len(part) * packer.work
    parts.append(packer.finish())
    found = bytearray().join(parts)
    fields = head._replace(
        length=len(found) - LENGTH_BEFORE, attributes=head.attributes & ~COMPRESSION | kind
    )
    HEAD.pack_into(found, 0, *fields)
    HEAD.pack_into(found, 0, *fields._replace(crc=crc32c(bytes(found[CRC_FROM:]))))
    return bytes(found)


def _parts(pieces: Iterable[bytes]) -> Iterable[bytes]:
    return (
        piece[at : at + _PART_BYTES] for piece in pieces for at in range(0, len(piece), _PART_BYTES)
    )


def _packer(kind: int) -> _Packer:
    match kind:
        case 1:
            gzip = zlib.compressobj(-1, zlib.DEFLATED, _GZIP_WINDOW)
            return _Packer(b"", gzip.compress, gzip.flush, _SLOW)
        case 2:
            return _Packer(_SNAPPY_HEAD, _snappy_block, bytes, _FAST)
        case 3:
            # Java's client reads no blocks that depend on those before them.
            lz4 = library("lz4").LZ4FrameCompressor(
                block_linked=False, compression_level=_LZ4_LEVEL
            )
            return _Packer(lz4.begin(), lz4.compress, lz4.flush, _SLOW)
        case 4:
            zstd = library("zstd").ZstdCompressor(level=_ZSTD_LEVEL).compressobj()
            return _Packer(b"", zstd.compress, zstd.flush, _FAST)
    return _Packer(b"", bytes, bytes, 1)


def _snappy_block(part: bytes) -> bytes:
    packed = bytes(library("snappy").snappy.compress_raw(part))
    return len(packed).to_bytes(4, "big") + packed
