"""Maps, lists and sets under a key (SPEC B2).

A collection is created with its first item and removed with its last; its key keeps its TTL
in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

from nexo.brokers.store.keyspace import Keyspace
from nexo.brokers.store.values import (
    ZERO,
    ListValue,
    MapValue,
    SetValue,
    add_number,
    items_bytes,
    wrong_type,
)
from nexo.errors import InvalidInput
from nexo.options.described import check_range

C = TypeVar("C", MapValue, ListValue, SetValue)
R = TypeVar("R")


class Collections(Generic[C]):
    """What the kinds share: finding, creating, and keeping the size up to date."""

    __slots__ = ("_keyspace",)
    _make: type[C]
    _called = "a collection"
    """What users call it."""

    def __init__(self, keyspace: Keyspace) -> None:
        self._keyspace = keyspace

    def _find(self, key: str, now_ms: int) -> C | None:
        value = self._keyspace.find(key, now_ms)
        if value is None or isinstance(value, self._make):
            return value
        raise wrong_type(key, value, self._called)

    def _ready(self, key: str, found: C | None, adding_bytes: int) -> C:
        """The collection found under ``key`` or a new one, with room for ``adding_bytes`` more."""
        self._keyspace.check_room(key, adding_bytes + (found.size_bytes if found else 0))
        if found is None:
            found = self._make()
            self._keyspace.put(key, found)
        return found

    def _change(self, key: str, held: C, act: Callable[[C], R]) -> R:
        """Change a collection with ``act`` and return its result."""
        before = held.size_bytes
        result = act(held)
        self._keyspace.grown(key, held.size_bytes - before)
        if not len(held):
            self._keyspace.drop(key)
        return result

    def _remove(self, key: str, now_ms: int, act: Callable[[C], R], nothing: R) -> R:
        """`_change` what is there; ``nothing`` if there is no collection."""
        held = self._find(key, now_ms)
        return nothing if held is None else self._change(key, held, act)

    def length(self, key: str, now_ms: int) -> int:
        return len(self._find(key, now_ms) or ())


class MapCommands(Collections[MapValue]):
    """Commands on maps."""

    __slots__ = ()
    _make, _called = MapValue, "a map"

    def set(
        self, key: str, fields: Mapping[str, bytes], now_ms: int, *, if_absent: bool = False
    ) -> int:
        """Set fields, or only those that are absent; returns how many are new."""
        if not fields:
            raise InvalidInput("setting fields of a map needs at least one field")
        found = self._find(key, now_ms)
        if found and if_absent:
            fields = {name: value for name, value in fields.items() if name not in found.items}
        held = self._ready(key, found, (found or MapValue()).growth_bytes(fields))
        return self._change(
            key, held, lambda held: sum(held.put(name, value) for name, value in fields.items())
        )

    def get(self, key: str, fields: Sequence[str], now_ms: int) -> list[bytes | None]:
        """The values of ``fields`` in order; None where there is none."""
        held = self._find(key, now_ms)
        return self._keyspace.bounded(held.items.get(name) if held else None for name in fields)

    def all(self, key: str, now_ms: int) -> Mapping[str, bytes]:
        """Every field with its value, as a view that later commands change."""
        held = self._find(key, now_ms)
        if held is None:
            return {}
        self._keyspace.check_reply(held)
        return held.items

    def delete(self, key: str, fields: Iterable[str], now_ms: int) -> int:
        """Remove fields; returns how many existed."""
        return self._remove(key, now_ms, lambda held: sum(map(held.remove, fields)), 0)

    def incr(self, key: str, field: str, by: int | float, now_ms: int) -> int | float:
        """Add to the number in a field, which starts at 0."""
        held = self._find(key, now_ms)
        value = held.items.get(field, ZERO) if held else ZERO
        total, value = add_number(value, by, f"field {field[:64]!r} of {key[:64]!r}")
        self.set(key, {field: value}, now_ms)
        return total


class ListCommands(Collections[ListValue]):
    """Commands on lists. Ranges are Python slices: stop is exclusive, negatives from the end."""

    __slots__ = ()
    _make, _called = ListValue, "a list"

    def push(self, key: str, values: Sequence[bytes], now_ms: int, *, left: bool = False) -> int:
        """Append values at one end; returns the new length."""
        if not values:
            raise InvalidInput("pushing to a list needs at least one value")
        held = self._ready(key, self._find(key, now_ms), items_bytes(values))
        self._change(key, held, lambda held: held.push(values, left=left))
        return len(held)

    def pop(self, key: str, count: int, now_ms: int, *, left: bool = False) -> list[bytes]:
        """Remove up to ``count`` values from an end, outermost first; fewer if a reply is full."""
        check_range("count", count, low=1)
        most = self._keyspace.max_reply_bytes
        return self._remove(
            key, now_ms, lambda held: held.pop(count, left=left, most_bytes=most), []
        )

    def range(self, key: str, start: int, stop: int | None, now_ms: int) -> list[bytes]:
        held = self._find(key, now_ms)
        return self._keyspace.bounded(held.slice(start, stop)) if held else []

    def replace(self, key: str, index: int, value: bytes, now_ms: int) -> None:
        held = self._find(key, now_ms)
        if held is None:
            raise InvalidInput(f"index {index} is outside the list {key[:64]!r}, which is empty")
        self._keyspace.check_room(key, held.size_bytes + len(value))
        self._change(key, held, lambda held: held.replace(index, value))

    def trim(self, key: str, start: int, stop: int | None, now_ms: int) -> int:
        """Keep only a slice; returns how many values were removed."""
        return self._remove(key, now_ms, lambda held: held.trim(start, stop), 0)

    def remove(self, key: str, value: bytes, count: int, now_ms: int) -> int:
        """Remove the first ``count`` values equal to ``value`` (0 for all)."""
        if count:
            check_range("count", count, low=1)
        return self._remove(key, now_ms, lambda held: held.remove(value, count), 0)


class SetCommands(Collections[SetValue]):
    """Commands on sets."""

    __slots__ = ()
    _make, _called = SetValue, "a set"

    def add(self, key: str, members: Sequence[bytes], now_ms: int) -> int:
        """Add members; returns how many are new."""
        if not members:
            raise InvalidInput("adding to a set needs at least one member")
        found = self._find(key, now_ms)
        new = set(members).difference(found.items if found else ())
        held = self._ready(key, found, items_bytes(new))
        return self._change(key, held, lambda held: held.add(new))

    def remove(self, key: str, members: Sequence[bytes], now_ms: int) -> int:
        """Remove members; returns how many existed."""
        return self._remove(key, now_ms, lambda held: held.remove(members), 0)

    def pop(self, key: str, count: int, now_ms: int, *, left: bool = False) -> list[bytes]:
        """Remove up to ``count`` arbitrary members, ``left`` or not; fewer if the reply is full."""
        check_range("count", count, low=1)
        most = self._keyspace.max_reply_bytes
        return self._remove(key, now_ms, lambda held: held.pop(count, most_bytes=most), [])

    def contains(self, key: str, members: Sequence[bytes], now_ms: int) -> list[bool]:
        """For each of ``members``, whether it is in the set."""
        held = self._find(key, now_ms)
        return [held is not None and member in held.items for member in members]

    def members(self, key: str, now_ms: int) -> list[bytes]:
        """Every member, in no order."""
        held = self._find(key, now_ms)
        if held is None:
            return []
        self._keyspace.check_reply(held)
        return list(held.items)
