"""``nexo tail`` and ``nexo stream read``: print a stream's records, followed or to its end."""

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

    from nexo import Client
    from nexo.client.stream_records import Record
    from nexo.protocol.stream import StartPosition

_POLL_S = 20.0


_partition = click.option("--partition", type=click.IntRange(min=0), help="Only this one.")
_key = click.option("--key", help="Only records of this key.")
_count = click.option("--count", type=click.IntRange(min=1), help="Stop after this many records.")


@click.command("tail")
@click.argument("stream")
@click.option("--last", "-n", type=click.IntRange(min=0), default=10, show_default=True,
              help="Begin this many offsets before the end of each partition.")  # fmt: skip
@click.option("--from", "start", type=place, metavar="PLACE",
              help="Begin here instead: a place as in nexo seek.")  # fmt: skip
@_partition
@_key
@_count
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
    with client() as nexo:
        if start is None:
            places = only(last_positions(nexo, stream, last), partition)
        else:
            places = _from(nexo, stream, start, partition)
        _show_all(nexo, stream, places, 0.0 if no_follow else wait_s, key, count)


@click.command("read")
@click.argument("stream")
@click.option("--from", "start", type=place, metavar="PLACE", default="beginning",
              show_default=True, help="Where to begin: a place as in nexo seek.")  # fmt: skip
@_partition
@_key
@_count
def read(
    stream: str,
    start: StartPosition | datetime,
    partition: int | None,
    key: str | None,
    count: int | None,
) -> None:
    """Print the records of STREAM and stop at its end; no group is involved.

    To go on as it grows, use `nexo tail`.
    """
    with client() as nexo:
        _show_all(nexo, stream, _from(nexo, stream, start, partition), 0.0, key, count)


def _from(
    nexo: Client, stream: str, start: StartPosition | datetime, partition: int | None
) -> dict[int, int]:
    if isinstance(start, int) and partition is not None:
        start = {partition: start}
    return only(positions(nexo, stream, start), partition)


def _show_all(
    nexo: Client,
    stream: str,
    places: dict[int, int],
    wait_s: float | None,
    key: str | None,
    count: int | None,
) -> None:
    found = _follow(PartitionsReader(nexo, stream, places), wait_s)
    for record in islice((each for each in found if key is None or each.key == key), count):
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
