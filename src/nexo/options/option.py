"""One option: its name, what it may be, how its values are read and checked."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args, get_origin

import msgspec
from msgspec import inspect

from nexo.errors import InvalidInput
from nexo.options.units import duration_ms, duration_text, millis, size_bytes, size_text

Unit: TypeAlias = Literal["ms", "s", "bytes", "per second"]

_SWITCH = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}
_PRINTED_BITS = 1_000
"""Python prints no number of more than 4,300 digits."""


class Unfit(ValueError):
    """A value that an option cannot have; says what it must be."""


def option(
    meaning: str,
    *,
    title: str = "",
    unit: Unit | None = None,
    usual: bool = False,
    fixed: bool = False,
    secret: bool = False,
    variable: str = "",
) -> msgspec.Meta:
    """Describes an option; see `Described`."""
    extra = {
        "title": title, "unit": unit, "usual": usual, "fixed": fixed, "secret": secret,
        "variable": variable,
    }  # fmt: skip
    return msgspec.Meta(description=meaning, extra=extra)


@dataclass(frozen=True, slots=True)
class Described:
    """One option."""

    name: str
    annotation: Any
    type: inspect.Type
    """The type of its value, if it is not None."""
    default: Any
    meaning: str
    title: str
    """Its label in a form."""
    unit: Unit | None
    """The unit of its numbers; a name that ends in a unit says it."""
    usual: bool
    """It is often changed: forms show it first."""
    fixed: bool
    """It cannot be changed later."""
    secret: bool
    """Errors do not show it."""
    variable: str
    """The environment variable that sets it."""

    @property
    def is_duration(self) -> bool:
        return self.unit in ("ms", "s")

    @property
    def keyword(self) -> str:
        """The name that people write: that of a duration has no unit."""
        return self.name.removesuffix(f"_{self.unit}") if self.is_duration else self.name

    @property
    def choices(self) -> list[str]:
        """The allowed words, if it is one of a few."""
        return _choices(self.annotation)

    @property
    def default_text(self) -> str:
        """The default as a person would write it; empty if there is none."""
        match self.default:
            case None:
                return ""
            case bool():
                return str(self.default).lower()
            case int() | float() if self.default and self.unit:
                return self._shown(self.default)
        return str(self.default)

    @property
    def allowed(self) -> str:
        """The rule for its values, in words."""
        if choices := self.choices:
            return f"one of {', '.join(choices)}"
        match self.type:
            case inspect.BoolType():
                return "true or false"
            case inspect.StrType(min_length=least):
                return "text that is not empty" if least else "text"
            case inspect.IntType() | inspect.FloatType():
                return f"{self._kind_of_number} {self._range}"
        return "a path"

    @property
    def _kind_of_number(self) -> str:
        if self.is_duration:
            return "a duration such as 500ms, 30s or 7d,"
        if self.unit == "bytes":
            return "a size such as 512KiB or 1GiB,"
        return "a whole number" if isinstance(self.type, inspect.IntType) else "a number"

    @property
    def _range(self) -> str:
        assert isinstance(self.type, inspect.IntType | inspect.FloatType)
        low, high = self._shown(self.type.ge), self._shown(self.type.le)
        return f"from {low} to {high}" if high else f"{low} or more"

    def _shown(self, limit: float | None) -> str:
        if limit is None:
            return ""
        if self.is_duration:
            return duration_text(limit * 1_000 if self.unit == "s" else limit)
        if self.unit == "bytes":
            return size_text(limit).replace(".0 ", " ")
        return f"{limit:,.12g}" if isinstance(limit, float) else f"{limit:,}"

    def refusal(self, label: str, value: object, error: Unfit) -> str:
        """The message about an unfit ``value``; ``label`` is its name as the caller gave it."""
        return f"{label}: {error}" if self.secret else f"{label} = {_short(value)}: {error}"

    def read(self, value: Any, name: str, *, from_text: bool = False) -> Any:
        """``value``, which was given as ``name``, as it is stored; not yet checked.

        A size or duration may be a text with a unit, a duration also a `timedelta`. A duration
        without a unit is in that of ``name``, or in seconds if ``name`` has none. ``from_text``
        is for sources that have only texts: variables, flags and URLs. Raises `Unfit`.
        """
        try:
            if isinstance(value, str):
                return self._parsed(value, name, from_text)
            if self.is_duration and (isinstance(value, timedelta) or name == self.keyword):
                return value if value is None else self._stored(millis(value))
        except (InvalidInput, KeyError, ValueError):
            raise self._unfit() from None
        return value

    def _parsed(self, text: str, name: str, from_text: bool) -> Any:
        if self.is_duration:
            unit = "s" if name == self.keyword else str(self.unit)
            return self._stored(duration_ms(text, unit if from_text else ""))
        if self.unit == "bytes":
            return size_bytes(text)
        match self.type:
            case inspect.BoolType() if from_text:
                return _SWITCH[text.strip().lower()]
            case inspect.IntType() if from_text:
                return int(text)
            case inspect.FloatType() if from_text:
                return float(text)
        return text

    def _stored(self, length_ms: int) -> float:
        return length_ms / 1_000 if self.unit == "s" else length_ms

    def check(self, value: object) -> Any:
        """``value`` if the option may have it. Raises `Unfit`."""
        if isinstance(value, str) and isinstance(self.type, inspect.StrType):
            try:
                value.encode()
            except UnicodeEncodeError as error:
                raise Unfit(f"cannot be written as UTF-8: {error.reason}") from None
        try:
            return msgspec.convert(value, self.annotation, dec_hook=_path)
        except (msgspec.ValidationError, ValueError):
            raise self._unfit() from None

    def _unfit(self) -> Unfit:
        return Unfit(f"must be {self.allowed}")


def _short(value: object) -> str:
    if isinstance(value, int) and value.bit_length() > _PRINTED_BITS:
        return f"a number of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}…"


def _path(_: type, value: object) -> Path:
    """Paths, which msgspec does not know."""
    if not isinstance(value, str | Path) or not str(value) or "\0" in str(value):
        raise ValueError(value)
    return Path(value)


def _choices(hint: Any) -> list[str]:
    """The words of a `Literal` or an enum, in their order."""
    if get_origin(hint) is Literal:
        return [str(value) for value in get_args(hint)]
    if isinstance(hint, type):
        return [member.value for member in hint] if issubclass(hint, enum.StrEnum) else []
    return [word for inner in get_args(hint) for word in _choices(inner)]
