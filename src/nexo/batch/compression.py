"""Compression of a batch's body as a whole: gzip, lz4 or zstd (SPEC G3).

A compressed body is ``uncompressed length u32, compressed length u32, bytes, padding``.
lz4 and zstd come with the ``compress`` extra; without it they raise `InvalidOption`.
"""

from __future__ import annotations

import enum
import zlib
from collections.abc import Iterator
from importlib import import_module
from struct import Struct
from typing import Any

from nexo.errors import Corrupt, InvalidOption, PayloadTooLarge
from nexo.model import Buffer

_LENGTHS = Struct("<II")
_GZIP_WINDOW = 31
_KAFKA_SNAPPY = 2
_XERIAL = b"\x82SNAPPY\x00"
_SNAPPY_BLOCK_BYTES = 16 * 1024**2
"""A raw block of snappy is unpacked at once."""
_PART_BYTES = 64 * 1024
MAX_BODY_BYTES = 256 * 1024**2
"""Bodies that would unpack to more than this are rejected unless the caller says otherwise."""


class Compression(enum.IntEnum):
    """The two compression bits of a header's flags."""

    NONE = 0
    GZIP = 1
    LZ4 = 2
    ZSTD = 3

    @classmethod
    def named(cls, name: str | None) -> Compression:
        """The compression a user asked for by name; None is `NONE`."""
        try:
            return cls[(name or "none").upper()]
        except KeyError:
            raise InvalidOption(
                f"compression {name!r} is not known: use 'gzip', 'lz4', 'zstd' or None"
            ) from None


_LIBRARIES = {"lz4": "lz4.frame", "snappy": "cramjam", "zstd": "zstandard"}
_KAFKA_KINDS = {1: Compression.GZIP, 3: Compression.LZ4, 4: Compression.ZSTD}


def compress(kind: Compression, body: bytes) -> list[bytes]:
    packed = _pack(kind, body)
    return [_LENGTHS.pack(len(body), len(packed)), packed, bytes(-len(packed) % 8)]


def decompress(kind: Compression, body: Buffer, max_bytes: int = MAX_BODY_BYTES) -> bytes:
    """The body that `compress` packed; never allocates more than ``max_bytes`` for it."""
    if len(body) < _LENGTHS.size:
        raise Corrupt("compressed body is cut short")
    size, packed_size = _LENGTHS.unpack_from(body)
    if size > max_bytes:
        raise PayloadTooLarge(f"a body of {size} bytes exceeds the limit of {max_bytes}")
    packed = bytes(body[_LENGTHS.size : _LENGTHS.size + packed_size])
    if len(packed) != packed_size:
        raise Corrupt("compressed body is cut short")
    unpacked = _unpack(kind, packed, size)
    if len(unpacked) != size:
        raise Corrupt(f"compressed body does not unpack to the {size} bytes it announces")
    return unpacked


def _pack(kind: Compression, body: bytes) -> bytes:
    match kind:
        case Compression.GZIP:
            packer = zlib.compressobj(6, zlib.DEFLATED, _GZIP_WINDOW)
            return packer.compress(body) + packer.flush()
        case Compression.LZ4:
            return bytes(library("lz4").compress(body))
        case Compression.ZSTD:
            return bytes(library("zstd").ZstdCompressor().compress(body))
    raise InvalidOption("'none' compresses nothing")


def _unpack(kind: Compression, packed: bytes, size: int) -> bytes:
    """At most ``size + 1`` bytes, so that the caller can detect a larger body."""
    match kind:
        case Compression.GZIP:
            try:
                return zlib.decompressobj(_GZIP_WINDOW).decompress(packed, size + 1)
            except zlib.error as error:
                raise Corrupt(f"body is not gzip: {error}") from None
        case Compression.LZ4:
            return _unpack_lz4(library("lz4"), packed, size)
        case Compression.ZSTD:
            return _unpack_zstd(library("zstd"), packed, size)
    raise Corrupt("body is not compressed")


def unpack_kafka(kind: int, packed: bytes, max_bytes: int) -> bytes:
    """Unpack a Kafka client's batch (1 gzip, 2 snappy, 3 lz4, 4 zstd), whose size is unknown."""
    if kind == _KAFKA_SNAPPY:
        return _unpack_snappy(packed, max_bytes)
    if kind not in _KAFKA_KINDS:
        raise Corrupt(f"Kafka's compression {kind} is not known here")
    unpacked = _unpack(_KAFKA_KINDS[kind], packed, max_bytes)
    if len(unpacked) > max_bytes:
        raise PayloadTooLarge(f"a batch unpacks to more than {max_bytes} bytes")
    return unpacked


