"""The transaction the caller runs in, so that a consumer polled within it takes part in it."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any, Protocol

from nexo.topics.model import Message


class Polls(Protocol):
    """Something that wants to know which messages are read while it is open."""

    def polled(self, source: Any, messages: Sequence[Message[Any]]) -> None:
        """These were handed out; ``source`` is their `Message.source`."""
        ...


current_transaction: ContextVar[Polls | None] = ContextVar("nexo_transaction", default=None)
