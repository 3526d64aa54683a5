# Generated from _async/store/collections.py by tools/unasync.py; edit that file instead.
"""Maps, lists and sets in the store.

A handle is a name and a type; making one sends nothing. A collection exists from its first
item to its last, and every call is atomic on the server.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Generic, TypeVar

from nexo.client._sync.link.link import Link
from nexo.client._sync.store.requests import StoreKeys, ask, ask_count
from nexo.client.checks import pairs
from nexo.client.views import all_taken, taken
from nexo.model import Buffer
from nexo.options.units import Duration
from nexo.protocol import store as wire
from nexo.protocol.ops import Op
from nexo.protocol.values import decode_value, encode_as

T = TypeVar("T")

_REMOVED = "it was taken out"


class Collection(Generic[T]):
    """The base of maps, lists and sets."""

    def __init__(self, link: Link, name: str, type_: type[T] | None = None) -> None:
        self.name = name
        self._link = link
        self._keys = StoreKeys(link)
        self._type: Any = type_

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    def _decoded(self, value: Buffer) -> T:
        item: T = decode_value(value, self._type)
        return item

    def _all_decoded(self, values: Iterable[Buffer]) -> list[T]:
        return [self._decoded(value) for value in values]

    def exists(self) -> bool:
        return self._keys.exists(self.name)

    def drop(self) -> bool:
        """Delete it with all its items; False if there was none."""
        return self._keys.delete_many(self.name) == 1

    def expire(self, ttl: Duration) -> bool:
        """Give the whole collection a TTL from now; False if there is none."""
        return self._keys.expire(self.name, ttl)

    def ttl(self) -> float | None:
        """Seconds it has left, infinity if it never expires, None if there is none."""
        return self._keys.ttl(self.name)

    def persist(self) -> bool:
        """Remove its TTL; False if it had none."""
        return self._keys.persist(self.name)


class StoreMap(Collection[T]):
    """Fields with values, in the order they were first set."""

    def set(self, field: str, value: T) -> bool:
        """Set one field; True if it is new."""
        return self.set_many({field: value}) == 1

    def set_many(self, fields: Mapping[str, T]) -> int:
        """Set several fields at once; returns how many are new."""
        return self._set(fields, if_absent=False)

    def add(self, field: str, value: T) -> bool:
        """Set a field only if it is absent; False if it was there."""
        return self._set({field: value}, if_absent=True) == 1

    def _set(self, fields: Mapping[str, T], *, if_absent: bool) -> int:
        values = {
            field: encode_as(self._type, value) for field, value in pairs(fields, "fields").items()
        }
        command = wire.SetFields(self.name, values, if_absent)
        return ask_count(self._link, Op.FIELDS_SET, command)

    def get(self, field: str, default: T | None = None) -> T | None:
        """The value of a field, or ``default``."""
        (value,) = ask(self._link, Op.FIELDS_GET, wire.Fields(self.name, [field]))
        return default if value is None else self._decoded(value)

    def get_many(self, *fields: str) -> list[T | None]:
        """The values of several fields in order; None where there is none."""
        values = ask(self._link, Op.FIELDS_GET, wire.Fields(self.name, [*fields]))
        return [None if value is None else self._decoded(value) for value in values]

    def has(self, field: str) -> bool:
        (value,) = ask(self._link, Op.FIELDS_GET, wire.Fields(self.name, [field]))
        return value is not None

    def all(self) -> dict[str, T]:
        """Every field with its value."""
        fields = ask(self._link, Op.FIELDS_ALL, wire.OneKey(self.name))
        return {field: self._decoded(value) for field, value in fields.items()}

    def delete(self, *fields: str) -> int:
        """Remove fields; returns how many existed."""
        return ask_count(self._link, Op.FIELDS_DELETE, wire.Fields(self.name, [*fields]))

    def incr(self, field: str, by: float = 1) -> float:
        """Add to the number in a field, which starts at 0; returns the sum."""
        command = wire.IncrementField(self.name, field, by)
        total: float = ask(self._link, Op.FIELDS_INCR, command)
        return total

    def length(self) -> int:
        return ask_count(self._link, Op.FIELDS_COUNT, wire.OneKey(self.name))


class StoreList(Collection[T]):
    """Values in order. Ranges are Python slices: stop is exclusive, negatives from the end."""

    def push(self, *values: T) -> int:
        """Add values at the right end; returns the new length."""
        return self._push(values, left=False)

    def push_left(self, *values: T) -> int:
        """Add values at the left end, one after another; returns the new length."""
        return self._push(values, left=True)

    def _push(self, values: Iterable[T], *, left: bool) -> int:
        command = wire.Push(self.name, [encode_as(self._type, value) for value in values], left)
        return ask_count(self._link, Op.LIST_PUSH, command)

    def pop(self, default: T | None = None) -> T | None:
        """Remove and return the rightmost value, or ``default`` if there is none."""
        return self._pop(default, left=False)

    def pop_left(self, default: T | None = None) -> T | None:
        """Remove and return the leftmost value, or ``default`` if there is none."""
        return self._pop(default, left=True)

    def _pop(self, default: T | None, *, left: bool) -> T | None:
        values = ask(self._link, Op.LIST_POP, wire.PopItems(self.name, 1, left))
        return taken(values[0], self._type, _REMOVED) if values else default

    def pop_many(self, count: int, *, left: bool = False) -> list[T]:
        """Remove and return up to ``count`` values from one end, outermost first.

        If one does not fit the type, `DoesNotFit` has all of them as its ``value``.
        """
        values = ask(self._link, Op.LIST_POP, wire.PopItems(self.name, count, left))
        return all_taken(values, self._type, _REMOVED)

    def range(self, start: int = 0, stop: int | None = None) -> list[T]:
        """The values of a slice; without arguments, all."""
        values = ask(self._link, Op.LIST_RANGE, wire.ListRange(self.name, start, stop))
        return self._all_decoded(values)

    def get(self, index: int, default: T | None = None) -> T | None:
        """The value at ``index``, or ``default`` if the list is shorter."""
        return next(iter(self.range(index, None if index == -1 else index + 1)), default)

    def replace(self, index: int, value: T) -> None:
        """Replace the value at ``index``."""
        command = wire.Replace(self.name, index, encode_as(self._type, value))
        ask(self._link, Op.LIST_REPLACE, command)

    def trim(self, start: int = 0, stop: int | None = None) -> int:
        """Keep only a slice; returns how many values were removed."""
        return ask_count(self._link, Op.LIST_TRIM, wire.ListRange(self.name, start, stop))

    def remove(self, value: T, count: int = 0) -> int:
        """Remove the first ``count`` values equal to ``value`` (0 for all); returns how many."""
        command = wire.RemoveValue(self.name, encode_as(self._type, value), count)
        return ask_count(self._link, Op.LIST_REMOVE, command)

    def length(self) -> int:
        return ask_count(self._link, Op.LIST_LENGTH, wire.OneKey(self.name))


class StoreSet(Collection[T]):
    """Distinct values, in no order; two are equal when their encodings are."""

    def add(self, *members: T) -> int:
        """Add members; returns how many are new."""
        return ask_count(self._link, Op.SET_ADD, self._members(members))

    def remove(self, *members: T) -> int:
        """Remove members; returns how many existed."""
        return ask_count(self._link, Op.SET_REMOVE, self._members(members))

    def contains(self, member: T) -> bool:
        return (self.contains_many(member))[0]

    def contains_many(self, *members: T) -> list[bool]:
        """For each of ``members``, whether it is in the set."""
        found: list[bool] = ask(self._link, Op.SET_CONTAINS, self._members(members))
        return found

    def members(self) -> list[T]:
        """Every member."""
        return self._all_decoded(ask(self._link, Op.SET_MEMBERS, wire.OneKey(self.name)))

    def pop(self, default: T | None = None) -> T | None:
        """Remove and return an arbitrary member, or ``default`` if there is none."""
        values = ask(self._link, Op.SET_POP, wire.PopItems(self.name, 1))
        return taken(values[0], self._type, _REMOVED) if values else default

    def pop_many(self, count: int) -> list[T]:
        """Remove and return up to ``count`` arbitrary members.

        If one does not fit the type, `DoesNotFit` has all of them as its ``value``.
        """
        values = ask(self._link, Op.SET_POP, wire.PopItems(self.name, count))
        return all_taken(values, self._type, _REMOVED)

    def length(self) -> int:
        return ask_count(self._link, Op.SET_SIZE, wire.OneKey(self.name))

    def _members(self, members: Iterable[T]) -> wire.Members:
        return wire.Members(self.name, [encode_as(self._type, member) for member in members])
