"""Closes an object at the end of an ``async with``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self

from nexo.errors import NexoError


class AsyncClosing(ABC):
    """Is entered as it is and closed at the end.

    If an error ended it, that is raised rather than a failure to close.
    """

    __slots__ = ()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            await self.close()
        except NexoError:
            if error is None:
                raise

    @abstractmethod
    async def close(self) -> None: ...
