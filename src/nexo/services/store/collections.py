"""Use cases on maps, lists and sets: `nexo.brokers.store.collections` with permissions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from nexo.access.grants import Action
from nexo.access.permit import READ, WRITE
from nexo.brokers.store.engine import StoreEngine
from nexo.services.connection import Connection

CheckKeys: TypeAlias = Callable[[Connection, Sequence[Action], Iterable[str]], int]
"""Checks permission for a command on keys and counts it; returns the time."""


class _UseCases:
    def __init__(self, store: StoreEngine, may: CheckKeys) -> None:
        self._store = store
        self._may = may

    def _reading(self, connection: Connection, key: str) -> int:
        return self._may(connection, READ, (key,))

    def _writing(self, connection: Connection, key: str) -> int:
        return self._may(connection, WRITE, (key,))


class MapUseCases(_UseCases):
    """Text fields with values under one key."""

    def set(
        self, connection: Connection, key: str, fields: Mapping[str, bytes], if_absent: bool
    ) -> int:
        now_ms = self._writing(connection, key)
        return self._store.maps.set(key, fields, now_ms, if_absent=if_absent)

    def get(self, connection: Connection, key: str, fields: Sequence[str]) -> list[bytes | None]:
        return self._store.maps.get(key, fields, self._reading(connection, key))

    def all(self, connection: Connection, key: str) -> Mapping[str, bytes]:
        return self._store.maps.all(key, self._reading(connection, key))

    def delete(self, connection: Connection, key: str, fields: Iterable[str]) -> int:
        return self._store.maps.delete(key, fields, self._writing(connection, key))

    def incr(self, connection: Connection, key: str, field: str, by: float) -> float:
        return self._store.maps.incr(key, field, by, self._writing(connection, key))

    def length(self, connection: Connection, key: str) -> int:
        return self._store.maps.length(key, self._reading(connection, key))


class ListUseCases(_UseCases):
    """Values in order under one key; ranges are Python slices."""

    def push(self, connection: Connection, key: str, values: Sequence[bytes], left: bool) -> int:
        return self._store.lists.push(key, values, self._writing(connection, key), left=left)

    def pop(self, connection: Connection, key: str, count: int, left: bool) -> list[bytes]:
        return self._store.lists.pop(key, count, self._writing(connection, key), left=left)

    def range(self, connection: Connection, key: str, start: int, stop: int | None) -> list[bytes]:
        return self._store.lists.range(key, start, stop, self._reading(connection, key))

    def replace(self, connection: Connection, key: str, index: int, value: bytes) -> None:
        self._store.lists.replace(key, index, value, self._writing(connection, key))

    def trim(self, connection: Connection, key: str, start: int, stop: int | None) -> int:
        return self._store.lists.trim(key, start, stop, self._writing(connection, key))

    def remove(self, connection: Connection, key: str, value: bytes, count: int) -> int:
        return self._store.lists.remove(key, value, count, self._writing(connection, key))

    def length(self, connection: Connection, key: str) -> int:
        return self._store.lists.length(key, self._reading(connection, key))


class SetUseCases(_UseCases):
    """Distinct values under one key."""

    def add(self, connection: Connection, key: str, members: Sequence[bytes]) -> int:
        return self._store.sets.add(key, members, self._writing(connection, key))

    def remove(self, connection: Connection, key: str, members: Sequence[bytes]) -> int:
        return self._store.sets.remove(key, members, self._writing(connection, key))

    def pop(self, connection: Connection, key: str, count: int) -> list[bytes]:
        return self._store.sets.pop(key, count, self._writing(connection, key))

    def contains(self, connection: Connection, key: str, members: Sequence[bytes]) -> list[bool]:
        return self._store.sets.contains(key, members, self._reading(connection, key))

    def members(self, connection: Connection, key: str) -> list[bytes]:
        return self._store.sets.members(key, self._reading(connection, key))

    def length(self, connection: Connection, key: str) -> int:
        return self._store.sets.length(key, self._reading(connection, key))
