"""Records of several partitions by time, against sorting all of them (U7)."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from nexo.admin import timeline
from nexo.admin.timeline import PartitionWindow
from nexo.client.stream_records import Record

Stream = list[list[Record[Any]]]


def record(partition: int, offset: int, time_ms: int, key: str) -> Record[Any]:
    return Record(partition, (offset, time_ms, key.encode(), b"", 0, b""), None)


@st.composite
def streams(draw: st.DrawFn) -> Stream:
    """Some partitions whose times do not fall, with gaps as compaction leaves them."""
    made: Stream = []
    for partition in range(draw(st.integers(1, 4))):
        steps = draw(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 5)), max_size=30))
        offset, time_ms, rows = 0, 0, []
        for gap, later in steps:
            offset, time_ms = offset + gap, time_ms + later
            rows.append(record(partition, offset, time_ms, "ab"[offset % 2]))
        made.append(rows)
    return made


class Reader:
    """Gives a few records at a time, as a broker with small batches does."""

    def __init__(self, stream: Stream, most: int) -> None:
        self._stream = stream
        self._most = most

    async def read(self, partition: int, offset: int, max_bytes: int) -> tuple[Any, int]:
        rows = [row for row in self._stream[partition] if row.offset >= offset][: self._most]
        return rows, rows[-1].offset + 1 if rows else end_of(self._stream[partition])


def end_of(rows: list[Record[Any]]) -> int:
    return rows[-1].offset + 2 if rows else 0


def turned(stream: Stream, reader: Reader, limit: int, key: str | None, backward: bool) -> Any:
    """All pages, one after the other."""
    at = [end_of(rows) if backward else 0 for rows in stream]
    pages: list[list[Record[Any]]] = []
    while True:
        windows = [
            PartitionWindow(i, 0, end_of(rows), at[i], backward) for i, rows in enumerate(stream)
        ]
        page = asyncio.run(timeline.page(windows, reader.read, limit, key, backward))
        pages.append(page.rows)
        at = [window.at for window in windows]
        if page.ended:
            break
    return [row for page in (reversed(pages) if backward else pages) for row in page]


@given(streams(), st.integers(1, 7), st.integers(1, 9), st.sampled_from([None, "a"]), st.booleans())
def test_pages_hold_every_record_once_in_the_order_of_time(
    stream: Stream, most: int, limit: int, key: str | None, backward: bool
) -> None:
    every = [row for rows in stream for row in rows if key is None or row.key == key]
    expected = sorted(every, key=lambda row: (row.timestamp_ms, row.partition, row.offset))
    assert turned(stream, Reader(stream, most), limit, key, backward) == expected


def test_a_search_ends_after_so_many_records() -> None:
    stream = [[record(0, n, n, "a") for n in range(timeline.SCAN + 10)]]
    windows = [PartitionWindow(0, 0, end_of(stream[0]), 0, False)]
    reader = Reader(stream, 1_000)
    page = asyncio.run(timeline.page(windows, reader.read, 5, "nobody", False))
    assert (page.rows, page.scanned, page.ended) == ([], timeline.SCAN, False)
    assert windows[0].at == timeline.SCAN
