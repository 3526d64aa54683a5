"""Says why a message was rejected, in the words of its sender rather than of its encoding."""

from __future__ import annotations

import enum
import re
from typing import Any, Final, get_args, get_type_hints

import msgspec

from nexo.errors import InvalidInput

_PLACE = re.compile(r"(?P<said>.*) - at (?P<key>`key` in )?`\$(?P<path>.*)`", re.DOTALL)
_INDEX = re.compile(r"\[(\d+)\]")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`")

UNWRITABLE: Final = (OverflowError, UnicodeEncodeError, TypeError)
"""Errors of encoders for a number, a text or an object that cannot travel."""


def unwritable(error: Exception) -> InvalidInput:
    """The typed error for one of `UNWRITABLE`."""
    match error:
        case OverflowError():
            return InvalidInput("a number is too large: it must fit in 64 bits")
        case UnicodeEncodeError():
            return InvalidInput(f"a text cannot be written as UTF-8: {error.reason}")
    return InvalidInput(f"an argument has the wrong type: {error}")


def in_words(error: msgspec.ValidationError, type_: Any) -> str:
    """Reads msgspec's error about a ``type_``: the field, then its allowed values."""
    found = _PLACE.fullmatch(str(error))
    said, path = (found["said"], found["path"]) if found else (str(error), "")
    fields = tuple(getattr(type_, "__struct_fields__", ()))
    if (unknown := _UNKNOWN.match(said)) is not None:
        return f"unknown field {unknown[1]!r}; known are {', '.join(sorted(fields))}"
    field, rest = _split(path, fields)
    said = said.replace("`", "")
    if said.startswith("Invalid enum value"):
        said += _allowed(type_, field)
    elif not rest:
        said += _range(type_, field)
    if not field:
        return said
    key = "a key of " if found and found["key"] else ""
    return f"{key}{field}{rest}: {said[:1].lower()}{said[1:]}"


def _split(path: str, fields: tuple[str, ...]) -> tuple[str, str]:
    """The field at fault and the place within it; fields may travel by position."""
    at = _INDEX.match(path)
    if at is not None and int(at[1]) < len(fields):
        return fields[int(at[1])], path[at.end() :]
    field = re.split(r"[.\[]", path.removeprefix("."), maxsplit=1)[0]
    return field, path.removeprefix(".")[len(field) :]


def _allowed(type_: Any, field: str) -> str:
    hint = get_type_hints(type_).get(field) if isinstance(type_, type) else None
    values: list[object]
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        values = [member.value for member in hint]
    else:
        values = [value for value in get_args(hint) if isinstance(value, str | int)]
    return f"; use one of {', '.join(map(str, values))}" if values else ""


def _range(type_: Any, field: str) -> str:
    """Both ends of what a number may be, where it has both."""
    if not isinstance(type_, type) or not issubclass(type_, msgspec.Struct):
        return ""
    info = msgspec.inspect.type_info(type_)
    assert isinstance(info, msgspec.inspect.StructType)
    for kind in (known.type for known in info.fields if known.encode_name == field):
        bare = kind.type if isinstance(kind, msgspec.inspect.Metadata) else kind
        for choice in bare.types if isinstance(bare, msgspec.inspect.UnionType) else (bare,):
            low, high = getattr(choice, "ge", None), getattr(choice, "le", None)
            if low is not None and high is not None:
                return f"; use {low} to {high}"
    return ""
