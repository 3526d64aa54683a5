"""Reads and writes messages of Kafka's protocol by schemas that are text.

A schema is a list of fields: ``name:type``, ``name:[]type`` for an array, ``name:[ fields ]`` for
an array of structures, ``name:{ fields }`` for one structure, ``name:?{ fields }`` for one that may
be null; then perhaps ``@3+`` or ``@1-4`` for the versions that have the field, ``#1`` for the tag
of a field that may be left out, and ``=-1`` for what stands in its place. In *flexible* versions
lengths are variable numbers and every structure ends with its tagged fields; those that a schema
does not name are skipped. Any text, bytes or array may be null (None).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator, Mapping
from struct import Struct
from typing import Any, NamedTuple, TypeAlias, TypeVar
from uuid import UUID

from nexo.dialects.kafka.format.wire import I16, I32, Input, write_length, write_varint
from nexo.errors import ProtocolError

T = TypeVar("T")
KafkaMessage: TypeAlias = dict[str, Any]
"""A structure by field names."""

_NUMBERS = {
    "bool": Struct(">?"),
    "i8": Struct(">b"),
    "i16": I16,
    "u16": Struct(">H"),
    "i32": I32,
    "i64": Struct(">q"),
}
_I8 = _NUMBERS["i8"]
_FIELD = re.compile(r"(?P<name>\w+):(?P<type>\[\]?\w*|\??\{|\w+)(?P<rest>\S*)")
_VERSIONS = r"(?:@(?P<low>\d+)(?P<to>[+-])(?P<high>\d*))?"
_REST = re.compile(_VERSIONS + r"(?:#(?P<tag>\d+))?(?:=(?P<default>\S+))?$")
_LAST = 32_767
_UNTAGGED = -1
_EMPTY: KafkaMessage = {"str": "", "bytes": b"", "uuid": UUID(int=0), "bool": False}


_STEP = 64
"""So many elements of an array are one step,"""
_STEP_COST = _STEP * 4_096
"""which is so much work, in bytes."""

CodecSteps: TypeAlias = Generator[int, None, T]
"""Yields how much work each step was."""


class FieldCodec(NamedTuple):
    """How one type is read and written."""

    read: Callable[[Input], Any]
    write: Callable[[bytearray, Any], None]
    read_steps: Callable[[Input], CodecSteps[Any]] | None = None
    """The same in steps, for what may have many elements."""
    write_steps: Callable[[bytearray, Any], CodecSteps[None]] | None = None


class Field(NamedTuple):
    """One field of a schema."""

    name: str
    kind: str
    """A plain type; empty for structures."""
    fields: list[Field]
    is_array: bool
    is_nullable: bool
    """A structure that may be missing."""
    low: int
    high: int
    default: Any
    tag: int
    """Of a field that stands behind the others, or nowhere; `_UNTAGGED` of all others."""


class Schema:
    """The requests or the responses of one API."""

    def __init__(self, text: str, flexible_from: int) -> None:
        self.fields, _ = _parse(iter(text.split()))
        self._flexible_from = flexible_from
        self._kinds: dict[int, FieldCodec] = {}

    def read(self, data: Input, version: int) -> KafkaMessage:
        found: KafkaMessage = self._kind(version).read(data)
        return found

    def write(self, out: bytearray, message: KafkaMessage, version: int) -> None:
        """A message to bytes; what it leaves out gets its default."""
        self._kind(version).write(out, message)

    def read_steps(self, data: Input, version: int) -> CodecSteps[KafkaMessage]:
        """`read` in steps, for messages that may be long."""
        return _read_steps(self._kind(version), data)

    def write_steps(self, out: bytearray, message: KafkaMessage, version: int) -> CodecSteps[None]:
        """`write` in steps."""
        return _write_steps(self._kind(version), out, message)

    def refusal(self, code: int) -> KafkaMessage:
        """A message with an error wherever it has room: in itself, or in one row of its arrays."""
        return _refusal(self.fields, code)

    def _kind(self, version: int) -> FieldCodec:
        kind = self._kinds.get(version)
        if kind is None:
            flexible = version >= self._flexible_from
            kind = self._kinds[version] = _structure(self.fields, version, flexible)
        return kind


# -- schemas ---------------------------------------------------------------------------


def _parse(words: Iterator[str]) -> tuple[list[Field], str | None]:
    """The fields of a structure, and what follows its bracket; None at the end of the schema."""
    fields: list[Field] = []
    for word in words:
        if word.startswith(("]", "}")):
            return fields, word[1:]
        found = _FIELD.match(word)
        assert found is not None, word
        kind, rest = found["type"], found["rest"]
        inner: list[Field] = []
        opened = kind if kind in ("[", "{", "?{") else ""
        if opened:
            inner, rest = _parse(words)
            kind = ""
        versions = _REST.match(rest)
        assert versions is not None, word
        low = int(versions["low"] or 0)
        high = int(versions["high"]) if versions["high"] else _LAST
        is_array = opened == "[" or kind.startswith("[]")
        kind = kind.removeprefix("[]")
        default = {} if opened == "{" else _default(kind, is_array, versions["default"])
        may_miss = opened == "?{"
        default = None if may_miss else default
        tag = int(versions["tag"] or _UNTAGGED)
        fields.append(
            Field(found["name"], kind, inner, is_array, may_miss, low, high, default, tag)
        )
    return fields, None


def _default(kind: str, is_array: bool, text: str | None) -> Any:
    if text == "null":
        return None
    if is_array:
        return []
    if text is None:
        return _EMPTY.get(kind, 0)
    return text == "true" if kind == "bool" else int(text)


def _refusal(fields: list[Field], code: int) -> KafkaMessage:
    found: KafkaMessage = {field.name: code for field in fields if field.name == "error"}
    for field in fields:
        if field.is_array and field.fields and (row := _refusal(field.fields, code)):
            found[field.name] = [row]
    return found


# -- kinds ---------------------------------------------------------------------------------


def _structure(fields: list[Field], version: int, flexible: bool) -> FieldCodec:
    present = [field for field in fields if field.low <= version <= field.high]
    here = [
        (field.name, _field_kind(field, version, flexible), field.default)
        for field in present
        if field.tag == _UNTAGGED
    ]
    named = {name for name, _, _ in here}
    absent: KafkaMessage = {
        field.name: field.default for field in fields if field.name not in named
    }
    tags = _tags([field for field in present if field.tag != _UNTAGGED], version)

    def read(data: Input) -> KafkaMessage:
        found = {name: kind.read(data) for name, kind, _ in here}
        rest = tags.read(data) if flexible else {}
        return absent | found | rest if absent else found

    def write(out: bytearray, message: Mapping[str, Any]) -> None:
        for name, kind, default in here:
            kind.write(out, message.get(name, default))
        if flexible:
            tags.write(out, message)

    def read_steps(data: Input) -> CodecSteps[KafkaMessage]:
        found: KafkaMessage = {}
        for name, kind, _ in here:
            found[name] = yield from _read_steps(kind, data)
        return absent | found | (tags.read(data) if flexible else {})

    def write_steps(out: bytearray, message: Mapping[str, Any]) -> CodecSteps[None]:
        for name, kind, default in here:
            yield from _write_steps(kind, out, message.get(name, default))
        if flexible:
            tags.write(out, message)

    if all(kind.read_steps is None for _, kind, _ in here):
        return FieldCodec(read, write)
    return FieldCodec(read, write, read_steps, write_steps)


def _read_steps(kind: FieldCodec, data: Input) -> CodecSteps[Any]:
    if kind.read_steps is None:
        return kind.read(data)
    return (yield from kind.read_steps(data))


def _write_steps(kind: FieldCodec, out: bytearray, value: Any) -> CodecSteps[None]:
    if kind.write_steps is None:
        kind.write(out, value)
    else:
        yield from kind.write_steps(out, value)


def _tags(fields: list[Field], version: int) -> FieldCodec:
    """The tagged fields of a structure; most have none that are known."""
    if not fields:
        return FieldCodec(_no_tags, lambda out, _: out.append(0))
    kinds = {field.tag: (field, _field_kind(field, version, True)) for field in fields}

    def read(data: Input) -> KafkaMessage:
        found: KafkaMessage = {}
        for tag, value in data.tags():
            if tag in kinds:
                field, kind = kinds[tag]
                found[field.name] = kind.read(Input(value))
        return found

    def write(out: bytearray, message: Mapping[str, Any]) -> None:
        given = [(tag, *kinds[tag]) for tag in sorted(kinds) if kinds[tag][0].name in message]
        write_varint(out, len(given))
        for tag, field, kind in given:
            value = bytearray()
            kind.write(value, message[field.name])
            write_varint(out, tag)
            write_varint(out, len(value))
            out += value

    return FieldCodec(read, write)


def _no_tags(data: Input) -> KafkaMessage:
    data.skip_tags()
    return {}


def _field_kind(field: Field, version: int, flexible: bool) -> FieldCodec:
    if field.fields:
        kind = _structure(field.fields, version, flexible)
        kind = _nullable(kind) if field.is_nullable else kind
    else:
        kind = _plain(field.kind, flexible)
    return _array(kind, flexible) if field.is_array else kind


def _nullable(of: FieldCodec) -> FieldCodec:
    def read(data: Input) -> KafkaMessage | None:
        return of.read(data) if data.number(_I8) >= 0 else None

    def write(out: bytearray, value: KafkaMessage | None) -> None:
        out += _I8.pack(-1 if value is None else 1)
        if value is not None:
            of.write(out, value)

    return FieldCodec(read, write)


def _array(of: FieldCodec, flexible: bool) -> FieldCodec:
    def read(data: Input) -> list[Any] | None:
        count = data.count(flexible)
        return None if count < 0 else [of.read(data) for _ in range(count)]

    def write(out: bytearray, items: list[Any] | None) -> None:
        write_length(out, -1 if items is None else len(items), I32, flexible)
        for item in items or ():
            of.write(out, item)

    def read_steps(data: Input) -> CodecSteps[list[Any] | None]:
        count = data.count(flexible)
        if count < 0:
            return None
        items: list[Any] = []
        for at in range(1, count + 1):
            items.append((yield from _read_steps(of, data)))
            if not at % _STEP:
                yield _STEP_COST
        return items

    def write_steps(out: bytearray, items: list[Any] | None) -> CodecSteps[None]:
        write_length(out, -1 if items is None else len(items), I32, flexible)
        for at, item in enumerate(items or (), 1):
            yield from _write_steps(of, out, item)
            if not at % _STEP:
                yield _STEP_COST

    return FieldCodec(read, write, read_steps, write_steps)


def _plain(name: str, flexible: bool) -> FieldCodec:
    match name:
        case "str":
            return _text(flexible)
        case "bytes":
            return _bytes(flexible)
        case "uuid":
            return FieldCodec(
                lambda data: UUID(bytes=bytes(data.take(16))),
                lambda out, value: out.extend(value.bytes),
            )
    number = _NUMBERS[name]
    return FieldCodec(
        lambda data: data.number(number), lambda out, value: out.extend(number.pack(value))
    )


def _text(flexible: bool) -> FieldCodec:
    def read(data: Input) -> str | None:
        size = data.length(I16, flexible)
        if size < 0:
            return None
        if size > _LAST:
            raise ProtocolError(f"a text in a request has {size} bytes: must be at most {_LAST}")
        try:
            return str(data.take(size), "utf-8")
        except UnicodeDecodeError:
            raise ProtocolError("a text in a request is not UTF-8") from None

    def write(out: bytearray, value: str | None) -> None:
        raw = b"" if value is None else value.encode("utf-8", "replace")[:_LAST]
        write_length(out, -1 if value is None else len(raw), I16, flexible)
        out += raw

    return FieldCodec(read, write)


def _bytes(flexible: bool) -> FieldCodec:
    def read(data: Input) -> memoryview | None:
        size = data.length(I32, flexible)
        return None if size < 0 else data.take(size)

    def write(out: bytearray, value: bytes | None) -> None:
        write_length(out, -1 if value is None else len(value), I32, flexible)
        out += value or b""

    return FieldCodec(read, write)
