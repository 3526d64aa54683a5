"""Messages as pub/sub holds them, independent of any protocol.

Receivers of one dialect all get the same bytes, so each encoding of a message is made at
most once and kept with it during delivery (SPEC C4).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class PubSubMessage(NamedTuple):
    """One message."""

    topic: str
    value: bytes
    """As `nexo.model.store` describes it."""
    time_ms: int
    """When it was published, by the publisher's clock."""
    headers: bytes = b""
    """A JSON object, as in `nexo.batch`; empty for none."""

    @property
    def is_empty(self) -> bool:
        """Whether the value has no content: retaining an empty value clears the topic."""
        return len(self.value) <= 1

    @property
    def size_bytes(self) -> int:
        """The size that counts towards limits."""
        return len(self.topic) + len(self.value) + len(self.headers)


class Encoding(Protocol):
    """How one dialect writes messages to its clients; compared by identity."""

    def live(self, message: PubSubMessage) -> bytes:
        """A message for every subscription that matches."""

    def shared(self, message: PubSubMessage, pattern: str) -> bytes:
        """The copy for one member of the group of ``pattern``."""

    def retained(self, message: PubSubMessage, address: str) -> bytes:
        """A last value, for the subscription with that address."""


class Part:
    """Consecutive messages that go to the same receivers."""

    __slots__ = ("_alone", "_joined", "_messages", "count")

    def __init__(self, messages: Sequence[PubSubMessage] | None, count: int) -> None:
        self.count = count
        self._messages = messages
        self._alone: dict[Encoding, list[bytes]] = {}
        self._joined: dict[Encoding, bytes] = {}

    @property
    def messages(self) -> Sequence[PubSubMessage]:
        assert self._messages is not None
        return self._messages

    def alone(self, encoding: Encoding) -> list[bytes]:
        """Each message by itself."""
        found = self._alone.get(encoding)
        if found is None:
            found = self._alone[encoding] = [encoding.live(message) for message in self.messages]
        return found

    def joined(self, encoding: Encoding) -> bytes:
        """All of them, one after another."""
        found = self._joined.get(encoding)
        if found is None:
            found = self._joined[encoding] = b"".join(self.alone(encoding))
        return found


class Publication:
    """The messages of one publish. A dialect that has them encoded already overrides `part`."""

    __slots__ = ("_messages", "topics")

    def __init__(
        self, topics: list[bytes], messages: Sequence[PubSubMessage] | None = None
    ) -> None:
        self.topics = topics
        """The topic of each message, in UTF-8."""
        self._messages = messages

    @classmethod
    def of(cls, messages: Sequence[PubSubMessage]) -> Publication:
        """Messages that are not encoded yet."""
        return Publication([message.topic.encode() for message in messages], messages)

    @property
    def messages(self) -> Sequence[PubSubMessage]:
        assert self._messages is not None
        return self._messages

    def part(self, first: int, last: int) -> Part:
        """The messages ``first`` to ``last``, exclusive."""
        return Part(self.messages[first:last], last - first)

    def only(self, indexes: Sequence[int]) -> Publication:
        """Some of the messages."""
        return Publication.of([self.messages[index] for index in indexes])
