"""How much merging is due, and how long it would take at the pace that was measured."""

from __future__ import annotations

from dataclasses import dataclass

from nexo.lake.progress import TableDebt

_SMOOTH = 0.3


@dataclass(slots=True)
class MergePace:
    """How fast files are merged, pauses included."""

    bytes_s: float = 20.0 * 1024**2
    """What one process does beside a pipeline, until it was measured."""

    def took(self, size_bytes: int, seconds: float) -> None:
        """So much was merged in so long; a little says nothing."""
        if size_bytes >= 1024**2 and seconds > 0:
            self.bytes_s += _SMOOTH * (size_bytes / seconds - self.bytes_s)

    def debt(self, table: str, files: int, size_bytes: int) -> TableDebt:
        """What a table is behind."""
        return TableDebt(
            table=table,
            small_files=files,
            small_bytes=size_bytes,
            behind_s=size_bytes / self.bytes_s,
        )
