# Generated from _async/consumer/rebalancing.py by tools/unasync.py; edit that file instead.
"""Users' handlers of rebalances (SPEC G6)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from nexo.client._sync import runtime
from nexo.errors import InvalidInput
from nexo.topics.model import Rebalance

log = logging.getLogger("nexo.topics")


class RebalanceHandlers:
    """The handlers, in the order they were added."""

    def __init__(self) -> None:
        self._handlers: list[Callable[[Rebalance], Any]] = []

    def add(self, event: str, handler: Callable[[Rebalance], Any]) -> None:
        if event != "rebalance":
            raise InvalidInput(f"there is no event {event!r}: the only one is 'rebalance'")
        self._handlers.append(handler)

    def tell(self, event: Rebalance) -> None:
        for handler in self._handlers:
            try:
                runtime.invoke(handler, event)
            except Exception:
                # It runs within a heartbeat: its failure must not end the membership.
                log.exception("a rebalance handler failed on %s", event)
