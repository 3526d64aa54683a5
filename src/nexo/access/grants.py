"""Permissions: who may read, write or administer which names of which broker (SPEC A10)."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from fnmatch import fnmatchcase

from nexo.errors import InvalidInput
from nexo.model import Broker

EVERYTHING = "*"


class Action(enum.StrEnum):
    """The access that a request needs to the thing it names."""

    READ = "read"
    """Get, subscribe, consume and acknowledge, inspect."""
    WRITE = "write"
    """Set, publish, push."""
    ADMIN = "admin"
    """Create, change, clear and delete queues, streams and groups."""


class Extent(enum.IntEnum):
    """Which names a requested name covers."""

    NAME = enum.auto()
    """One key, queue or stream; ``stream@group`` for a group's position in a stream."""
    PREFIX = enum.auto()
    """Every name that starts with it; the empty one covers all."""
    TOPICS = enum.auto()
    """Every topic that matches it, ``+`` and ``#`` as in a subscription."""
    GROUP = enum.auto()
    """A group or producer without a stream: a grant on any stream is enough, unless it names
    another group."""
    OWNED = enum.auto()
    """A group or producer of another user: a grant must name it, or be for everything."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Permission for one action (or ``*``) on one broker (or ``*``), for names that match.

    Patterns are globs, where ``*`` also matches ``/``. Those of pub/sub are topic patterns with
    ``+`` and ``#``. Of a stream, ``orders`` is for every group, ``orders@billing`` for that
    group alone.
    """

    broker: str = EVERYTHING
    action: str = EVERYTHING
    pattern: str = EVERYTHING

    def allows(self, broker: Broker, action: Action, extent: Extent, name: str) -> bool:
        """Whether this grant covers everything the request covers."""
        return self.concerns(broker, action) and (
            self.pattern == EVERYTHING or self._covers(extent, name)
        )

    def concerns(self, broker: Broker, action: Action) -> bool:
        """Whether it could cover this action for some name."""
        return self.broker in (EVERYTHING, broker.label) and self.action in (EVERYTHING, action)

    def _covers(self, extent: Extent, name: str) -> bool:
        match extent:
            case Extent.NAME:
                return self._covers_name(name)
            case Extent.PREFIX:
                return _covers_prefix(self.pattern, name)
            case Extent.TOPICS:
                return self._covers_topics(name)
            case Extent.GROUP:
                _, at, group = self.pattern.partition("@")
                return not at or fnmatchcase(name, group)
            case Extent.OWNED:
                _, _, group = self.pattern.partition("@")
                return group not in ("", EVERYTHING) and fnmatchcase(name, group)

    def _covers_name(self, name: str) -> bool:
        if "@" not in self.pattern:
            name = name.partition("@")[0]
        return fnmatchcase(name, self.pattern)

    def _covers_topics(self, wanted: str) -> bool:
        if self.broker != EVERYTHING:
            return covers_topics(self.pattern, wanted)
        exact = not set(wanted) & {"+", "#"}
        return exact and fnmatchcase(wanted, self.pattern)

    def __str__(self) -> str:
        return f"{self.broker}:{self.action}:{self.pattern}"


def _covers_prefix(pattern: str, prefix: str) -> bool:
    """Only plain text followed by one ``*`` is known to cover everything below it."""
    head = pattern[:-1]
    return pattern.endswith("*") and not set(head) & set("*?[") and prefix.startswith(head)


def covers_topics(granted: str, wanted: str) -> bool:
    """Whether every topic that matches ``wanted`` matches ``granted`` too."""
    if wanted.startswith("$share/"):
        wanted = wanted.split("/", 2)[-1]
    have, want = granted.split("/"), wanted.split("/")
    for place, level in enumerate(have):
        if level == "#":
            return True
        if place >= len(want) or want[place] == "#":
            return False
        if level not in ("+", want[place]):
            return False
    return len(have) == len(want)


def parse_grant(text: str) -> Grant:
    """A grant written ``broker:action:pattern``, as in ``queue:write:jobs.*`` or ``*:read:*``."""
    brokers = [EVERYTHING, *(broker.label for broker in Broker)]
    actions = [EVERYTHING, *Action]
    parts = text.split(":", 2)
    if len(parts) != 3 or parts[0] not in brokers or parts[1] not in actions or not parts[2]:
        raise InvalidInput(
            f"grant {text!r} is not broker:action:pattern; "
            f"brokers are {', '.join(brokers)}, actions are {', '.join(actions)}"
        )
    grant = Grant(*parts)
    if grant.broker == Broker.PUBSUB.label and "*" in grant.pattern and len(grant.pattern) > 1:
        raise InvalidInput(f"grant {text!r}: topics are matched with + and #, or * for all")
    return grant
