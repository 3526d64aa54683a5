"""A tree with one node per topic level, searched in both directions.

It holds subscriptions under their patterns, found by topic, and retained messages under
their topics, found by pattern. A search visits only entries that share a prefix with what
it looks for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Generic, TypeVar

V = TypeVar("V")


class _Node(Generic[V]):
    __slots__ = ("children", "entry")

    def __init__(self) -> None:
        self.children: dict[str, _Node[V]] = {}
        self.entry: V | None = None


class Trie(Generic[V]):
    """Entries by levels; wildcards are ordinary levels except in `by_topic`."""

    __slots__ = ("_root",)

    def __init__(self) -> None:
        self._root: _Node[V] = _Node()

    def __iter__(self) -> Iterator[V]:
        return self._below([self._root], hidden=False)

    def get(self, levels: Sequence[str]) -> V | None:
        node: _Node[V] | None = self._root
        for level in levels:
            node = node.children.get(level) if node else None
        return node.entry if node else None

    def put(self, levels: Sequence[str], entry: V) -> None:
        """Store an entry, replacing the one that was there."""
        node = self._root
        for level in levels:
            following = node.children.get(level)
            if following is None:
                following = node.children[level] = _Node()
            node = following
        node.entry = entry

    def remove(self, levels: Sequence[str]) -> V | None:
        """Remove an entry and every branch left empty."""
        path = [self._root]
        for level in levels:
            following = path[-1].children.get(level)
            if following is None:
                return None
            path.append(following)
        entry, path[-1].entry = path[-1].entry, None
        for depth in range(len(levels), 0, -1):
            if path[depth].entry is not None or path[depth].children:
                break
            del path[depth - 1].children[levels[depth - 1]]
        return entry

    def by_topic(self, levels: Sequence[str]) -> list[V]:
        """Entries whose pattern matches a topic (SPEC C1)."""
        found: list[V] = []
        nodes = [self._root]
        wild = not levels[0].startswith("$")
        for level in levels:
            following = []
            for node in nodes:
                steps = (level, "+") if wild else (level,)
                following += _children(node, steps)
                found += _entries(_children(node, ("#",))) if wild else ()
            nodes, wild = following, True
        found += _entries(nodes)
        for node in nodes:
            found += _entries(_children(node, ("#",)))
        return found

    def by_pattern(self, levels: Sequence[str]) -> Iterator[V]:
        """Entries whose topic is matched by a pattern."""
        nodes = [self._root]
        for depth, level in enumerate(levels):
            match level:
                case "#":
                    yield from self._below(nodes, hidden=depth == 0)
                    return
                case "+":
                    nodes = [child for node in nodes for child in _visible(node, depth == 0)]
                case _:
                    nodes = [child for node in nodes for child in _children(node, (level,))]
        yield from _entries(nodes)

    def _below(self, nodes: list[_Node[V]], *, hidden: bool) -> Iterator[V]:
        stack = list(nodes)
        while stack:
            node = stack.pop()
            if node.entry is not None:
                yield node.entry
            stack += _visible(node, hidden and node is self._root)


def _children(node: _Node[V], levels: Iterable[str]) -> list[_Node[V]]:
    children = node.children
    return [children[level] for level in levels if level in children]


def _visible(node: _Node[V], hidden: bool) -> list[_Node[V]]:
    """The children that a wildcard matches; with ``hidden``, none that begin with ``$``."""
    if not hidden:
        return list(node.children.values())
    return [child for level, child in node.children.items() if not level.startswith("$")]


def _entries(nodes: Iterable[_Node[V]]) -> list[V]:
    return [node.entry for node in nodes if node.entry is not None]
