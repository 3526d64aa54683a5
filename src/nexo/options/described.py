"""One mechanism for options: a frozen msgspec Struct whose fields say what they are.

A field's name is the option's stored name, in files, on the wire and over HTTP. A duration ends
in ``_ms`` there; people write it without the unit, as a duration (``visibility_timeout="30s"``).
Ranges and types are checked by msgspec, and the errors name the option.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import inspect

from nexo.errors import InvalidInput, InvalidOption
from nexo.options.refusals import in_words

T = TypeVar("T", bound=msgspec.Struct)

Unit: TypeAlias = Literal["ms", "bytes", "per second"]


def option(
    title: str, meaning: str, unit: Unit | None = None, *, usual: bool = False, fixed: bool = False
) -> msgspec.Meta:
    """Describes an option; ``fixed`` ones cannot be changed, ``usual`` ones often are."""
    extra = {"unit": unit, "usual": usual, "fixed": fixed}
    return msgspec.Meta(title=title, description=meaning, extra=extra)


@dataclass(frozen=True, slots=True)
class Described:
    """One option."""

    name: str
    type: inspect.Type
    title: str
    meaning: str
    unit: Unit | None
    usual: bool
    fixed: bool

    @property
    def keyword(self) -> str:
        """What people write: the name of a duration without its unit."""
        return self.name.removesuffix("_ms") if self.unit == "ms" else self.name

    @property
    def choices(self) -> list[str]:
        """What it may be, if it is one of a few words."""
        match self.type:
            case inspect.EnumType(cls=kind) if issubclass(kind, enum.StrEnum):
                return [member.value for member in kind]
            case inspect.LiteralType(values=values):
                return [str(value) for value in values]
        return []


def described(options: type[msgspec.Struct]) -> Iterator[Described]:
    """The options that a struct holds, in order."""
    info = inspect.type_info(options)
    assert isinstance(info, inspect.StructType)
    for field in info.fields:
        assert isinstance(field.type, inspect.Metadata), f"{field.name} is not described"
        said: dict[str, Any] = field.type.extra_json_schema or {}
        yield Described(
            field.name, field.type.type, said["title"], said["description"],
            **(field.type.extra or {}),
        )  # fmt: skip


def keywords(options: type[msgspec.Struct]) -> dict[str, Described]:
    """The options by what people write."""
    return {each.keyword: each for each in described(options)}


def to_stored(
    options: type[msgspec.Struct], given: Mapping[str, Any], millis: Callable[[Any, str], int]
) -> dict[str, Any]:
    """Options as people write them, by their stored names; ``millis`` reads durations.

    Stored names are taken too, with numbers as they are, so that what a thing shows of its
    options can make another like it. `InvalidOption` for a name that does not exist.
    """
    known = keywords(options)
    by_name = known | {each.name: each for each in known.values()}
    found: dict[str, Any] = {}
    for name, value in given.items():
        option = by_name.get(name)
        if option is None:
            raise InvalidOption(f"unknown option {name!r}; known are {', '.join(sorted(known))}")
        if option.name in found:
            raise InvalidOption(f"{option.name} was given twice, with and without its unit")
        says_unit = name != option.name or isinstance(value, str | timedelta)
        found[option.name] = millis(value, name) if option.unit == "ms" and says_unit else value
    return found


def merged(given: Mapping[str, Any], base: T, what: str) -> T:
    """``base`` with ``given`` on top; `InvalidOption` says what of ``what`` is wrong."""
    kind = type(base)
    try:
        return msgspec.convert(msgspec.to_builtins(base) | dict(given), kind)
    except msgspec.ValidationError as error:
        raise InvalidOption(f"{what} options: {in_words(error, kind)}") from None


def differences(now: msgspec.Struct, asked: msgspec.Struct) -> str:
    """Which options are not as asked for."""
    return "; ".join(
        f"{name} = {getattr(now, name)}, not {getattr(asked, name)}"
        for name in now.__struct_fields__
        if getattr(now, name) != getattr(asked, name)
    )


def check_range(what: str, value: int, high: int, low: int = 0) -> int:
    """``value`` if it lies in low..high; `InvalidInput` says what is allowed otherwise."""
    if not low <= value <= high:
        raise InvalidInput(f"{what} {value} is out of range: use {low} to {high}")
    return value
