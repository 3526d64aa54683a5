"""Which streams a query asks for, where a view covers all of them.

A query that reads ``stream_messages`` with ``topic = 'a'`` or ``topic in ('a', 'b')`` needs no
other stream. The conditions are read from DuckDB's own tree of the query; whatever is not
understood there restricts nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_TOPIC = "topic"


def asked_topics(tree: Any, view: str) -> frozenset[str] | None:
    """The topics that a query reads from a view; None for all of them."""
    found = set[str]()
    for source, conditions in _sources(tree):
        for name, label in _tables(source):
            if name != view:
                continue
            topics = _restricted(conditions, label, is_only=source.get("type") == "BASE_TABLE")
            if topics is None:
                return None
            found |= topics
    return frozenset(found)


def _sources(node: Any) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Every ``from`` of a tree, with the conditions that all of its rows meet."""
    if isinstance(node, dict) and isinstance(node.get("from_table"), dict):
        yield node["from_table"], list(_conjuncts(node.get("where_clause")))
    for child in node.values() if isinstance(node, dict) else node:
        if isinstance(child, dict | list):
            yield from _sources(child)


def _conjuncts(clause: Any) -> Iterator[dict[str, Any]]:
    if not isinstance(clause, dict):
        return
    if clause.get("type") == "CONJUNCTION_AND":
        for each in clause["children"]:
            yield from _conjuncts(each)
    else:
        yield clause


def _tables(source: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The tables that are joined, and what each is called in the query."""
    if source.get("type") == "BASE_TABLE":
        name = str(source.get("table_name", "")).lower()
        yield name, str(source.get("alias") or name).lower()
    for side in ("left", "right"):
        if isinstance(source.get(side), dict):
            yield from _tables(source[side])


def _restricted(
    conditions: list[dict[str, Any]], label: str, *, is_only: bool
) -> frozenset[str] | None:
    for each in conditions:
        match each.get("type"):
            case "COMPARE_EQUAL":
                operands = [each["left"], each["right"]]
            case "COMPARE_IN":
                operands = each["children"]
            case _:
                continue
        columns = [one for one in operands if _is_topic(one, label, is_only=is_only)]
        values = [text for one in operands if (text := _text(one)) is not None]
        is_first = each.get("type") == "COMPARE_EQUAL" or _is_topic(
            operands[0], label, is_only=is_only
        )
        if is_first and len(columns) == 1 and len(values) == len(operands) - 1:
            return frozenset(values)
    return None


def _is_topic(node: dict[str, Any], label: str, *, is_only: bool) -> bool:
    """Whether an expression is the view's own column."""
    names = [str(name).lower() for name in node.get("column_names", ())]
    return names == [label, _TOPIC] or (is_only and names == [_TOPIC])


def _text(node: dict[str, Any]) -> str | None:
    """A text that is written in the query."""
    value = node.get("value")
    if node.get("class") != "CONSTANT" or not isinstance(value, dict) or value.get("is_null"):
        return None
    return value["value"] if isinstance(value.get("value"), str) else None
