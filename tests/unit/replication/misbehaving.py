"""An object store that misbehaves by chance: all that a network may do to a request."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from random import Random

from nexo.replication.objects import AlreadyThere, StoreFailed
from tests.memory_objects import MemoryObjects


class MisbehavingObjects:
    """Fails before or after an operation, or does a put later, even after its caller is gone."""

    def __init__(self, inner: MemoryObjects, random: Random, chance: float = 0.3) -> None:
        self.inner = inner
        self.chance = chance
        self._random = random
        self._late: list[Callable[[], None]] = []

    def pass_time(self) -> None:
        """Some puts that were on their way arrive."""
        while self._late and self._random.random() < 0.5:
            with suppress(AlreadyThere):
                self._late.pop(self._random.randrange(len(self._late)))()

    def create(self, key: str, data: bytes) -> None:
        """Put if absent, or so."""
        if self._random.random() >= self.chance:
            self.inner.create(key, data)
            return
        match self._random.choice(("refused", "lost reply", "late")):
            case "lost reply":
                with suppress(AlreadyThere):
                    self.inner.create(key, data)
            case "late":
                self._late.append(lambda: self.inner.create(key, data))
        raise StoreFailed("no answer")

    def get(self, key: str) -> bytes | None:
        """An object, or no answer."""
        self._may_fail()
        return self.inner.get(key)

    def list(self, prefix: str, after: str = "") -> list[str]:
        """Keys, or no answer."""
        self._may_fail()
        return self.inner.list(prefix, after)

    def delete(self, keys: Iterable[str]) -> None:
        """Remove, or no answer."""
        self._may_fail()
        self.inner.delete(keys)

    def _may_fail(self) -> None:
        if self._random.random() < self.chance / 2:
            raise StoreFailed("no answer")
