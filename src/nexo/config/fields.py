"""One setting: its type, its range, and what a wrong one was meant to be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import Field, fields
from typing import Any

from nexo.config import names, values
from nexo.config.settings import DAY_MS, Settings
from nexo.errors import ConfigError

_LONGEST_MS = 100 * 366 * DAY_MS
_MOST_BYTES = 2**53
_MOST = 2**31 - 1

SPECS = {spec.name: spec for spec in fields(Settings)}


def checked(key: str, value: object, label: str) -> Any:
    """``value`` as the type of setting ``key``; ``label`` names it as the user wrote it."""
    spec = SPECS.get(key)
    if spec is None:
        raise ConfigError(f"unknown setting {label}{_meant_setting(key, value)}")
    if value == spec.default and type(value) is type(spec.default):
        return value
    checked = _converter(spec)(label, value)
    if isinstance(checked, int) and not isinstance(checked, bool):
        _check_range(checked, label, spec)
    choices = spec.metadata["choices"]
    if choices and checked not in choices:
        raise ConfigError(f"{label} = {value!r}: must be one of {', '.join(choices)}")
    return checked


def _meant_setting(key: str, value: object) -> str:
    if isinstance(value, dict) and value.keys() & SPECS.keys():
        return f"; settings stand without a section: leave out [{key}]"
    known = {name: (spec.metadata["env"], spec.metadata["doc"]) for name, spec in SPECS.items()}
    return names.did_you_mean(key, known, f"known are {', '.join(sorted(SPECS))}")


def _converter(spec: Field[Any]) -> Callable[[str, object], object]:
    match str(spec.type):
        case "int" if spec.name.endswith("_ms"):
            return values.millis
        case "int" if spec.name.endswith("_bytes"):
            return values.size
        case "int":
            return values.number
        case "bool":
            return values.flag
        case "str":
            return values.text
    return values.path


def _check_range(value: int, label: str, spec: Field[Any]) -> None:
    low, high = spec.metadata["low"], spec.metadata["high"] or _highest(spec.name)
    if value < low:
        raise ConfigError(f"{label} = {value}: must be at least {low}")
    if value > high:
        raise ConfigError(f"{label} = {value}: must be at most {high}")


def _highest(name: str) -> int:
    """What still can be counted, sent and waited for."""
    if name.endswith("_ms"):
        return _LONGEST_MS
    return _MOST_BYTES if name.endswith("_bytes") else _MOST