def unpack_kafka_pieces(kind: int, packed: bytes, piece_bytes: int) -> Iterator[bytes]:
    """The same in pieces of about ``piece_bytes``, each unpacked when it is asked for."""
    match kind:
        case 1:
            return _gzip_pieces(packed, piece_bytes)
        case 2:
            return _snappy_blocks(packed, _SNAPPY_BLOCK_BYTES)
        case 3:
            return _lz4_pieces(library("lz4"), packed, piece_bytes)
        case 4:
            return _zstd_pieces(library("zstd"), packed, piece_bytes)
    raise Corrupt(f"Kafka's compression {kind} is not known here")


def _gzip_pieces(packed: bytes, size: int) -> Iterator[bytes]:
    unpacker = zlib.decompressobj(_GZIP_WINDOW)
    try:
        for part in _parts(packed):
            while part and not unpacker.eof:
                yield unpacker.decompress(part, size)
                part = unpacker.unconsumed_tail  # noqa: PLW2901
        while not unpacker.eof and (piece := unpacker.decompress(b"", size)):
            yield piece
    except zlib.error as error:
        raise Corrupt(f"body is not gzip: {error}") from None


def _lz4_pieces(lz4: Any, packed: bytes, size: int) -> Iterator[bytes]:
    unpacker = lz4.LZ4FrameDecompressor()
    try:
        for part in _parts(packed):
            yield bytes(unpacker.decompress(part, max_length=size))
            while not (unpacker.needs_input or unpacker.eof):
                yield bytes(unpacker.decompress(b"", max_length=size))
            if unpacker.eof:
                return
    except (RuntimeError, EOFError) as error:
        raise Corrupt(f"body is not lz4: {error}") from None


def _zstd_pieces(zstandard: Any, packed: bytes, size: int) -> Iterator[bytes]:
    try:
        with zstandard.ZstdDecompressor(max_window_size=2**27).stream_reader(packed) as reader:
            while piece := reader.read(size):
                yield piece
    except zstandard.ZstdError as error:
        raise Corrupt(f"body is not zstd: {error}") from None


def _parts(packed: bytes) -> Iterator[bytes]:
    """The packed bytes in parts: unpackers copy those that they have not used yet."""
    return (packed[at : at + _PART_BYTES] for at in range(0, len(packed), _PART_BYTES))


def check_kafka_kind(kind: int) -> None:
    """Raise `InvalidOption` if this installation cannot unpack it, `Corrupt` if it is unknown."""
    if kind == _KAFKA_SNAPPY:
        library("snappy")
    elif kind and kind not in _KAFKA_KINDS:
        raise Corrupt(f"Kafka's compression {kind} is not known here")
    elif kind > _KAFKA_SNAPPY:
        library(_KAFKA_KINDS[kind].name.lower())


def _unpack_snappy(packed: bytes, max_bytes: int) -> bytes:
    blocks = []
    for block in _snappy_blocks(packed, max_bytes):
        blocks.append(block)
        max_bytes -= len(block)
        if max_bytes < 0:
            raise PayloadTooLarge("a batch unpacks to more bytes than are allowed")
    return b"".join(blocks)


def _snappy_blocks(packed: bytes, block_bytes: int) -> Iterator[bytes]:
    """One raw block, or several in the framing of Java clients."""
    if not packed.startswith(_XERIAL):
        yield _unpack_block(packed, block_bytes)
        return
    at = 16
    while at < len(packed):
        size = int.from_bytes(packed[at : at + 4], "big")
        yield _unpack_block(packed[at + 4 : at + 4 + size], block_bytes)
        at += 4 + size


def _unpack_block(packed: bytes, max_bytes: int) -> bytes:
    cramjam = library("snappy")
    try:
        if cramjam.snappy.decompress_raw_len(packed) > max_bytes:
            raise PayloadTooLarge(f"a batch unpacks to more than {max_bytes} bytes")
        return bytes(cramjam.snappy.decompress_raw(packed))
    except cramjam.DecompressionError as error:
        raise Corrupt(f"body is not snappy: {error}") from None


def _unpack_lz4(lz4: Any, packed: bytes, size: int) -> bytes:
    try:
        return bytes(lz4.LZ4FrameDecompressor().decompress(packed, max_length=size + 1))
    except (RuntimeError, EOFError) as error:
        raise Corrupt(f"body is not lz4: {error}") from None


def _unpack_zstd(zstandard: Any, packed: bytes, size: int) -> bytes:
    # The frame's own size field is not trusted: the reader allocates only what is asked for.
    try:
        with zstandard.ZstdDecompressor(max_window_size=2**27).stream_reader(packed) as reader:
            return bytes(reader.read(size + 1))
    except zstandard.ZstdError as error:
        raise Corrupt(f"body is not zstd: {error}") from None


def library(name: str) -> Any:
    """The module of a compression; `InvalidOption` says how to install it."""
    try:
        return import_module(_LIBRARIES[name])
    except ImportError:
        raise InvalidOption(
            f"{name} compression needs the extra: pip install 'nexo-broker[compress]'"
        ) from None
