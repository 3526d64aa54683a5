"""Queries rewritten for DuckDB, so that one query means the same here and in Spark.

Two things differ. ``offset`` is a reserved word in DuckDB and a column of every stream, so it is
quoted where it names a column. A cast of bytes to text shows escapes in DuckDB and decodes UTF-8 in
Spark, so such a cast becomes a call of `TEXT`. `duck_type` names Iceberg's types.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import duckdb

from nexo.errors import InvalidInput

TEXT = "nexo_text"
VIEWS = "nexo_views"
"""A table of what ``show tables`` lists."""
MACROS = (
    f"create macro {TEXT}(x blob) as try(decode(x)), (x) as cast(x as varchar)",
    "create macro nexo_shown(x) as coalesce(try(decode(x)), base64(x))",
    "create macro get_json_object(x, path) as "
    "case when json_valid(x) then json_extract_string(x, path) end",
)
_VALUES = (duckdb.token_type.numeric_const, duckdb.token_type.string_const)


def quoted(query: str) -> str:
    """``query`` with ``offset`` in quotes wherever it is a column, not a clause."""
    tokens = list(_tokens(query))
    parts, at = list[str](), 0
    for number, (start, end, _) in enumerate(tokens):
        if query[start:end].lower() == "offset" and not _is_clause(query, tokens, number):
            parts += [query[at:start], '"offset"']
            at = end
    return "".join([*parts, query[at:]])


def _tokens(query: str) -> Iterator[tuple[int, int, Any]]:
    """Where each token begins and ends, and its kind."""
    found = duckdb.tokenize(query)
    ends = [*(start for start, _ in found[1:]), len(query)]
    for (start, kind), end in zip(found, ends, strict=True):
        yield start, start + len(query[start:end].rstrip()), kind


def _is_clause(query: str, tokens: list[tuple[int, int, Any]], number: int) -> bool:
    """Whether an ``offset`` says how many rows to skip: then a number follows."""
    if number + 1 == len(tokens):
        return False
    start, _, kind = tokens[number + 1]
    return kind in _VALUES or query[start] in "?$("


@dataclass(frozen=True, slots=True)
class Parsed:
    """A query, and the names of the tables in it."""

    text: str
    tables: frozenset[str]
    tree: Any = None
    """DuckDB's own; None if it is no SELECT."""


def literal(text: str) -> str:
    """A text as SQL writes it. DuckDB imports pandas, where it is installed, for parameters."""
    return "'" + text.replace("'", "''") + "'"


def parse(connection: duckdb.DuckDBPyConnection, query: str) -> Parsed:
    """A query for DuckDB to run; what is not a SELECT, or not SQL, stays as it is."""
    query = quoted(query)
    found = connection.execute(f"select json_serialize_sql({literal(query)})").fetchone()
    tree = json.loads(found[0]) if found else {"error": True}
    if tree.get("error"):
        return Parsed(query, frozenset())
    count = _list_views(tree) + _replace(tree)
    tables = frozenset(_tables(tree))
    if not count:
        return Parsed(query, tables, tree)
    made = f"select json_deserialize_sql({literal(json.dumps(tree))}::json)"
    text = connection.execute(made).fetchone()
    return Parsed(query if text is None else str(text[0]), tables, tree)


def _list_views(node: Any) -> int:
    """Read ``show tables`` as a query of `VIEWS`, in place; returns how many there were."""
    count = 0
    if (
        isinstance(node, dict)
        and node.get("type") == "SHOW_REF"
        and str(node.get("table_name", "")).strip('"').lower() == "tables"
    ):
        kept = {name: node.get(name) for name in ("alias", "sample", "query_location")}
        node.clear()
        node.update(kept)
        node |= {"type": "BASE_TABLE", "schema_name": "", "catalog_name": "", "table_name": VIEWS}
        node["column_name_alias"] = []
        count += 1
    for child in node.values() if isinstance(node, dict) else node:
        if isinstance(child, dict | list):
            count += _list_views(child)
    return count


def check_question(query: str) -> None:
    """`InvalidInput` for anything but one SELECT, or what is short for one."""
    found = duckdb.extract_statements(quoted(query))
    if len(found) != 1 or found[0].type != duckdb.StatementType.SELECT:
        raise InvalidInput("ask one SELECT at a time: nothing here can be changed by SQL")


def _tables(node: Any) -> Iterator[str]:
    """Names of tables in a tree, as they are written, including those that ``with`` defines."""
    if isinstance(node, dict) and node.get("type") == "BASE_TABLE":
        yield str(node.get("table_name", ""))
    for child in node.values() if isinstance(node, dict) else node:
        if isinstance(child, dict | list):
            yield from _tables(child)


def _replace(node: Any) -> int:
    """Replace casts in a tree, in place; returns how many there were."""
    count = 0
    for item in node.get("select_list", ()) if isinstance(node, dict) else ():
        _name_as_spark_does(item)
    for child in node.values() if isinstance(node, dict) else node:
        if isinstance(child, dict | list):
            count += _replace(child)
    if isinstance(node, dict) and _is_text_cast(node):
        child = node["child"]
        alias, location = node["alias"], node.get("query_location", 0)
        node.clear()
        node.update(_call(child, alias, location))
        count += 1
    return count


def _name_as_spark_does(item: dict[str, Any]) -> None:
    """A column that is cast keeps its name."""
    if _is_text_cast(item) and not item["alias"]:
        item["alias"] = item["child"].get("column_names", [""])[-1]


def _is_text_cast(node: dict[str, Any]) -> bool:
    kind = node.get("cast_type")
    return (
        node.get("class") == "CAST"
        and isinstance(kind, dict)
        and kind.get("id") == "VARCHAR"
        and not kind.get("type_info")
    )


def _call(child: Any, alias: str, location: int) -> dict[str, Any]:
    return {
        "class": "FUNCTION", "type": "FUNCTION", "alias": alias, "query_location": location,
        "function_name": TEXT, "schema": "", "children": [child], "filter": None,
        "order_bys": {"type": "ORDER_MODIFIER", "orders": []}, "distinct": False,
        "is_operator": False, "export_state": False, "catalog": "",
    }  # fmt: skip


_PLAIN = {
    "boolean": "BOOLEAN", "int": "INTEGER", "long": "BIGINT", "float": "FLOAT",
    "double": "DOUBLE", "string": "VARCHAR", "binary": "BLOB", "date": "DATE",
    "timestamptz": "TIMESTAMP WITH TIME ZONE", "timestamp": "TIMESTAMP", "time": "TIME",
    "uuid": "UUID", "fixed": "BLOB",
}  # fmt: skip


def duck_type(kind: Any) -> str:
    """DuckDB's name of a type, which is text, or an object if it is nested."""
    if isinstance(kind, str):
        name = kind.partition("[")[0]  # fixed[16]
        return kind.upper() if kind.startswith("decimal(") else _PLAIN[name]
    match kind["type"]:
        case "list":
            return f"{duck_type(kind['element'])}[]"
        case "map":
            return f"MAP({duck_type(kind['key'])}, {duck_type(kind['value'])})"
    fields = (f"{quoted_name(each['name'])} {duck_type(each['type'])}" for each in kind["fields"])
    return f"STRUCT({', '.join(fields)})"


def quoted_name(name: str) -> str:
    """A name of any characters, quoted for SQL."""
    return '"' + name.replace('"', '""') + '"'
