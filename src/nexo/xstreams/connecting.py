"""A broker from a URL, so that which one it is can be a setting."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from nexo.errors import InvalidInput, InvalidOption
from nexo.xstreams.broker import StreamBroker
from nexo.xstreams.checks import StreamLimits
from nexo.xstreams.local import LocalStreamBroker
from nexo.xstreams.nexo_broker import NexoStreamBroker
from nexo.xstreams.redis_broker import RedisStreamBroker

_DIGITS = 20
"""More digits make no number that could be a limit."""


def connect(
    url: str, *, max_stream_length: int | None = None, max_pending: int | None = None
) -> StreamBroker:
    """The broker that ``url`` names; the limits may also be in the URL's query.

    ``memory://`` is a new, empty broker each time. Other query options are those of a
    Nexo or a Redis URL.
    """
    given = {"max_stream_length": max_stream_length, "max_pending": max_pending}
    url, limits = _split(url)
    limits |= {name: value for name, value in given.items() if value is not None}
    match urlsplit(url).scheme:
        case "memory":
            return LocalStreamBroker(**limits)
        case "nexo" | "nexos":
            return NexoStreamBroker(url, **limits)
        case "redis" | "rediss" | "unix":
            return RedisStreamBroker(url, **limits)
    raise InvalidInput(
        f"{url!r} names no stream broker: write memory://, nexo://host:port or redis://host:port"
    )


def _split(url: str) -> tuple[str, dict[str, Any]]:
    """The URL without our limits, and the limits."""
    parts = urlsplit(url)
    limits: dict[str, Any] = {}
    others = []
    for name, text in parse_qsl(parts.query, keep_blank_values=True):
        if name in StreamLimits.__slots__:
            limits[name] = _number(name, text)
        else:
            others.append((name, text))
    if parts.scheme == "memory" and (others or parts.netloc or parts.path.strip("/")):
        raise InvalidInput(f"{url!r}: memory:// takes no host, path or other options")
    return urlunsplit(parts._replace(query=urlencode(others))), limits


def _number(name: str, text: str) -> int:
    if not text.isdecimal() or len(text) > _DIGITS:
        raise InvalidOption(f"URL option {name}={text!r}: must be a whole number")
    return int(text)
