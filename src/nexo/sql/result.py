"""The result of a query: an Arrow table, with conversions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nexo.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Result:
    """Rows of a query. Times are in UTC."""

    table: pa.Table

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self.rows())

    def __repr__(self) -> str:
        return f"<Result of {len(self)} rows: {', '.join(self.columns)}>"

    @property
    def columns(self) -> list[str]:
        """The columns' names, in order."""
        return [str(name) for name in self.table.column_names]

    def rows(self) -> list[tuple[Any, ...]]:
        """Every row as a tuple of Python values: structs and maps are dicts."""
        columns = [column.to_pylist(maps_as_pydicts="lossy") for column in self.table.columns]
        return list(zip(*columns, strict=True))

    def dicts(self) -> list[dict[str, Any]]:
        """Every row as a dict."""
        names = self.columns
        return [dict(zip(names, row, strict=True)) for row in self.rows()]

    def scalar(self) -> Any:
        """The first column of the first row; None if there is no row."""
        return self.table.column(0)[0].as_py(maps_as_pydicts="lossy") if len(self) else None

    def arrow(self) -> pa.Table:
        """As a ``pyarrow.Table``."""
        return self.table

    def pandas(self) -> Any:
        """As a pandas DataFrame; `ConfigError` if pandas is not installed."""
        try:
            import pandas  # noqa: F401, PLC0415 - optional
        except ImportError:
            raise ConfigError("pandas is not installed: pip install pandas") from None
        return self.table.to_pandas()

    def polars(self) -> Any:
        """As a Polars DataFrame; `ConfigError` if Polars is not installed."""
        try:
            import polars  # noqa: PLC0415 - optional
        except ImportError:
            raise ConfigError("polars is not installed: pip install polars") from None
        return polars.from_arrow(self.table)
