"""All keys in order, so that a page costs its own length and not the store's.

Changes collect in two small sets and are merged into sorted blocks when there are enough of
them, or on a read. A write costs a set operation, and about a microsecond later; no single
write pays for a large sort.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator

_BLOCK = 512
_PENDING = 4_096


class OrderedKeys:
    """A set of keys, ordered by Unicode code points."""

    __slots__ = ("_added", "_blocks", "_gone", "_lows")

    def __init__(self) -> None:
        self._blocks: list[list[str]] = []
        self._lows: list[str] = []
        """Lower bound of each block: its keys are at or above it, all earlier keys below."""
        self._added: set[str] = set()
        self._gone: set[str] = set()

    def add(self, key: str) -> None:
        """Add a key that is not in the index."""
        if key in self._gone:
            self._gone.remove(key)
            return
        self._added.add(key)
        if len(self._added) >= _PENDING:
            self._merge()

    def remove(self, key: str) -> None:
        if key in self._added:
            self._added.remove(key)
            return
        self._gone.add(key)
        if len(self._gone) >= _PENDING:
            self._merge()

    def walk(self, after: str, start: str = "") -> Iterator[str]:
        """Keys greater than ``after`` and not below ``start``, in order.

        The index must not change while the iterator is in use; continue from the last key seen.
        """
        self._merge()
        inclusive = start > after
        low = start if inclusive else after
        bisect = bisect_left if inclusive else bisect_right
        number = max(bisect_right(self._lows, low) - 1, 0)
        for at in range(number, len(self._blocks)):
            block = self._blocks[at]
            yield from block[bisect(block, low) :] if at == number else block

    def _merge(self) -> None:
        for key in self._gone:
            self._delete(key)
        for key in sorted(self._added):
            self._insert(key)
        self._gone.clear()
        self._added.clear()

    def _insert(self, key: str) -> None:
        if not self._blocks:
            self._blocks, self._lows = [[]], [key]
        number = bisect_right(self._lows, key) - 1
        if number < 0:
            number, self._lows[0] = 0, key
        block = self._blocks[number]
        insort(block, key)
        if len(block) > 2 * _BLOCK:
            self._blocks[number : number + 1] = [block[:_BLOCK], block[_BLOCK:]]
            self._lows.insert(number + 1, block[_BLOCK])

    def _delete(self, key: str) -> None:
        number = bisect_right(self._lows, key) - 1
        block = self._blocks[number]
        del block[bisect_left(block, key)]
        if not block:
            del self._blocks[number], self._lows[number]
