"""Results of the store's client: removed values, decisions, keys of cached calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

from nexo.errors import DoesNotFit, InvalidInput, ProtocolError
from nexo.model import Buffer
from nexo.protocol.values import decode_value, json_bytes


class RateDecision(NamedTuple):
    """The decision of a rate limiter."""

    allowed: bool
    remaining: float
    """How much could still be taken now."""
    retry_after: float
    """Seconds until it would be allowed; 0 if it was."""


def call_key(function: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> str:
    """The key that the result of a call is cached under: the function and its arguments."""
    name = f"cached:{function.__module__}.{function.__qualname__}"
    given = json_bytes([args, dict(sorted(named.items()))])
    return f"{name}:{blake2b(given, digest_size=16).hexdigest()}"


def taken(value: Buffer, type_: Any, done: str) -> Any:
    """Decode a value that the store no longer has; if it does not fit, the error carries it.

    ``done`` says in the error what was changed.
    """
    try:
        return decode_value(value, type_)
    except InvalidInput as error:
        raise DoesNotFit(f"{error}; {done}: see the error's value", value=_as_is(value)) from error


def all_taken(values: Sequence[Buffer], type_: Any, done: str) -> list[Any]:
    """`taken` of several."""
    try:
        return [decode_value(value, type_) for value in values]
    except InvalidInput as error:
        as_they_are = [_as_is(value) for value in values]
        raise DoesNotFit(f"{error}; {done}: see the error's value", value=as_they_are) from error


def _as_is(value: Buffer) -> Any:
    try:
        return decode_value(value)
    except ProtocolError:
        return bytes(value)[1:]
