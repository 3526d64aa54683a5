"""Types that contain pydantic models: decoded with pydantic's own validators, by alias.

msgspec decodes everything else, and calls `from_builtins` for models within its structs.
"""

from __future__ import annotations

import dataclasses
import sys
import typing
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import msgspec


def adapter(type_: Any) -> Any:
    """Pydantic's ``TypeAdapter`` for a type that needs it; None if msgspec can decode it."""
    if "pydantic" not in sys.modules:
        return None  # pydantic is not loaded, so there are no models
    try:
        return _adapter(type_)
    except TypeError:  # an annotation that cannot be hashed
        return _adapter.__wrapped__(type_)


@lru_cache(maxsize=1_000)
def _adapter(type_: Any) -> Any:
    within = list(_within(type_, set()))
    if not any(map(is_model, within)) or any(map(_is_struct, within)):
        return None
    from pydantic import TypeAdapter  # noqa: PLC0415 - optional, and loaded by then

    return TypeAdapter(type_)


def from_builtins(type_: type[Any], value: Any) -> Any:
    """msgspec's hook for a class it does not know."""
    if not is_model(type_):
        raise NotImplementedError(f"values of {type_.__name__} cannot be read")
    return type_.model_validate(value)


def is_model(type_: Any) -> bool:
    return isinstance(type_, type) and hasattr(type_, "model_validate_json")


def _is_struct(type_: Any) -> bool:
    return isinstance(type_, type) and issubclass(type_, msgspec.Struct)


def _within(type_: Any, seen: set[int]) -> Iterator[Any]:
    """The type, and every type that its values may contain."""
    if id(type_) in seen:
        return
    seen.add(id(type_))
    yield type_
    for inner in (*typing.get_args(type_), *_fields(type_)):
        yield from _within(inner, seen)


def _fields(type_: Any) -> tuple[Any, ...]:
    plain = dataclasses.is_dataclass(type_) or _is_struct(type_) or typing.is_typeddict(type_)
    if not plain or is_model(type_):
        return ()
    try:
        return tuple(typing.get_type_hints(type_).values())
    except Exception:  # unresolvable names: msgspec reports them if they matter
        return ()
