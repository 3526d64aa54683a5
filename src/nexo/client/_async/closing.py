"""What is closed at the end of an ``async with``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self


class AsyncClosing(ABC):
    """Is entered as it is and closed at the end, whether or not an error ended it."""

    __slots__ = ()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @abstractmethod
    async def close(self) -> None:
        """End it."""
