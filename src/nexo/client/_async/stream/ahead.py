"""The batch that a consumer has asked for while it works on the one before."""

from __future__ import annotations

from typing import Any

from nexo.client._async import runtime

QUICK_S = 0.25
"""A consumer that needs longer for a batch asks for the next one when it is done: others may
have it meanwhile, and asking takes a thousandth of that time.
"""


class AskedAhead:
    """A take under way, or what it brought."""

    __slots__ = ("arrived_s", "poll")

    def __init__(self, poll: Any) -> None:
        self.poll = poll
        self.arrived_s: float | None = None
        """When its reply came."""
        poll.on_reply(self._arrived)

    def _arrived(self) -> None:
        self.arrived_s = runtime.now_s()

    def has_waited(self, before_s: float) -> bool:
        """Whether its records have been here since ``before_s``."""
        return self.arrived_s is not None and self.arrived_s <= before_s
