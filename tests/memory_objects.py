"""An object store in memory, for tests of what is kept in one."""

from __future__ import annotations

from collections.abc import Iterable

from nexo.replication.objects import AlreadyThere


class MemoryObjects:
    """An object store that lives as long as this object."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    def create(self, key: str, data: bytes) -> None:
        """Put if absent."""
        if key in self.objects:
            raise AlreadyThere(key)
        self.objects[key] = data

    def get(self, key: str) -> bytes | None:
        """An object."""
        return self.objects.get(key)

    def list(self, prefix: str, after: str = "") -> list[str]:
        """Keys in order."""
        return sorted(key for key in self.objects if key.startswith(prefix) and key > after)

    def delete(self, keys: Iterable[str]) -> None:
        """Remove objects."""
        for key in keys:
            self.objects.pop(key, None)
