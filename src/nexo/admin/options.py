"""Options of queues and streams as forms ask for them and people write them.

Options are described where they are defined; here they become JSON.
Durations and sizes may be written with their unit, such as ``7d`` and ``1GiB``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import msgspec
from msgspec import inspect

from nexo.errors import AlreadyExists, InvalidName, InvalidOption
from nexo.options.described import described
from nexo.options.option import Described, Unfit, Unit

_UNITS: dict[Unit | None, str] = {
    "ms": r"^\d+(\.\d+)? ?(ms|s|m|h|d)$",
    "bytes": r"^\d+ ?([KMGT]i?)?B?$",
}
"""The written form of numbers with a unit, by the unit of their field."""


class Option(msgspec.Struct):
    """An option: its name, type and allowed values."""

    name: str
    title: str
    help: str
    kind: Literal["whole", "number", "flag", "choice"]
    unit: Unit | None
    """Values in ``ms`` and ``bytes`` may also be texts with a unit: ``7d``, ``1GiB``."""
    default: bool | float | str
    """On this server."""
    least: float | None
    most: float | None
    choices: list[str]
    """Of a ``choice``."""
    usual: bool
    """Shown first in forms."""
    fixed: bool
    """Set at creation; cannot be changed."""


class Known:
    """The options that one kind of thing has; ``subject`` is the parameter that names the thing."""

    def __init__(self, kind: type[msgspec.Struct], subject: str) -> None:
        self._options = described(kind)
        self._subject = subject
        self._named = re.compile(rf"(?:\w+ options: )?({'|'.join(self._options)})\b")

    @property
    def schema(self) -> msgspec.Meta:
        """The options as properties of an object, for OpenAPI."""
        return msgspec.Meta(
            extra_json_schema={
                "properties": {name: _schema(each) for name, each in self._options.items()}
            }
        )

    def shown(self, defaults: msgspec.Struct) -> list[Option]:
        """All options with their defaults."""
        values = msgspec.to_builtins(defaults)
        return [_option(each, values[each.name]) for each in self._options.values()]

    def read(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The given options, as the broker takes them."""
        return {name: self._value(name, value) for name, value in given.items()}

    @contextmanager
    def refusals(self) -> Iterator[None]:
        """Have errors say which field of the request they are about."""
        try:
            yield
        except InvalidOption as error:
            found = self._named.match(error.message)
            error.field = found[1] if found else None
            raise
        except (InvalidName, AlreadyExists) as error:
            error.field = self._subject
            raise

    def _value(self, name: str, value: Any) -> Any:
        known = self._options.get(name)
        if known is None:
            return value
        try:
            return known.read(value, name)
        except Unfit as error:
            raise InvalidOption(known.refusal(name, value, error)) from None


_JSON = {"whole": "integer", "number": "number", "flag": "boolean"}


def _schema(one: Described) -> dict[str, Any]:
    shape = _option(one, False)
    found: dict[str, Any] = {"title": one.title, "description": one.meaning}
    if one.choices:
        return found | {"enum": one.choices}
    limits = {"minimum": shape.least, "maximum": shape.most, "pattern": _UNITS.get(one.unit)}
    kind = _JSON[shape.kind]
    return (
        found
        | {"type": [kind, "string"] if one.unit in _UNITS else kind}
        | {name: limit for name, limit in limits.items() if limit is not None}
    )


def _option(one: Described, default: Any) -> Option:
    match one.type:
        case inspect.IntType(ge=least, le=most):
            kind: Literal["whole", "number", "flag", "choice"] = "whole"
        case inspect.FloatType(ge=least, le=most):
            kind = "number"
        case inspect.BoolType():
            kind, least, most = "flag", None, None
        case _:
            kind, least, most = "choice", None, None
    return Option(
        one.name, one.title, one.meaning, kind, one.unit, default, least, most, one.choices,
        one.usual, one.fixed,
    )  # fmt: skip
