"""Checks that every broker makes first, so that all reject alike."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from nexo.client.checks import whole
from nexo.errors import InvalidInput, InvalidOption
from nexo.model import check_name
from nexo.xstreams import ids
from nexo.xstreams.ids import MessageId

MAX_STREAM_LENGTH = 10_000
MAX_PENDING = 1_000


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """How much a stream keeps and how much one consumer may hold (SPEC J3)."""

    max_stream_length: int = MAX_STREAM_LENGTH
    max_pending: int = MAX_PENDING

    def __post_init__(self) -> None:
        limits = {"max_stream_length": self.max_stream_length, "max_pending": self.max_pending}
        at_least(1, InvalidOption, **limits)


def names(**given: str) -> None:
    """Stream, group and consumer names follow one rule (SPEC A11)."""
    for what, name in given.items():
        if not isinstance(name, str):
            raise InvalidInput(f"{what} must be a str, not {type(name).__name__}")
        check_name(name, what)


def at_least(low: int, refusal: type[InvalidInput] = InvalidInput, /, **given: int) -> None:
    """Whole numbers from ``low``; a ``refusal`` names the one that is wrong."""
    for what, value in given.items():
        whole(value, what, low, refusal=refusal)


def message_ids(given: Iterable[str]) -> list[MessageId]:
    """The ids, each once, in the order given."""
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise InvalidInput(f"ids must be a list of message ids, not {given!r}")
    return list(dict.fromkeys(ids.parse(text) for text in given))


def group_start(start: str) -> MessageId | None:
    """The id after which a new group starts to read; None is the end of the stream."""
    return None if start == "$" else ids.parse(start)
