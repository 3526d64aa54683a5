"""One mechanism for options: a frozen msgspec Struct whose fields say what they are.

Queues, streams, groups, the server's settings and a client's address are such structs. A field's
name is the option's stored name, in files, on the wire and over HTTP. The name of a duration ends
in its unit, ``_ms`` or ``_s``; people write it without, as in ``visibility_timeout="30s"``. Types
and ranges are msgspec's; errors name the option and say what it must be.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, TypeVar, get_type_hints

import msgspec
from msgspec import inspect

from nexo.errors import InvalidInput, InvalidOption
from nexo.options.option import Described, Unfit, Unit
from nexo.options.refusals import in_words

T = TypeVar("T", bound=msgspec.Struct)

_SUFFIXES: dict[str, Unit] = {"_ms": "ms", "_s": "s", "_bytes": "bytes"}


@cache
def described(options: type[msgspec.Struct]) -> Mapping[str, Described]:
    """The options that a struct holds, by name and in order; other fields are not options."""
    info = inspect.type_info(options)
    assert isinstance(info, inspect.StructType)
    hints = get_type_hints(options, include_extras=True)
    return {
        field.name: _described(field, field.type, hints[field.name])
        for field in info.fields
        if isinstance(field.type, inspect.Metadata)
    }


def _described(field: inspect.Field, known: inspect.Metadata, hint: Any) -> Described:
    extra: dict[str, Any] = known.extra or {}
    found = [unit for suffix, unit in _SUFFIXES.items() if field.name.endswith(suffix)]
    return Described(
        name=field.name,
        annotation=hint,
        type=_without_none(known.type),
        default=field.default,
        meaning=(known.extra_json_schema or {})["description"],
        **extra | {"unit": extra["unit"] or next(iter(found), None)},
    )


def _without_none(kind: inspect.Type) -> inspect.Type:
    if not isinstance(kind, inspect.UnionType):
        return kind
    (only,) = (each for each in kind.types if not isinstance(each, inspect.NoneType))
    return only


def keywords(options: type[msgspec.Struct]) -> dict[str, Described]:
    """The options by what people write."""
    return {each.keyword: each for each in described(options).values()}


def unknown(name: str, known: Iterable[str], what: str = "option") -> InvalidOption:
    """The error about a ``name`` that is none of the ``known`` ones."""
    return InvalidOption(f"unknown {what} {name!r}; known are {', '.join(sorted(known))}")


def to_stored(options: type[msgspec.Struct], given: Mapping[str, Any]) -> dict[str, Any]:
    """Options as people write them, by their stored names.

    Stored names are taken too, with numbers as they are, so that what a thing shows of its
    options can make another like it. `InvalidOption` names what does not exist or does not fit.
    """
    known = keywords(options)
    found: dict[str, Any] = {}
    for name, value in given.items():
        one = known.get(name) or described(options).get(name)
        if one is None:
            raise unknown(name, known)
        if one.name in found:
            raise InvalidOption(f"{one.name} was given twice, with and without its unit")
        try:
            found[one.name] = one.check(one.read(value, name))
        except Unfit as error:
            raise InvalidOption(one.refusal(name, value, error)) from None
    return found


def merged(given: Mapping[str, Any], base: T, what: str) -> T:
    """``base`` with ``given`` on top; `InvalidOption` says what of ``what`` is wrong."""
    kind = type(base)
    try:
        return msgspec.convert(msgspec.to_builtins(base) | dict(given), kind)
    except msgspec.ValidationError as error:
        wrong = _fault(kind, given) or in_words(error, kind)
        raise InvalidOption(f"{what} options: {wrong}") from None


def _fault(options: type[msgspec.Struct], given: Mapping[str, Any]) -> str:
    """The mistake in the first of ``given`` that an option cannot be."""
    known = described(options)
    for name, value in given.items():
        if name not in known:
            return unknown(name, known).message
        try:
            known[name].check(value)
        except Unfit as error:
            return known[name].refusal(name, value, error)
    return ""


def differences(now: msgspec.Struct, asked: msgspec.Struct) -> str:
    """Which options are not as asked for."""
    return "; ".join(
        f"{name} = {getattr(now, name)}, not {getattr(asked, name)}"
        for name in now.__struct_fields__
        if getattr(now, name) != getattr(asked, name)
    )


def check_range(what: str, value: int, high: int | None = None, low: int = 0) -> int:
    """``value`` if it lies in low..high; `InvalidInput` says what is allowed otherwise."""
    if value < low or (high is not None and value > high):
        allowed = f"{low} or more" if high is None else f"{low} to {high}"
        raise InvalidInput(f"{what} {value} is out of range: use {allowed}")
    return value
