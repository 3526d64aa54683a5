"""SQL over streams in about a second: the hot log and the lake in one view, with DuckDB (I10)."""
