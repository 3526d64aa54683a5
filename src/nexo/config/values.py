"""One setting's value, as a file, the environment or a flag gives it: text, or the type itself.

Each function takes the name as the user wrote it, for its `ConfigError`.
"""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path

from nexo.errors import ConfigError, InvalidInput
from nexo.model import duration_ms

_SIZE = re.compile(r"(\d+) ?([kmg])i?b", re.ASCII | re.IGNORECASE)
_FACTORS = {"k": 1024, "m": 1024**2, "g": 1024**3}


def size(key: str, value: object) -> int:
    """Bytes: a number, or one with a unit such as ``16 MiB``."""
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    return int(match[1]) * _FACTORS[match[2].lower()] if match else number(key, value)


def millis(key: str, value: object) -> int:
    """Milliseconds: a number, or a duration such as ``20ms`` or ``7d``."""
    try:
        return duration_ms(value) if isinstance(value, str) else number(key, value)
    except InvalidInput:
        return number(key, value)


def number(key: str, value: object) -> int:
    """A whole number."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ConfigError(f"{key} = {value!r}: must be a whole number")
    try:
        return int(value)
    except ValueError:
        raise ConfigError(f"{key} = {value!r}: must be a whole number") from None


def flag(key: str, value: object) -> bool:
    """Yes or no, in the usual words."""
    if isinstance(value, bool):
        return value
    match str(value).strip().lower():
        case "1" | "true" | "yes" | "on":
            return True
        case "0" | "false" | "no" | "off":
            return False
    raise ConfigError(f"{key} = {value!r}: must be true or false")


def text(key: str, value: object) -> str:
    """Text that is not empty."""
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{key} = {value!r}: must be a non-empty text")
    return value


def path(key: str, value: object) -> Path:
    """A path."""
    if not isinstance(value, str | Path) or not str(value) or "\0" in str(value):
        raise ConfigError(f"{key} = {value!r}: must be a path")
    return Path(value)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
