"""What an option of a queue or stream is, said where it is defined and read by who asks for it."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import inspect

Unit: TypeAlias = Literal["ms", "bytes", "per second"]


def option(
    title: str, meaning: str, unit: Unit | None = None, *, usual: bool = False, fixed: bool = False
) -> msgspec.Meta:
    """What is said of an option; ``fixed`` ones cannot be changed, ``usual`` ones often are."""
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
