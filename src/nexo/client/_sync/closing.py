# Generated from _async/closing.py by tools/unasync.py; edit that file instead.
"""What is closed at the end of an ``with``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self


class Closing(ABC):
    """Is entered as it is and closed at the end, whether or not an error ended it."""

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """End it."""
