"""``nexo lag``: how far groups are behind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from nexo.cli import output
from nexo.cli.options import client
from nexo.client._sync.requests import request
from nexo.errors import Forbidden, NotFound
from nexo.model import Broker
from nexo.model.stream import StreamSurvey, shared_kind
from nexo.protocol.ops import Op
from nexo.protocol.server import SurveyAsk
from nexo.protocol.stream_ordered import OrderedAsk, OrderedInfo

if TYPE_CHECKING:
    from nexo import Client
    from nexo.protocol.stream import GroupInfo

_COLUMNS = ("stream", "group", "kind", "lag", "in_flight", "parked", "consumers")


@click.command("lag")
@click.argument("stream", required=False)
@click.argument("group", required=False)
@click.option("--over", type=click.IntRange(min=0), metavar="RECORDS",
              help="Only groups further behind; exit code 3 if there are any.")  # fmt: skip
@click.option(
    "--limit", type=click.IntRange(min=1), help="Show only this many, the furthest behind."
)
@click.pass_context
def command(
    ctx: click.Context, stream: str | None, group: str | None, over: int | None, limit: int | None
) -> None:
    """How far groups are behind: of all streams, one, or one group.

    Lag is counted in offsets, so records that compaction removed count until the group is
    past them.
    """
    with client() as nexo:
        found = _found(nexo, stream, group)
    late = [row for row in found if over is None or row["lag"] > over]
    empty = "there are no groups" if over is None else "no group is that far behind"
    output.rows(late[:limit], _COLUMNS, empty)
    if over is not None and late:
        ctx.exit(3)


def _found(nexo: Client, stream: str | None, group: str | None) -> list[dict[str, Any]]:
    """The groups asked for, the furthest behind first."""
    rows = [*_all_groups(nexo)] if stream is None else _groups_of(nexo, stream, group)
    if stream is not None and not rows:
        nexo.stream(stream).info()  # says so if there is no such stream
        if group is not None:
            raise NotFound(f"group {group!r} of stream {stream!r} not found")
    return sorted(rows, key=lambda row: -row["lag"])


def stream_page(nexo: Client, position: int) -> StreamSurvey:
    """Streams and groups from ``position`` on."""
    ask = SurveyAsk(position=position)
    return request(nexo.link(Broker.STREAM).call, Op.S_SURVEY, ask, StreamSurvey)


def _all_groups(nexo: Client) -> Iterator[dict[str, Any]]:
    """Every group, shared and ordered, of every stream."""
    position = 0
    while True:
        page = stream_page(nexo, position)
        for group in page.groups:
            yield {
                "stream": group.stream, "group": group.name, "kind": group.kind,
                "lag": group.lag, "in_flight": group.in_flight, "parked": group.parked,
                "consumers": group.consumers,
            }  # fmt: skip
        position = page.next
        if not position:
            return


def _groups_of(nexo: Client, stream: str, group: str | None) -> list[dict[str, Any]]:
    """As `_all_groups`, but permission to read this one stream is enough."""
    rows: list[dict[str, Any]] = []
    with suppress(NotFound):
        target = nexo.stream(stream)
        rows += map(shared_row, target.groups() if group is None else [target.group(group).info()])
    with suppress(NotFound):
        found = ordered_groups(nexo, stream, group)
        rows += [_ordered(info) for info in found if stream in info.lags]
    return [{"stream": stream, **row} for row in rows]


def shared_row(group: GroupInfo) -> dict[str, Any]:
    """The columns of a group that is not ordered."""
    return {
        "group": group.name, "kind": shared_kind(group.options), "lag": group.lag,
        "in_flight": sum(each.in_flight for each in group.partitions),
        "parked": sum(each.parked for each in group.partitions),
        "consumers": len(group.consumers),
    }  # fmt: skip


def _ordered(group: OrderedInfo) -> dict[str, Any]:
    consumers = {member for _, _, member in group.owners}
    return {
        "group": group.name, "kind": "ordered", "lag": group.lag, "in_flight": 0, "parked": 0,
        "consumers": len(consumers),
    }  # fmt: skip


def ordered_groups(
    nexo: Client, stream: str | None = None, group: str | None = None
) -> list[OrderedInfo]:
    """The ordered groups of the server; or those that read a stream, as far as they do."""
    ask = OrderedAsk(stream=stream, group=group)
    return request(nexo.link(Broker.STREAM).call, Op.S_ORDERED_GROUPS, ask, list[OrderedInfo])


def shown_ordered_groups(nexo: Client) -> list[OrderedInfo]:
    """As `ordered_groups`; without permission to read all of them, none and a note."""
    try:
        return ordered_groups(nexo)
    except Forbidden:
        output.note("ordered groups are not shown: it takes stream:read:*")
        return []
