"""Users' handlers of rebalances (SPEC G6)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

from nexo.client._async import runtime
from nexo.errors import InvalidInput
from nexo.topics.model import Rebalance, TopicPartition

log = logging.getLogger("nexo.topics")


class Member(Protocol):
    """Whose partitions they are."""

    @property
    def member_id(self) -> str:
        """What the group calls it."""
        ...

    @property
    def generation(self) -> int:
        """The generation it works in."""
        ...

    @property
    def assignment(self) -> Sequence[TopicPartition]:
        """What it owns."""
        ...


class RebalanceHandlers:
    """Who is told, in the order they asked for it."""

    def __init__(self) -> None:
        self._handlers: list[Callable[[Rebalance], Any]] = []

    def add(self, event: str, handler: Callable[[Rebalance], Any]) -> None:
        """Have ``handler`` called with each event."""
        if event != "rebalance":
            raise InvalidInput(f"there is no event {event!r}: the only one is 'rebalance'")
        self._handlers.append(handler)

    async def tell(
        self,
        kind: Literal["revoked", "assigned"],
        partitions: Sequence[TopicPartition],
        member: Member,
    ) -> None:
        """Call every handler."""
        left = [at for at in member.assignment if kind == "assigned" or at not in partitions]
        event = Rebalance(kind, tuple(partitions), tuple(left), member.member_id, member.generation)
        for handler in self._handlers:
            try:
                await runtime.invoke(handler, event)
            except Exception:
                # It runs within a heartbeat: its failure must not cost the membership.
                log.exception("a rebalance handler failed on %s", event)
