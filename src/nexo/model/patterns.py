"""The syntax of topics and patterns, and their matching (SPEC C1, C5).

Levels are separated by ``/`` and may be empty. ``+`` stands for one level, ``#`` for the
rest and for the level before it. A wildcard as first level does not match topics that
begin with ``$``. ``$share/group/pattern`` shares the messages of a pattern in a group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nexo.errors import InvalidName

MAX_TOPIC_BYTES = 65_535
MAX_LEVELS = 128
SHARE = "$share"
REPLIES = "$reply"
"""Topics for replies: ``$reply/inbox/...``, where the inbox is a name nobody can guess."""
MIN_INBOX_CHARACTERS = 22
"""The length of 128 random bits in URL-safe base64."""


def check_topic(topic: str) -> list[str]:
    """The levels of a topic that may be published to; `InvalidName` otherwise."""
    if not isinstance(topic, str):
        raise InvalidName(f"a topic is text, not {type(topic).__name__}")
    if "+" in topic or "#" in topic:
        raise InvalidName(f"topic {topic[:64]!r} has a wildcard: publish to one topic, without + #")
    levels = _levels(topic, "topic")
    if levels[0] == SHARE:
        raise InvalidName(f"topic {topic[:64]!r} is reserved: {SHARE} names shared subscriptions")
    return levels


@dataclass(frozen=True, slots=True)
class Pattern:
    """The pattern of a subscription, taken apart."""

    text: str
    group: str | None
    """The group of a shared subscription: each message is delivered to one of its members."""
    levels: tuple[str, ...]


def parse_pattern(text: str) -> Pattern:
    """Take a subscription's pattern apart; `InvalidName` if it can never match."""
    levels = _levels(text, "pattern")
    if levels[0] != SHARE:
        return Pattern(text, None, _check_wildcards(text, levels))
    if len(levels) < 3 or not levels[1] or "+" in levels[1] or "#" in levels[1]:
        raise InvalidName(f"pattern {text[:64]!r} is not of the form {SHARE}/group/pattern")
    if levels[2:] == [""]:
        raise InvalidName(f"pattern {text[:64]!r} lacks the topic after the group")
    return Pattern(text, levels[1], _check_wildcards(text, levels[2:]))


def is_reply(pattern: str) -> bool:
    """Whether it is about one inbox for replies: who knows its name may use it (SPEC O2)."""
    levels = pattern.split("/")
    return (
        levels[0] == REPLIES
        and len(levels) > 2
        and len(levels[1]) >= MIN_INBOX_CHARACTERS
        and not set(levels[1]) & {"+", "#"}
    )


def matches(pattern: str, topic: str) -> bool:
    """Whether a subscription to ``pattern`` gets what is published to ``topic``."""
    return covers(parse_pattern(pattern).levels, topic)


def covers(wanted: Sequence[str], topic: str) -> bool:
    """Whether a pattern of these levels matches ``topic``."""
    levels = topic.split("/")
    if topic.startswith("$") and wanted[0] in ("+", "#"):
        return False
    for at, level in enumerate(wanted):
        if level == "#":
            return True  # also when the topic ends here: 'a/#' covers 'a' itself
        if at == len(levels) or level not in ("+", levels[at]):
            return False
    return len(levels) == len(wanted)


def _levels(text: str, what: str) -> list[str]:
    if not isinstance(text, str):
        raise InvalidName(f"a {what} is text, not {type(text).__name__}")
    if not text:
        raise InvalidName(f"an empty {what} is not allowed")
    if "\0" in text:
        raise InvalidName(f"{what} {text[:64]!r} holds a NUL character")
    try:
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidName(f"the {what} cannot be written as UTF-8: {error.reason}") from None
    if size > MAX_TOPIC_BYTES:
        raise InvalidName(f"the {what} is longer than {MAX_TOPIC_BYTES} bytes")
    levels = text.split("/")
    if len(levels) > MAX_LEVELS:
        raise InvalidName(f"the {what} has more than {MAX_LEVELS} levels")
    return levels


def _check_wildcards(text: str, levels: Sequence[str]) -> tuple[str, ...]:
    if "#" in levels[:-1]:
        raise InvalidName(f"pattern {text[:64]!r}: # is only allowed as the last level")
    if any(len(level) > 1 and ("+" in level or "#" in level) for level in levels):
        raise InvalidName(f"pattern {text[:64]!r}: + and # stand for whole levels only")
    return tuple(levels)
