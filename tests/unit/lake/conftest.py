"""A lake in a folder, filled without Spark or a broker."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("pyiceberg")

from nexo import batch as batches
from nexo.lake.catalog import Lake
from nexo.lake.files import FileWriter, target
from nexo.lake.names import file_label
from nexo.lake.once import WrittenRange, commit
from nexo.lake.own_columns import ROWS
from nexo.lake.rows import rows
from nexo.lake.settings import LakeSettings
from nexo.lake.tables import StreamId, held_offsets
from nexo.storage.header import stamp

if TYPE_CHECKING:
    from pyiceberg.table import Table

DAY_MS = 86_400_000


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(LakeSettings(tmp_path / "lake"))


def make_batch(
    base: int, values: Sequence[bytes | None], at_ms: int = 1_000, keys: Sequence[bytes | None] = ()
) -> batches.Batch:
    head, body = batches.encode(
        values, 1, at_ms, keys=keys or None, headers=[b'{"n":1}'] * len(values)
    )
    stamp(head, base)
    return batches.decode(bytes(head) + b"".join(body))


class Filler:
    """Appends batches to a stream's table as the pipeline does."""

    def __init__(self, lake: Lake, stream: str = "log") -> None:
        self.lake = lake
        self.table: Table = lake.ensure(StreamId(stream, 1), ROWS)

    def append(
        self,
        values: Sequence[bytes | None],
        *,
        partition: int = 0,
        at_ms: int = 1_000,
        keys: Sequence[bytes | None] = (),
        skip: int = 0,
    ) -> None:
        """Take ``values`` from the partition's end on; ``skip`` leaves a gap before them."""
        after = held_offsets(self.table.refresh()).get(partition)
        base = (after or 0) + skip
        writer = FileWriter(target(self.table), file_label(partition, base, base + len(values)))
        batch = make_batch(base, values, at_ms, keys)
        writer.write([rows(batch, partition, base, base + len(values))])
        taken = WrittenRange(partition, after, base + len(values), writer.close())
        self.table = commit(self.table, [taken])


@pytest.fixture
def filler(lake: Lake) -> Filler:
    return Filler(lake)
