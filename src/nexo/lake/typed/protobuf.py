"""Protobuf values: columns of a message, and the values that are such messages.

The message is described by a descriptor set, as ``protoc --include_imports --descriptor_set_out``
writes it. Unsigned numbers have the next larger type, enums are their names, and messages that
contain themselves, or anything, are JSON. A field that was not set is null if its presence is
tracked, else the default of its type.
"""

from __future__ import annotations

import importlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC
from typing import Any, TypeAlias

import msgspec

from nexo.batch.varint import read_unsigned
from nexo.errors import ConfigError, InvalidInput
from nexo.extras import hint
from nexo.lake.typed.formats import PROTOBUF, Unpack, ValueFormat
from nexo.lake.typed.kinds import (
    JSON,
    STRING,
    DecimalKind,
    Kind,
    ListKind,
    MapKind,
    PlainKind,
    StructKind,
    nested,
)

# ruff: noqa: PLC0415 - protobuf is optional

ReadItem: TypeAlias = Callable[[Any], Any]
"""An item of a message as the Python value of its column."""
KindAndReader: TypeAlias = tuple[Kind, ReadItem]

_LONG, _INT = PlainKind("long"), PlainKind("int")
_PLAIN: dict[int, Kind] = {
    1: PlainKind("double"), 2: PlainKind("float"), 3: _LONG, 4: DecimalKind(20, 0), 5: _INT,
    6: DecimalKind(20, 0), 7: _LONG, 8: PlainKind("boolean"), 9: STRING, 12: PlainKind("binary"),
    13: _LONG, 15: _INT, 16: _LONG, 17: _INT, 18: _LONG,
}  # fmt: skip
"""By the numbers that descriptors have for types."""
_GROUP, _MESSAGE, _ENUM = 10, 11, 14
_WRAPPERS = {
    f"google.protobuf.{name}Value"
    for name in (
        "Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes",
    )
}  # fmt: skip
_TEXTS = {"google.protobuf.Duration", "google.protobuf.FieldMask"}
_ANYTHING = {f"google.protobuf.{name}" for name in ("Any", "Struct", "Value", "ListValue", "Empty")}
_OURS = "google/protobuf/"


def protobuf_format(descriptors: bytes, message: str) -> tuple[ValueFormat, dict[str, str]]:
    """The format of values that are ``message``, a full name, and their columns."""
    kind, _ = _Parts().of(_message_class(descriptors, message).DESCRIPTOR)
    if not isinstance(kind, StructKind):
        raise InvalidInput(f"message {message} has no fields")
    columns = {name: str(each) for name, each in kind.fields}
    text = b64encode(descriptors).decode()
    return ValueFormat(PROTOBUF, {"": text}, message), columns


def reader(value_format: ValueFormat, schema_id: str) -> Unpack:
    """What reads values of one of the descriptor sets."""
    from google.protobuf.message import DecodeError

    made = _message_class(b64decode(value_format.schemas[schema_id]), value_format.message)
    _, read = _Parts().of(made.DESCRIPTOR)

    def unpack(value: bytes) -> Mapping[str, Any]:
        try:
            found: Mapping[str, Any] = read(made.FromString(value))
        except (DecodeError, ValueError, OverflowError, TypeError) as error:
            raise msgspec.DecodeError(f"not a message {value_format.message}: {error}") from None
        return found

    return (lambda value: unpack(_after_indexes(value))) if schema_id else unpack


def _after_indexes(value: bytes) -> bytes:
    """A schema registry's value without the numbers before it, which choose a message."""
    try:
        count, at = read_unsigned(value, 0)  # of numbers; a lone zero means the first message
        for _ in range(count >> 1):
            _, at = read_unsigned(value, at)
    except (IndexError, ValueError):
        raise msgspec.DecodeError("the value ends before its message") from None
    return value[at:]


# -- descriptors -----------------------------------------------------------------------


