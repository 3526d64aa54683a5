"""Requests that the server may answer much later, and that can be cut short."""

from __future__ import annotations

from typing import Protocol

from nexo.client.replies import Reply


class Poll(Protocol):
    """A request under way that another thread can cut short (`Op.CANCEL`)."""

    def reply(self) -> Reply:
        """Wait for the reply."""

    def cancel(self) -> None:
        """Have the server answer now, with what it has: `reply` returns at once."""
