"""Bounds on names, texts, consumers and groups; how many records may be in flight is an option."""

from __future__ import annotations

from nexo.errors import InvalidInput, Overloaded

MAX_NAME = 255
"""Characters of a member's, consumer's or producer's name."""
MAX_METADATA = 4_096
"""Characters that a commit may carry; Kafka's default too."""
MAX_MEMBER_BYTES = 1024**2
"""What a member of a classic Kafka group says of itself, or is assigned; as much as Kafka stores of
a whole group."""
MAX_REASON = 1_024
"""Characters kept of why a message failed; the rest is cut off."""
MAX_CONSUMERS = 10_000
"""Consumers of one shared group. Those of `nexo.xstreams` are kept until deleted."""
MAX_GROUPS = 100_000
"""Shared groups of one stream; ordered groups of the broker. They are kept until deleted."""


def check_number(what: str, count: int, most: int) -> None:
    """Raise `Overloaded` if there is no room for one more."""
    if count >= most:
        raise Overloaded(f"there are {most:,} {what} already, which is the limit: delete some")


def check_length(what: str, text: str, most: int) -> None:
    """Raise `InvalidInput` for a text that is too long."""
    if len(text) > most:
        raise InvalidInput(f"{what} has {len(text):,} characters: at most {most:,} are allowed")