def _message_class(descriptors: bytes, message: str) -> Any:
    try:
        from google.protobuf import descriptor_pool, message_factory
        from google.protobuf.descriptor_pb2 import FileDescriptorSet
        from google.protobuf.message import DecodeError
    except ImportError:
        raise ConfigError(hint("protobuf", "protobuf")) from None
    pool = descriptor_pool.DescriptorPool()
    try:
        files = FileDescriptorSet.FromString(descriptors).file
        for each in _in_order({file.name: file for file in files}):
            pool.Add(each)
        found = pool.FindMessageTypeByName(message)
    except KeyError:
        known = ", ".join(_messages(files)) or "none"
        raise InvalidInput(f"the descriptors have no message {message!r}, but {known}") from None
    except (DecodeError, TypeError, ValueError) as error:
        raise InvalidInput(
            f"bad descriptor set (protoc --include_imports --descriptor_set_out): {error}"
        ) from None
    return message_factory.GetMessageClass(found)


def _messages(files: Any) -> Iterator[str]:
    for file in files:
        for each in file.message_type:
            yield f"{file.package}.{each.name}" if file.package else each.name


def _in_order(files: dict[str, Any]) -> Iterator[Any]:
    """Files after those that they import; Protobuf's own may be missing."""
    done: set[str] = set()

    def after_imports(name: str) -> Iterator[Any]:
        if name in done:
            return
        done.add(name)
        file = files.get(name) or _own_file(name)
        for each in file.dependency:
            yield from after_imports(each)
        yield file

    for name in list(files):
        yield from after_imports(name)


def _own_file(name: str) -> Any:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    if name.startswith(_OURS):
        try:
            module = importlib.import_module(
                f"google.protobuf.{name.removeprefix(_OURS).removesuffix('.proto')}_pb2"
            )
            return FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
        except ImportError:
            pass
    raise ValueError(f"it lacks {name}, which is imported")


# -- messages --------------------------------------------------------------------------


class _Parts:
    """The type of each part of a message, and what reads it."""

    def __init__(self) -> None:
        self._within: list[str] = []

    def of(self, message: Any) -> KindAndReader:
        name = message.full_name
        if name == "google.protobuf.Timestamp":
            return PlainKind("timestamp"), lambda item: item.ToDatetime(tzinfo=UTC)
        if name in _WRAPPERS:
            kind, read = self._item(message.fields_by_name["value"])
            return kind, lambda item: read(item.value)
        if name in _TEXTS:
            return STRING, lambda item: item.ToJsonString()
        if name in _ANYTHING or name in self._within or not message.fields:
            return JSON, _as_dict
        self._within.append(name)
        try:
            return self._struct(message)
        finally:
            self._within.pop()

    def _struct(self, message: Any) -> KindAndReader:
        parts = [(field, *self._field(field)) for field in message.fields]
        kind = StructKind(tuple((field.name, kind) for field, kind, _ in parts))
        readers = [(f.name, bool(f.has_presence), read) for f, _, read in parts]

        def read(item: Any) -> dict[str, Any]:
            return {
                name: get(getattr(item, name))
                for name, optional, get in readers
                if not optional or item.HasField(name)
            }

        if len(self._within) == 1:  # the value itself
            return kind, read
        found = nested(kind)
        return found, _as_dict if found == JSON else read

    def _field(self, field: Any) -> KindAndReader:
        if not _is_repeated(field):
            return self._item(field)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            return self._map(field.message_type)
        kind, read = self._item(field)
        return ListKind(kind), lambda items: [read(item) for item in items]

    def _map(self, entry: Any) -> KindAndReader:
        key, _ = self._item(entry.fields_by_name["key"])
        kind, read = self._item(entry.fields_by_name["value"])
        if key not in (STRING, _INT, _LONG):  # booleans, and long ones without a sign
            return MapKind(STRING, kind), lambda items: {
                str(name).lower(): read(items[name]) for name in items
            }
        assert isinstance(key, PlainKind)
        return MapKind(key, kind), lambda items: {name: read(items[name]) for name in items}

    def _item(self, field: Any) -> KindAndReader:
        if field.type in (_MESSAGE, _GROUP):
            return self.of(field.message_type)
        if field.type == _ENUM:
            names = {each.number: each.name for each in field.enum_type.values}
            return STRING, lambda number: names.get(number, str(number))
        return _PLAIN[field.type], lambda item: item


def _is_repeated(field: Any) -> bool:
    found = getattr(field, "is_repeated", None)
    return bool(field.label == field.LABEL_REPEATED if found is None else found)


def _as_dict(item: Any) -> Any:
    from google.protobuf.json_format import MessageToDict

    return MessageToDict(item, preserving_proto_field_name=True)
