"""Files that are written whole, or not left behind."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nexo import batch as batches
from nexo.lake.catalog import Lake
from nexo.lake.files import DataFileFacts, FileWriter, target
from nexo.lake.paths import local_path, location_of
from nexo.lake.rows import rows
from nexo.lake.user_tables import ensure_user_table

from .conftest import DAY_MS, Filler, make_batch


def table(offset: int, at_ms: int) -> pa.Table:
    return pa.Table.from_batches([rows(make_batch(offset, [b"x"], at_ms), 0, offset, offset + 1)])


def test_a_failure_leaves_no_file(filler: Filler) -> None:
    def failing() -> Iterator[pa.Table]:
        yield table(0, 0)
        yield table(1, DAY_MS)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        FileWriter(target(filler.table), "label").save(failing())
    folder = Path(local_path(filler.table.location()) or "")
    assert list(folder.rglob("*.parquet")) == []


class FullDisk(pq.ParquetWriter):  # type: ignore[misc]
    """Writes like another, but the disk is full when it ends; then Arrow's has no more to say."""

    failed = False

    def close(self) -> None:
        super().close()
        if self.failed:
            raise RuntimeError("ParquetWriter is closed")
        self.failed = True
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_disk_that_is_full_at_the_end_leaves_no_file(
    filler: Filler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P10: each retry left a file behind, so that the disk stayed full."""
    monkeypatch.setattr(pq, "ParquetWriter", FullDisk)
    writer = FileWriter(target(filler.table), "label")
    with pytest.raises(OSError, match="No space left"):
        writer.save([table(0, 0), table(1, DAY_MS)])
    folder = Path(local_path(filler.table.location()) or "")
    assert list(folder.rglob("*.parquet")) == []


def test_rows_are_split_by_day_with_their_bounds(filler: Filler) -> None:
    tables = [table(0, 0), table(1, DAY_MS), table(2, DAY_MS)]
    first, second = FileWriter(target(filler.table), "label").save(tables)
    assert (first.partition, first.count, _offsets(first)) == ((0,), 1, (0, 0))
    assert (second.partition, second.count, _offsets(second)) == ((1,), 2, (1, 2))
    assert "day=1970-01-02" in second.path


def _offsets(facts: DataFileFacts) -> tuple[int, int]:
    """The lowest and the highest offset, which is the second column."""
    return int.from_bytes(facts.lower[2], "little"), int.from_bytes(facts.upper[2], "little")


def test_headers_that_are_no_text_stop_nothing() -> None:
    """SPEC I2: whatever a client published is taken, and the records around it too."""
    entry = batches.encode([b"a", b"b"], 0, 1, headers=[b'{"a":1}', b"\xff{"])
    found = rows(batches.decode(bytes(entry[0]) + b"".join(entry[1])), 0, 0, 2)
    assert found.column("headers").to_pylist() == ['{"a":1}', "\ufffd{"]


@pytest.mark.parametrize("path", ["/a", "/a b/ü", "/100%", "/a#b", "/a?b"])
def test_a_path_and_its_location_are_one(path: str) -> None:
    assert local_path(location_of(Path(path))) == path


def test_object_stores_are_not_local() -> None:
    assert local_path("s3://lake/a:b") is None
    assert local_path("file:/a") == local_path("file:///a") == local_path("/a") == "/a"


def test_only_columns_that_repeat_have_a_dictionary(lake: Lake) -> None:
    def encoded(**columns: pa.Array) -> set[str]:
        rows = pa.table(columns)
        where = target(ensure_user_table(lake, f"t{len(columns)}", rows.schema))
        (made,) = FileWriter(where, "w-1").save([rows])
        group = pq.ParquetFile(local_path(made.path)).metadata.row_group(0)
        leaves = [group.column(number) for number in range(group.num_columns)]
        return {c.path_in_schema for c in leaves if c.has_dictionary_page}

    numbers, names = pa.array(range(9_000)), pa.array(["eu", "us", None] * 3_000)
    assert encoded(id=numbers, region=names) == {"region"}
    parts = pa.array([{"a": 1}] * 9_000)
    assert encoded(id=numbers, region=names, parts=parts) == {"id", "region", "parts.a"}
