"""One field as people read it: a name without units, and a value that carries its own.

In a pipe, numbers are bare digits, so that other programs can count with them.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, is_dataclass
from datetime import datetime
from typing import Any

from nexo.options.units import duration_text, size_text

_A_TIME_MS = 10**12
"""Milliseconds from here on are a point in time, since no duration is that long."""
_TIMES = {
    "created_ms", "died_ms", "due_ms", "expires_ms", "last_ms", "next_ms", "parked_ms", "saved_ms",
}  # fmt: skip
"""Points in time, of which 0 means never."""
_NO_LIMIT = {
    "key_concurrency", "key_rate", "max_bytes", "max_jobs", "rate",
    "retention_bytes", "retention_ms",
}  # fmt: skip
_ZERO = dict.fromkeys(_NO_LIMIT, "no limit") | {"max_message_bytes": "the server's limit"}
"""Limits that 0 switches off, and how that is shown."""
_NUMBERED = ("generation", "offset", "partition", "pid")
"""Numbers that name something rather than count it; they are never grouped by commas."""
_LABELS = {
    "backoff_delay_ms": "backoff delay",
    "last_ms": "last written",
    "lease_left_ms": "lease ends in",
    "max_bytes": "memory limit",
    "next_ms": "fires next",
    "retention_bytes": "retention size",
    "rss_bytes": "memory",
    "used_bytes": "memory used",
    "visibility_timeout_ms": "visibility timeout",
}
_UNITS = ("_ms", "_bytes", "_s")


def label(name: str) -> str:
    """The heading of a field; its unit shows in the value."""
    if name in _LABELS:
        return _LABELS[name]
    if not name.endswith("per_s"):
        name = next((name.removesuffix(unit) for unit in _UNITS if name.endswith(unit)), name)
    return name.replace("_", " ")


def text(item: object, name: str, *, bare: bool = False) -> str:
    """A field's value on one line; numbers are ``bare`` for programs."""
    if isinstance(item, int | float) and not isinstance(item, bool):
        return _number(item, name, bare)
    match item:
        case None:
            return "-"
        case bool():
            return "yes" if item else "no"
        case str():
            return visible(item)
        case bytes():
            return f"<{len(item)} bytes>"
    return json.dumps(item, ensure_ascii=False, default=plain)


def visible(found: str, keep: str = "") -> str:
    """Text with terminal control characters escaped, except those in ``keep``."""
    if found.isprintable():
        return found
    return "".join(
        char if char.isprintable() or char in keep else ascii(char)[1:-1] for char in found
    )


def _number(item: float, name: str, bare: bool) -> str:
    if name in _ZERO and not item and not bare:
        return _ZERO[name]
    if name.endswith("_ms"):
        return _moment_or_duration(item, name, bare)
    if name.endswith("_s") and not name.endswith("per_s"):
        return duration_text(item * 1000)
    if bare or name.endswith(_NUMBERED):
        return str(item)
    return size_text(item) if name.endswith("bytes") else f"{item:,}"


def _moment_or_duration(item_ms: float, name: str, bare: bool) -> str:
    if item_ms > _A_TIME_MS:
        return time_text(item_ms, bare=bare)
    return "-" if name in _TIMES and not item_ms else duration_text(item_ms)


def time_text(time_ms: float, *, bare: bool = False) -> str:
    """A point in time, in the local time zone; for programs with that zone."""
    found = datetime.fromtimestamp(time_ms / 1000).astimezone()
    return found.isoformat(timespec="milliseconds") if bare else f"{found:%Y-%m-%d %H:%M:%S}"


def flat(found: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Fields, those of inner objects under both names; histograms are left to ``--json``."""
    for name, item in found.items():
        if not isinstance(item, Mapping):
            yield name, item
        elif "buckets" not in item:
            yield from ((f"{name}_{inner}", value) for inner, value in flat(item))


def plain(item: Any) -> Any:
    """Values JSON does not know: bytes as ``{"base64": …}``, data classes as objects."""
    if isinstance(item, bytes | bytearray | memoryview):
        return {"base64": base64.b64encode(item).decode()}
    if is_dataclass(item) and not isinstance(item, type):
        return asdict(item)
    if isinstance(item, set | frozenset):
        return sorted(item)
    return str(item)
