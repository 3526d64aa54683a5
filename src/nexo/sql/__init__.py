"""SQL over streams in about a second: the hot log and the lake in one view, with DuckDB (I10)."""

from nexo.sql.engine import Engine
from nexo.sql.result import Result

__all__ = ["Engine", "Result"]
