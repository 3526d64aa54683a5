"""Python values as bytes: one type byte, then the content (SPEC A4).

Brokers never look inside; only clients and the dashboard encode and decode.
"""

from __future__ import annotations

import math
from typing import Any, TypeVar, overload

import msgspec

from nexo.errors import InvalidInput, ProtocolError
from nexo.model import Buffer
from nexo.model.store import ValueType, check_value
from nexo.protocol.pydantic_models import adapter, from_builtins, is_model

__all__ = [
    "ValueType", "check_type", "check_value", "decode_content", "decode_value", "encode_as",
    "encode_value", "encode_values", "json_bytes", "uniform", "utf8",
]  # fmt: skip

T = TypeVar("T")


def _model_dump(obj: Any) -> Any:
    """Pydantic models and other types msgspec does not know."""
    dump = getattr(obj, "model_dump", None)
    if dump is None:
        raise InvalidInput(f"a value of type {type(obj).__name__} cannot be written as JSON")
    return dump(mode="json", by_alias=True)


_encode_json = msgspec.json.Encoder(enc_hook=_model_dump).encode
_decode_json = msgspec.json.Decoder().decode


def encode_value(value: object) -> bytes:
    """``bytes`` raw, ``str`` as text, anything else as JSON."""
    if isinstance(value, str):
        return b"\x01" + utf8(value)
    if isinstance(value, bytes):
        return b"\x00" + value
    if isinstance(value, bytearray | memoryview):
        return b"\x00" + bytes(value)
    return b"\x02" + json_bytes(value)


def encode_as(type_: Any, value: object) -> bytes:
    """`encode_value`, after checking that ``value`` can be decoded as ``type_``."""
    raw = encode_value(value)
    if not _surely_fits(type_, value):
        decode_value(raw, type_)
    return raw


def encode_values(values: list[Any], type_: Any = None) -> list[bytes]:
    """`encode_as` of many."""
    plain = uniform(values, type_)
    if plain is None:
        return [encode_as(type_, value) for value in values]
    kind = bytes((plain[0],))
    return [kind + content for content in plain[1]]


def uniform(values: list[Any], type_: Any = None) -> tuple[int, list[bytes]] | None:
    """Type and bytes of values that are all raw or all text, without checking each."""
    kinds = set(map(type, values))
    if kinds == {bytes} and type_ in (None, bytes):
        return ValueType.RAW, values
    if kinds == {str} and type_ in (None, str):
        return ValueType.TEXT, _texts(values)
    return None


def _texts(values: list[str]) -> list[bytes]:
    try:
        return list(map(str.encode, values))
    except UnicodeEncodeError:
        return list(map(utf8, values))  # which says what is wrong


def check_type(type_: Any, value: object) -> None:
    """Reject a value that could not be decoded as ``type_``."""
    if not _surely_fits(type_, value):
        decode_value(encode_value(value), type_)


def _surely_fits(type_: Any, value: object) -> bool:
    """Whether decoding can be skipped: no type, or an instance that is sure to fit."""
    return type_ is None or (value.__class__ is type_ and (type_ in PLAIN or is_model(type_)))


PLAIN = frozenset((str, bytes, int, float, bool))
"""Classes whose instances decode as their own class."""


def utf8(text: str) -> bytes:
    """Text as UTF-8; rejects lone surrogates."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(f"the text cannot be written as UTF-8: {error.reason}") from None


def json_bytes(value: object) -> bytes:
    """``value`` as JSON; rejects NaN and infinities, which JSON lacks."""
    try:
        raw = _encode_json(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"the value cannot be written as JSON: {error}") from None
    # msgspec writes NaN as null, so only JSON with a null in it needs the second check.
    if b"null" in raw and _has_nan(msgspec.to_builtins(value, enc_hook=vars)):
        raise InvalidInput("NaN and infinity cannot be written as JSON")
    return raw


def _has_nan(value: object) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(_has_nan(item) for item in value.values())
    if isinstance(value, list | tuple | set | frozenset):
        return any(_has_nan(item) for item in value)
    return False


@overload
def decode_value(data: Buffer) -> Any: ...
@overload
def decode_value(data: Buffer, type_: type[T]) -> T: ...
@overload
def decode_value(data: Buffer, type_: type[Any] | None) -> Any: ...
def decode_value(data: Buffer, type_: type[T] | None = None) -> Any:
    """The value in ``data``; with ``type_``, checked and converted to it.

    ``type_`` may be a dataclass, a msgspec struct, a pydantic model or any annotation
    msgspec understands.
    """
    if not data:
        raise ProtocolError("a value needs at least its type byte")
    if type_ is None and data.__class__ is bytes and (kind := data[0]) < _UNTYPED_KINDS:
        return _UNTYPED[kind](data[1:])  # the hot path of every client: half the time
    return decode_content(data[0], memoryview(data)[1:], type_)


def decode_content(kind: int, content: Buffer, type_: type[T] | None = None) -> Any:
    """A value whose type byte and content arrive separately."""
    match kind:
        case ValueType.RAW:
            return _checked(bytes(content), type_)
        case ValueType.TEXT:
            return _checked(_text(content), type_)
        case ValueType.JSON:
            return _json(content, type_)
    raise ProtocolError(f"unknown value type {kind}")


def _text(content: Buffer) -> str:
    try:
        return str(content, "utf-8")
    except UnicodeDecodeError as error:
        raise ProtocolError(f"the text of a value is not UTF-8: {error.reason}") from None


def _json(content: Buffer, type_: type[T] | None) -> Any:
    if type_ is None:
        return _any_json(content)
    try:
        if (model := adapter(type_)) is not None:
            return model.validate_json(bytes(content))
        return msgspec.json.decode(content, type=type_, dec_hook=from_builtins)
    except ValueError as error:
        raise InvalidInput(f"the value does not fit {_name(type_)}: {error}") from error


def _any_json(content: Buffer) -> Any:
    try:
        return _decode_json(content)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"the JSON of a value is broken: {error}") from None


_UNTYPED = (bytes, _text, _any_json)
"""Decoders of the content of each `ValueType` when any type will do."""
_UNTYPED_KINDS = len(_UNTYPED)


def _checked(value: Any, type_: type[T] | None) -> Any:
    if type_ is None or isinstance(value, type_ if isinstance(type_, type) else ()):
        return value
    try:
        if (model := adapter(type_)) is not None:
            return model.validate_python(value)
        return msgspec.convert(value, type_, builtin_types=(bytes,))  # no base64
    except ValueError as error:
        raise InvalidInput(f"the value does not fit {_name(type_)}: {error}") from error


def _name(type_: object) -> str:
    return getattr(type_, "__name__", str(type_))
