"""``nexo lag``: how far groups are behind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from nexo.cli import output
from nexo.cli.options import client
from nexo.errors import NotFound
from nexo.model import Broker
from nexo.protocol import stream as wire
from nexo.protocol.ops import Op
from nexo.protocol.stream_ordered import OrderedAsk, OrderedInfo

if TYPE_CHECKING:
    from nexo import Client

_COLUMNS = ("stream", "group", "kind", "lag", "in_flight", "parked", "consumers")


@click.command("lag")
@click.argument("stream", required=False)
@click.argument("group", required=False)
@click.option("--over", type=click.IntRange(min=0), default=0, metavar="RECORDS",
              help="Only groups further behind; exit code 3 if there are any.")  # fmt: skip
@click.pass_context
def command(ctx: click.Context, stream: str | None, group: str | None, over: int) -> None:
    """How many records groups have not finished: of all streams, one, or one group."""
    with client() as nexo:
        found = sorted(_rows(nexo, stream, group), key=lambda row: -row["lag"])
    if group is not None and not found:
        raise NotFound(f"{stream} has no group {group!r}")
    late = [row for row in found if not over or row["lag"] > over]
    output.rows(late, _COLUMNS, "no group is that far behind" if over else "there are no groups")
    if over and late:
        ctx.exit(3)


def _rows(nexo: Client, stream: str | None, group: str | None) -> Iterator[dict[str, Any]]:
    for name in [stream] if stream else nexo.streams():
        for found in nexo.stream(name).groups():
            if group in (None, found.name):
                yield _shared(name, found)
    for ordered in ordered_groups(nexo):
        topics = sorted({row[0] for row in ordered.owners} | {at.topic for at in ordered.offsets})
        if (stream is None or stream in topics) and group in (None, ordered.name):
            yield {
                "stream": ",".join(topics), "group": ordered.name, "kind": "ordered",
                "lag": ordered.lag, "in_flight": None, "parked": None,
                "consumers": len(ordered.members),
            }  # fmt: skip


def _shared(stream: str, group: wire.GroupInfo) -> dict[str, Any]:
    return {
        "stream": stream,
        "group": group.name,
        "kind": "shared",
        "lag": group.lag,
        "in_flight": sum(lane.in_flight for lane in group.partitions),
        "parked": sum(lane.parked for lane in group.partitions),
        "consumers": len(group.consumers),
    }


def ordered_groups(nexo: Client) -> list[OrderedInfo]:
    """All ordered groups of the server."""
    reply = nexo.link(Broker.STREAM).call(Op.S_ORDERED_GROUPS, wire.pack(OrderedAsk()))
    return wire.unpack(list[OrderedInfo], reply or b"")
