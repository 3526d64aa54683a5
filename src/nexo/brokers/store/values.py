"""What a key can hold: a plain value, a map, a list or a set.

Plain values, and everything inside a collection, are bytes as `nexo.model.store` describes them.
Each collection knows its own size, so that the memory budget needs no walk.

A number is recognised by its content, whether stored as JSON, text or bytes: a client of another
protocol stores ``b"5"`` and expects to add to it. The sum keeps that type.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import TypeAlias

import msgspec

from nexo.errors import InvalidInput, WrongType
from nexo.model.store import JSON_PREFIX

ITEM_BYTES = 80
"""What an item of a collection is assumed to cost besides its own bytes."""


class MapValue:
    """Text fields with values, in the order they were first set."""

    __slots__ = ("items", "size_bytes")
    kind = "map"

    def __init__(self) -> None:
        self.items: dict[str, bytes] = {}
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self.items)

    def growth_bytes(self, fields: Mapping[str, bytes]) -> int:
        """How many bytes setting ``fields`` would add."""
        return sum(self._growth(field, value) for field, value in fields.items())

    def _growth(self, field: str, value: bytes) -> int:
        old = self.items.get(field)
        return _field_bytes(field, value) if old is None else len(value) - len(old)

    def put(self, field: str, value: bytes) -> bool:
        """Set one field; True if it is new."""
        new = field not in self.items
        self.size_bytes += self._growth(field, value)
        self.items[field] = value
        return new

    def remove(self, field: str) -> bool:
        """Remove one field; True if it existed."""
        value = self.items.pop(field, None)
        if value is None:
            return False
        self.size_bytes -= _field_bytes(field, value)
        return True


def _field_bytes(field: str, value: bytes) -> int:
    return len(field) + len(value) + ITEM_BYTES


class ListValue:
    """Values in order; both ends are cheap, the middle costs its distance from the nearer end."""

    __slots__ = ("items", "size_bytes")
    kind = "list"

    def __init__(self) -> None:
        self.items: deque[bytes] = deque()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self.items)

    def push(self, values: Iterable[bytes], *, left: bool) -> None:
        """Add values one after another at one end."""
        append = self.items.appendleft if left else self.items.append
        for value in values:
            append(value)
            self.size_bytes += len(value) + ITEM_BYTES

    def pop(self, count: int, *, left: bool, most_bytes: int = 0) -> list[bytes]:
        """Remove up to ``count`` values from one end, outermost first; see `_taken`."""
        take = self.items.popleft if left else self.items.pop
        taken = _taken(take, min(count, len(self.items)), most_bytes)
        self.size_bytes -= items_bytes(taken)
        return taken

    def slice(self, start: int, stop: int | None) -> list[bytes]:
        first, last, _ = slice(start, stop).indices(len(self.items))
        if first > len(self.items) // 2:  # reach the far half from the far end
            tail = list(islice(reversed(self.items), len(self.items) - first))
            return tail[::-1][: max(0, last - first)]
        return list(islice(self.items, first, max(first, last)))

    def replace(self, index: int, value: bytes) -> None:
        """Replace an existing value; a negative index counts from the end."""
        if not -len(self.items) <= index < len(self.items):
            raise InvalidInput(f"index {index} is outside the list of {len(self.items)} values")
        self.size_bytes += len(value) - len(self.items[index])
        self.items[index] = value

    def trim(self, start: int, stop: int | None) -> int:
        """Keep only a Python slice; returns how many values were removed."""
        first, last, _ = slice(start, stop).indices(len(self.items))
        if first >= last:
            return len(self.pop(len(self.items), left=True))
        right = self.pop(len(self.items) - last, left=False)
        return len(right) + len(self.pop(first, left=True))

    def remove(self, value: bytes, count: int) -> int:
        """Remove the first ``count`` equal values (0 for all); returns how many were removed."""
        limit = count or len(self.items)
        kept: deque[bytes] = deque()
        removed = 0
        for item in self.items:
            if removed < limit and item == value:
                removed += 1
            else:
                kept.append(item)
        self.items = kept
        self.size_bytes -= removed * (len(value) + ITEM_BYTES)
        return removed


class SetValue:
    """Distinct values; two are equal when their bytes are."""

    __slots__ = ("items", "size_bytes")
    kind = "set"

    def __init__(self) -> None:
        self.items: set[bytes] = set()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self.items)

    def add(self, members: Iterable[bytes]) -> int:
        """Add members; returns how many are new."""
        new = set(members) - self.items
        self.items |= new
        self.size_bytes += items_bytes(new)
        return len(new)

    def remove(self, members: Iterable[bytes]) -> int:
        """Remove members; returns how many existed."""
        gone = self.items.intersection(members)
        self.items -= gone
        self.size_bytes -= items_bytes(gone)
        return len(gone)

    def pop(self, count: int, *, most_bytes: int = 0) -> list[bytes]:
        """Remove up to ``count`` arbitrary members; see `_taken`."""
        taken = _taken(self.items.pop, min(count, len(self.items)), most_bytes)
        self.size_bytes -= items_bytes(taken)
        return taken


def _taken(take: Callable[[], bytes], count: int, most_bytes: int) -> list[bytes]:
    """Take ``count`` values, or fewer once they reach ``most_bytes`` (0 for no limit)."""
    taken: list[bytes] = []
    size = 0
    for _ in range(count):
        taken.append(take())
        size += len(taken[-1])
        if most_bytes and size >= most_bytes:
            break
    return taken


StoreValue: TypeAlias = bytes | MapValue | ListValue | SetValue


def items_bytes(items: Iterable[bytes]) -> int:
    """The assumed size of list or set items."""
    return sum(len(item) + ITEM_BYTES for item in items)


def value_bytes(value: StoreValue) -> int:
    """The assumed size of a value, without its key."""
    return len(value) if isinstance(value, bytes) else value.size_bytes


def kind_of(value: StoreValue) -> str:
    """``value``, ``map``, ``list`` or ``set``."""
    return "value" if isinstance(value, bytes) else value.kind


def wrong_type(key: str, value: StoreValue, wanted: str) -> WrongType:
    return WrongType(f"key {key[:64]!r} holds a {kind_of(value)}, not {wanted}")


_LIMIT = 1 << 63
_decode = msgspec.json.Decoder(int | float).decode

ZERO = JSON_PREFIX + b"0"


def add_number(value: bytes, by: int | float, what: str) -> tuple[int | float, bytes]:
    """The number in ``value`` plus ``by``, a 64-bit integer or a finite float; also as a value.

    Raises `WrongType` if ``value`` is not a number and `InvalidInput` if the sum is out of
    range; ``what`` names the place in the message.
    """
    try:
        total: int | float = _decode(value[1:]) + by
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise WrongType(f"{what} holds a value that is not a number") from None
    except OverflowError:
        raise InvalidInput(f"{what} holds a number too large to add to") from None
    if isinstance(total, int) and not -_LIMIT <= total < _LIMIT:
        raise InvalidInput(f"{what} would leave the range of 64-bit integers")
    if isinstance(total, float) and not math.isfinite(total):
        raise InvalidInput(f"{what} would no longer be a finite number")
    return total, value[:1] + repr(total).encode()
