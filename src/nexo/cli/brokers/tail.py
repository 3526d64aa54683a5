"""``nexo tail``: print a stream's records, and go on as it grows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from nexo.cli import output
from nexo.cli.brokers.stream_reading import PartitionsReader, last_positions, only, positions
from nexo.cli.options import client, common
from nexo.cli.times import place, seconds

if TYPE_CHECKING:
    from datetime import datetime

    from nexo.client.stream_records import Record
    from nexo.protocol.stream import StartPosition

_POLL_S = 20.0


@click.command("tail")
@click.argument("stream")
@click.option("--last", "-n", type=click.IntRange(min=0), default=10, show_default=True,
              help="Begin this many offsets before the end of each partition.")  # fmt: skip
@click.option("--from", "start", type=place, metavar="PLACE",
              help="Begin here instead: a place as in nexo seek.")  # fmt: skip
@click.option("--partition", type=click.IntRange(min=0), help="Only this one.")
@click.option("--key", help="Only records of this key.")
@click.option("--count", type=click.IntRange(min=1), help="Stop after this many records.")
@click.option("--no-follow", is_flag=True, help="Stop at the end.")
@click.option("--wait", "wait_s", type=seconds(),
              help="Stop after this long without a record: 5 (seconds), 1m.")  # fmt: skip
def command(
    stream: str,
    last: int,
    start: StartPosition | datetime | None,
    partition: int | None,
    key: str | None,
    count: int | None,
    no_follow: bool,
    wait_s: float | None,
) -> None:
    """Print records of STREAM and go on as it grows; no group is involved.

    With --json, a line is what `nexo stream publish --format records` reads.
    """
    if isinstance(start, int) and partition is not None:
        start = {partition: start}
    with client() as nexo:
        if start is None:
            places = last_positions(nexo, stream, last)
        else:
            places = positions(nexo, stream, start)
        reader = PartitionsReader(nexo, stream, only(places, partition))
        found = _follow(reader, 0.0 if no_follow else wait_s)
        chosen = (record for record in found if key is None or record.key == key)
        for record in islice(chosen, count):
            show(record)


def _follow(reader: PartitionsReader, wait_s: float | None) -> Iterator[Record[Any]]:
    """Records until none came for ``wait_s``; forever if that is None."""
    while True:
        found = reader.read(_POLL_S if wait_s is None else wait_s)
        yield from found
        if not found and wait_s is not None:
            return


def show(record: Record[Any]) -> None:
    """One record on a line."""
    if common().as_json:
        output.line(as_row(record))
        return
    time = record.timestamp.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    key = "" if record.key is None else f" {_text(record.key)}"
    output.text(f"{time} {record.partition}:{record.offset}{key} {_text(record.value)}")


def as_row(record: Record[Any]) -> dict[str, object]:
    """A record's fields."""
    return {
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "key": record.key,
        "value": record.value,
        "headers": record.headers,
    }


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return "(deleted)" if value is None else json.dumps(value, ensure_ascii=False)
