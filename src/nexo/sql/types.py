"""Iceberg's types, as its metadata writes them, in DuckDB's words."""

from __future__ import annotations

from typing import Any

_PLAIN = {
    "boolean": "BOOLEAN", "int": "INTEGER", "long": "BIGINT", "float": "FLOAT",
    "double": "DOUBLE", "string": "VARCHAR", "binary": "BLOB", "date": "DATE",
    "timestamptz": "TIMESTAMP WITH TIME ZONE",
}  # fmt: skip


def duck_type(kind: Any) -> str:
    """A type: a text, or an object for what is nested."""
    if isinstance(kind, str):
        return kind.upper() if kind.startswith("decimal(") else _PLAIN[kind]
    match kind["type"]:
        case "list":
            return f"{duck_type(kind['element'])}[]"
        case "map":
            return f"MAP({duck_type(kind['key'])}, {duck_type(kind['value'])})"
    fields = (f"{quoted_name(each['name'])} {duck_type(each['type'])}" for each in kind["fields"])
    return f"STRUCT({', '.join(fields)})"


def quoted_name(name: str) -> str:
    """A name that may hold anything."""
    return '"' + name.replace('"', '""') + '"'
