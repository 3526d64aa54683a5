"""Avro files (`nexo.lake.avro`) read without fastavro, whose import takes longer than small files.

Logical types are ignored: a date is its number of days.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from io import BytesIO
from struct import Struct
from typing import Any, TypeAlias

import msgspec

from nexo.batch.varint import read_unsigned

Decode: TypeAlias = "Callable[[_AvroCursor], Any]"

SMALL_BYTES = 32 * 1024
"""Larger files are read with fastavro: importing it then takes the smaller part."""
_MAGIC = b"Obj\x01"
_MARK_BYTES = 16
_TOO_EARLY = "the Avro file ends too early"
_FLOAT, _DOUBLE = Struct("<f"), Struct("<d")


def records(content: bytes) -> list[Any]:
    """Every record of a file; `ValueError` or `EOFError` if it is not a whole Avro file."""
    if len(content) > SMALL_BYTES:
        return _with_fastavro(content)
    try:
        return list(_read(content))
    except IndexError:
        raise EOFError(_TOO_EARLY) from None


def _with_fastavro(content: bytes) -> list[Any]:
    import fastavro  # noqa: PLC0415 - see above

    return list(fastavro.reader(BytesIO(content)))


def _read(content: bytes) -> Iterator[Any]:
    cursor = _AvroCursor(content)
    if cursor.take(len(_MAGIC)) != _MAGIC:
        raise ValueError("this is not an Avro file")
    head = _map(_bytes)(cursor)
    mark = cursor.take(_MARK_BYTES)
    unpack = _CODECS.get(head.get("avro.codec", b"null"))
    if unpack is None:
        yield from _with_fastavro(content)
        return
    decode = _decoder(head)
    while cursor.at < len(content):
        count, size = cursor.long(), cursor.long()
        block = _AvroCursor(unpack(cursor.take(size)))
        if not 0 <= count <= len(block.content):
            raise EOFError(_TOO_EARLY)
        for _ in range(count):
            yield decode(block)
        if block.at != len(block.content) or cursor.take(_MARK_BYTES) != mark:
            raise ValueError("a block of the Avro file does not end where it should")


def _decoder(head: Mapping[str, bytes]) -> Decode:
    try:
        return _Decoders().of(msgspec.json.decode(head["avro.schema"]))
    except (KeyError, TypeError) as error:
        raise ValueError(f"the Avro file has no usable schema: {error!r}") from None


def _inflated(block: bytes) -> bytes:
    try:
        return zlib.decompress(block, wbits=-zlib.MAX_WBITS)
    except zlib.error as error:
        raise ValueError(str(error)) from None


_CODECS: dict[bytes, Callable[[bytes], bytes]] = {b"null": bytes, b"deflate": _inflated}


class _AvroCursor:
    """Bytes, and how far they were read."""

    __slots__ = ("at", "content")

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.at = 0

    def take(self, size: int) -> bytes:
        start, self.at = self.at, self.at + size
        if not 0 <= size <= len(self.content) - start:
            raise EOFError(_TOO_EARLY)
        return self.content[start : self.at]

    def long(self) -> int:
        found, self.at = read_unsigned(self.content, self.at)
        return (found >> 1) ^ -(found & 1)

    def count(self) -> int:
        """How many items a block of a list or a map has; 0 after the last one."""
        found = self.long()
        if found < 0:  # then its size in bytes follows
            self.long()
        if abs(found) > len(self.content) - self.at:
            raise EOFError(_TOO_EARLY)
        return abs(found)


def _bytes(cursor: _AvroCursor) -> bytes:
    return cursor.take(cursor.long())


def _string(cursor: _AvroCursor) -> str:
    return cursor.take(cursor.long()).decode()


_PLAIN: dict[str, Decode] = {
    "null": lambda _: None,
    "boolean": lambda cursor: cursor.take(1) != b"\x00",
    "int": _AvroCursor.long,
    "long": _AvroCursor.long,
    "float": lambda cursor: _FLOAT.unpack(cursor.take(4))[0],
    "double": lambda cursor: _DOUBLE.unpack(cursor.take(8))[0],
    "bytes": _bytes,
    "string": _string,
}


def _list(item: Decode) -> Decode:
    def decode(cursor: _AvroCursor) -> list[Any]:
        found = []
        while count := cursor.count():
            found += [item(cursor) for _ in range(count)]
        return found

    return decode


def _map(value: Decode) -> Decode:
    def decode(cursor: _AvroCursor) -> dict[str, Any]:
        found = {}
        while count := cursor.count():
            for _ in range(count):
                name = _string(cursor)
                found[name] = value(cursor)
        return found

    return decode


def _fixed(size: int) -> Decode:
    return lambda cursor: cursor.take(size)


def _choice(parts: list[Any]) -> Decode:
    """A value of one of several types, or one of several symbols: its number comes first."""

    def decode(cursor: _AvroCursor) -> Any:
        number = cursor.long()
        if not 0 <= number < len(parts):
            raise ValueError(f"the Avro file has no choice {number}")
        part = parts[number]
        return part(cursor) if callable(part) else part

    return decode


class _Decoders:
    """Decoders of a schema's types; a named type may be referred to again."""

    def __init__(self) -> None:
        self._named = dict(_PLAIN)

    def of(self, schema: Any) -> Decode:
        match schema:
            case str():
                return self._named[_own_name(schema)]
            case list():
                return _choice([self.of(each) for each in schema])
        return self._of_object(schema)

    def _of_object(self, schema: Any) -> Decode:
        match schema["type"]:
            case "record":
                return self._record(schema)
            case "array":
                return _list(self.of(schema["items"]))
            case "map":
                return _map(self.of(schema["values"]))
            case "fixed":
                return self._keep(schema, _fixed(schema["size"]))
            case "enum":
                return self._keep(schema, _choice(schema["symbols"]))
        return self.of(schema["type"])

    def _record(self, schema: Any) -> Decode:
        fields: list[tuple[str, Decode]] = []

        def decode(cursor: _AvroCursor) -> dict[str, Any]:
            return {name: part(cursor) for name, part in fields}

        self._keep(schema, decode)  # before its fields, which may refer to it
        fields += [(each["name"], self.of(each["type"])) for each in schema["fields"]]
        return decode

    def _keep(self, schema: Any, decode: Decode) -> Decode:
        name = _own_name(schema["name"])
        if name in self._named:
            raise ValueError(f"the Avro file has two types named {name}")
        self._named[name] = decode
        return decode


def _own_name(name: str) -> str:
    """A type's name without its namespace."""
    return name.rpartition(".")[2]
