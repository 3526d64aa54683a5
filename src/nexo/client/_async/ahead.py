"""The batch that a consumer or worker has asked for while it works on the one before."""

from __future__ import annotations

from typing import Any

from nexo.client._async import runtime


class AskedAhead:
    """A long poll under way, or what it brought."""

    __slots__ = ("arrived_s", "poll")

    def __init__(self, poll: Any) -> None:
        self.poll = poll
        self.arrived_s: float | None = None
        """When its reply came."""
        poll.on_reply(self._arrived)

    def _arrived(self) -> None:
        self.arrived_s = runtime.now_s()

    def has_waited(self, before_s: float) -> bool:
        """Whether its reply has been here since ``before_s``."""
        return self.arrived_s is not None and self.arrived_s <= before_s
