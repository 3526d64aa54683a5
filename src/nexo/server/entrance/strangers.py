"""Connections that have not introduced themselves yet, oldest first.

They cost a client nothing, so they have deadlines and a limit per address, and are dropped first
when there are too many connections.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Generic, TypeVar

C = TypeVar("C")


class Strangers(Generic[C]):
    """Every connection in the order it came."""

    def __init__(self, per_address: int) -> None:
        self._per_address = per_address
        self._entered: dict[C, tuple[str, float]] = {}
        self._of_address: dict[str, dict[C, None]] = {}

    def __len__(self) -> int:
        return len(self._entered)

    def __contains__(self, one: C) -> bool:
        return one in self._entered

    @property
    def oldest(self) -> C | None:
        return next(iter(self._entered), None)

    def enter(self, one: C, address: str, now_s: float) -> C | None:
        """Add one; returns the oldest of its address, removed, if that had too many."""
        self._entered[one] = (address, now_s)
        same = self._of_address.setdefault(address, {})
        same[one] = None
        if len(same) <= self._per_address:
            return None
        oldest = next(iter(same))
        self.leave(oldest)
        return oldest

    def leave(self, one: C) -> str | None:
        """Remove one; returns its address if it was here."""
        entered = self._entered.pop(one, None)
        if entered is None:
            return None
        same = self._of_address[entered[0]]
        del same[one]
        if not same:
            del self._of_address[entered[0]]
        return entered[0]

    def forget(self, known: Callable[[C], bool]) -> None:
        """Remove the oldest ones that are ``known`` by now."""
        while (one := self.oldest) is not None and known(one):
            self.leave(one)

    def overdue(self, entered_s: float, most: int | None = None) -> list[C]:
        """Remove those that came no later than ``entered_s``, the ``most`` oldest of them."""
        found: list[C] = []
        for one, (_, came_s) in islice(self._entered.items(), most):
            if came_s > entered_s:
                break
            found.append(one)
        for one in found:
            self.leave(one)
        return found
