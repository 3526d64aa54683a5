"""The options of queues and streams as flags, made from their descriptions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
import msgspec
from msgspec import inspect

from nexo.cli.sizes import duration, size
from nexo.options.described import Described, described


def option_flags(
    kind: type[msgspec.Struct], *, fixed: bool = True
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command a flag for each option, by its stored name; ``fixed`` ones too, or not."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        for one in reversed([*described(kind)]):
            if fixed or not one.fixed:
                function = _flag(one)(function)
        return function

    return decorate


def given(options: dict[str, Any]) -> dict[str, Any]:
    """The options that were given."""
    return {name: value for name, value in options.items() if value is not None}


def _flag(one: Described) -> Callable[[Callable[..., None]], Callable[..., None]]:
    word = one.keyword.replace("_", "-")
    text = f"{one.title}: {one.meaning[:1].lower()}{one.meaning[1:]}"
    if isinstance(one.type, inspect.BoolType):
        return click.option(f"--{word}/--no-{word}", one.name, default=None, help=text)
    return click.option(f"--{word}", one.name, type=_type(one), help=text)


def _type(one: Described) -> Any:
    if one.unit in ("ms", "bytes"):
        return duration if one.unit == "ms" else size
    match one.type:  # upper bounds are left to the server
        case inspect.IntType(ge=least):
            return click.IntRange(least)
        case inspect.FloatType(ge=least):
            return click.FloatRange(least)
    return click.Choice(one.choices)
