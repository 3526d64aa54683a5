"""Message ids: ``ms-seq``, compared as two numbers."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from nexo.errors import InvalidInput

MAX_SEQ = (1 << 64) - 1

_ID = re.compile(r"(\d{1,20})(?:-(\d{1,20}))?", re.ASCII)


class MessageId(NamedTuple):
    """An id as numbers, so that ids sort as they were given out."""

    ms: int
    seq: int

    def __str__(self) -> str:
        return f"{self.ms}-{self.seq}"

    def following(self) -> MessageId:
        """The lowest id above this one."""
        if self.seq < MAX_SEQ:
            return MessageId(self.ms, self.seq + 1)
        return MessageId(self.ms + 1, 0)

    def preceding(self) -> MessageId:
        """The greatest id below this one; the lowest of all stays what it is."""
        if self.seq > 0:
            return MessageId(self.ms, self.seq - 1)
        return MessageId(self.ms - 1, MAX_SEQ) if self.ms > 0 else self


ZERO = MessageId(0, 0)
GREATEST = MessageId(MAX_SEQ, MAX_SEQ)


def parse(text: Any, seq: int = 0) -> MessageId:
    """The id in ``text``; ``seq`` stands in for a second part that is left out."""
    found = _ID.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise InvalidInput(f"{text!r} is not a message id: write ms-seq, such as 1700000000000-0")
    parsed = MessageId(int(found[1]), seq if found[2] is None else int(found[2]))
    if max(parsed) > MAX_SEQ:
        raise InvalidInput(f"message id {text!r} is out of range")
    return parsed


def lower(text: str) -> MessageId:
    """Where a range starts: ``-``, an id, the first of a millisecond, or after ``(id``."""
    if text == "-":
        return ZERO
    if isinstance(text, str) and text.startswith("("):
        parsed = parse(text[1:])
        if parsed == GREATEST:
            raise InvalidInput(f"{text!r}: there is no greater id to start with")
        return parsed.following()
    return parse(text)


def upper(text: str) -> MessageId:
    """Where a range ends: ``+``, an id, the last of a millisecond, or before ``(id``."""
    if text == "+":
        return GREATEST
    if isinstance(text, str) and text.startswith("("):
        return parse(text[1:]).preceding()
    return parse(text, MAX_SEQ)
