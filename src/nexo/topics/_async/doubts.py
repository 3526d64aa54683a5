"""Transactions whose commit was sent and never answered: nothing may be handed out before it
is known how they ended (SPEC H1).
"""

from __future__ import annotations

from typing import Protocol

from nexo.errors import (
    ClientClosed,
    ConnectionLost,
    RequestTimeout,
    TransactionAborted,
    Unavailable,
)


class Doubted(Protocol):
    """A transaction of which it is not known whether it was committed."""

    async def settle(self, wait_s: float) -> None:
        """Find out and tell its consumers; `TransactionAborted` if it was rolled back."""
        ...


class Doubts:
    """The transactions in doubt that have messages of one consumer."""

    def __init__(self) -> None:
        self._doubted: list[Doubted] = []

    def __len__(self) -> int:
        return len(self._doubted)

    def add(self, transaction: Doubted) -> None:
        """One more; the same one counts once."""
        if transaction not in self._doubted:
            self._doubted.append(transaction)

    def clear(self) -> None:
        """Nobody asks any more."""
        self._doubted.clear()

    async def settled(self, wait_s: float) -> bool:
        """Whether it is known by now how all of them have ended."""
        while self._doubted:
            try:
                await self._doubted[0].settle(wait_s)
            except ClientClosed:
                raise
            except (ConnectionLost, RequestTimeout, Unavailable):
                return False
            except TransactionAborted:
                pass  # its messages are handed out again
            del self._doubted[0]
        return True
