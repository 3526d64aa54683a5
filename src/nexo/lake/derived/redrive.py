"""Dead letters, sent again: to their stream once its columns fit, or to another one (SPEC I11).

A letter is published with a header that says where it came from. The table of dead letters notes
up to where they were sent, after they were: a crash in between sends some of them twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from nexo.errors import NotFound, ProtocolError
from nexo.lake.catalog import Lake
from nexo.lake.derived.dead_letters import LETTERS, letters_in_order
from nexo.lake.failures import lake_errors
from nexo.lake.tables import DEAD_LETTERS, StreamId, offsets_of, offsets_text
from nexo.protocol.values import decode_content

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.table import Table

SENT = "nexo.redriven"
"""A property of the table: by partition, letters below this offset were sent again."""
HEADER = "nexo-dead-letter"

PublishAgain = Callable[[Sequence[Any], Sequence[Any], Sequence[dict[str, Any]]], Any]
"""Publishes values with their keys and headers, as ``Stream.publish_many`` does."""


def redrive(lake: Lake, stream: StreamId, publish: PublishAgain) -> int:
    """Publish the dead letters that were not sent again yet; returns how many there were."""
    table = lake.known(stream, DEAD_LETTERS)
    if table is None:
        raise NotFound(f"stream {stream.name!r} has no dead letters")
    count = 0
    with lake_errors(f"cannot read the dead letters of stream {stream.name!r}"):
        for partition in offsets_of(table.properties):
            first = offsets_of(table.properties, SENT).get(partition, 0)
            for letters in letters_in_order(table, partition, LETTERS, first):
                publish(*_records(letters, stream.name))
                _note(table, partition, letters.column("offset")[-1].as_py() + 1)
                count += letters.num_rows
    return count


def _records(letters: pa.Table, stream: str) -> tuple[list[Any], list[Any], list[Any]]:
    """Values, keys and headers to publish."""
    values, keys, headers = list[Any](), list[Any](), list[Any]()
    for row in letters.drop_columns(["timestamp", "reason"]).to_pylist():
        values.append(_value(row["value"], row["value_type"]))
        keys.append(row["key"])
        known = msgspec.json.decode(row["headers"]) if row["headers"] else {}
        origin = f"{stream}/{row['partition']}/{row['offset']}"
        headers.append({**known, HEADER: origin})
    return values, keys, headers


def _value(content: bytes | None, kind: int) -> Any:
    """A value as it was published; bytes if it is not what its type says."""
    try:
        return None if content is None else decode_content(kind, content)
    except ProtocolError:
        return content


def _note(table: Table, partition: int, offset: int) -> None:
    sent = offsets_of(table.properties, SENT) | {partition: offset}
    with table.transaction() as transaction:
        transaction.set_properties({SENT: offsets_text(sent)})
