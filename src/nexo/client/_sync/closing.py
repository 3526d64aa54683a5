# Generated from _async/closing.py by tools/unasync.py; edit that file instead.
"""Closes an object at the end of an ``with``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self

from nexo.errors import NexoError


class Closing(ABC):
    """Is entered as it is and closed at the end.

    If an error ended it, that is raised rather than a failure to close.
    """

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.close()
        except NexoError:
            if error is None:
                raise

    @abstractmethod
    def close(self) -> None: ...
