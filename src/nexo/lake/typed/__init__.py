"""Typed columns: values taken apart into columns of the stream's own table (SPEC I11)."""

from __future__ import annotations

from nexo.lake.typed.columns import (
    MISFITS,
    REJECTED,
    ParsedColumn,
    Terms,
    columns_of,
    parser_of,
    rename,
    set_additions,
    set_format,
    set_permissive,
    set_schema,
    terms_of,
)
from nexo.lake.typed.infer import infer
from nexo.lake.typed.values import Parser, parsed

__all__ = [
    "MISFITS",
    "REJECTED",
    "ParsedColumn",
    "Parser",
    "Terms",
    "columns_of",
    "infer",
    "parsed",
    "parser_of",
    "rename",
    "set_additions",
    "set_format",
    "set_permissive",
    "set_schema",
    "terms_of",
]
