"""Checks of arguments, made at the call, before anything is sent; reasons become valid text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from nexo.errors import InvalidInput, InvalidOption
from nexo.options.units import MAX_DURATION_MS, Duration, millis

MOST = 2**63 - 1
"""The greatest number that the wire carries."""
MAX_REASON = 4_096
"""Longer reasons are cut off: people read them."""


def until_ms(value: Duration | datetime, what: str, high_ms: int = MAX_DURATION_MS) -> int:
    """`millis` of a duration, or of the time until a moment; 0 if that is over."""
    if not isinstance(value, datetime):
        return millis(value, what, high_ms)
    if value.tzinfo is None:
        raise InvalidInput(f"{what} {value}: say which time zone, as in datetime.now(UTC)")
    left = value - datetime.now(UTC)
    return millis(max(left, timedelta()), what, high_ms)


def positive_millis(value: Duration, what: str, high_ms: int = MAX_DURATION_MS) -> int:
    """`millis` of a duration that must not be 0."""
    if not (ms := millis(value, what, high_ms)):
        raise InvalidInput(f"{what} must be more than 0; leave it out for the default")
    return ms


def positive_s(value: Duration, what: str) -> float:
    """`positive_millis`, in seconds."""
    return positive_millis(value, what) / 1_000


def seconds(value: Duration | None, what: str = "timeout") -> float | None:
    """A duration in seconds; None stays None, for no limit."""
    return None if value is None else millis(value, what) / 1_000


def text(value: Any, what: str) -> str:
    """``value`` if it is text that can travel."""
    if not isinstance(value, str):
        raise InvalidInput(f"{what} is text, not {type(value).__name__}")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise InvalidInput(f"{what} cannot be written as UTF-8: {error.reason}") from None
    return value


def whole(
    value: Any, what: str, low: int, high: int = MOST, refusal: type[InvalidInput] = InvalidInput
) -> int:
    """``value`` if it is a whole number in low..high; otherwise a ``refusal`` names it."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise refusal(f"{what} is a whole number, not {value!r}")
    if not low <= value <= high:
        raise refusal(f"{what} {value} is out of range: use {low} to {high}")
    return value


def column(values: Any, what: str, count: int) -> None:
    """Reject keys or headers of several values that are not one for each."""
    if values is None:
        return
    if not isinstance(values, Sequence) or isinstance(values, str | bytes):
        raise InvalidInput(f"{what} is a list with one item for each value, not {values!r:.64}")
    if len(values) != count:
        raise InvalidInput(f"{what} has {len(values)} items for {count} values")


def each(values: Any, what: str = "values") -> Iterable[Any]:
    """``values`` if they are iterable and not a single text."""
    if not isinstance(values, Iterable):
        raise InvalidInput(f"{what} are a list or another iterable, not {type(values).__name__}")
    return values


def pairs(values: Any, what: str = "values") -> Mapping[Any, Any]:
    """``values`` if they are a mapping."""
    if not isinstance(values, Mapping):
        raise InvalidInput(f"{what} are a dict or another mapping, not {type(values).__name__}")
    return values


def function(value: Any, what: str = "the handler") -> None:
    """Reject a handler that is not callable."""
    if not callable(value):
        raise InvalidInput(f"{what} is a function, not {type(value).__name__}")


def not_keywords(misplaced: tuple[object, ...], example: str) -> InvalidOption:
    """The error for options that came by position, such as a dict of them."""
    given = ", ".join(f"{each!r:.64}" for each in misplaced)
    return InvalidOption(f"{given}: options are keywords here, as in {example}")


def reason_text(said: object) -> str:
    """Why a job or record failed, as valid text of limited length."""
    return str(said)[:MAX_REASON].encode("utf-8", "backslashreplace").decode()


def failure_text(error: BaseException) -> str:
    """A handler's error as a `reason_text`, whatever it holds."""
    try:
        said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    except Exception:  # the error's own __str__ may fail
        said = type(error).__name__
    return reason_text(said)
