"""How far streams are in the lake."""

from __future__ import annotations

from collections.abc import Iterator

from nexo.hot_log import HotLog
from nexo.lake.catalog import Lake
from nexo.lake.derived import dead_letters
from nexo.lake.plan import missing_before
from nexo.lake.progress import by_stream, read_progress
from nexo.lake.tables import StreamId, held_offsets, missing


def status(lake: Lake, url: str | None) -> Iterator[dict[str, object]]:
    """Per partition of every stream with tiering on or a table: its place in both tiers.

    ``missing`` records were lost to the table when another program rolled it back: the broker no
    longer had them. ``error`` is why a pipeline could not take it, empty once it could again.
    """
    seen = by_stream(read_progress(lake.settings.folder))
    with HotLog(url) as broker:
        for name in list(broker.names()):
            info = broker.describe(name)
            stream = StreamId(name, info.created_ms)
            table = lake.known(stream)
            if table is None and not info.options.get("tiering"):
                continue
            offsets = held_offsets(table) if table is not None else {}
            lost = missing(table.properties) if table is not None else {}
            dead = dead_letters.count(lake, stream)
            for partition, part in enumerate(info.partitions):
                taken = offsets.get(partition, part.hot_offset)
                yield {
                    "stream": name,
                    "partition": partition,
                    "lake_offset": offsets.get(partition),
                    "told_offset": part.tiered_offset,
                    "hot_start": part.hot_offset,
                    "hot_end": part.stable_offset,
                    "behind": max(part.stable_offset - taken, 0),
                    "missing": lost.get(partition, 0)
                    + missing_before(part, offsets.get(partition)),
                    "dead_letters": dead.get(partition, 0),
                    "error": seen[name].error if name in seen else "",
                }
