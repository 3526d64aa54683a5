"""``nexo seek``: move a group."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from nexo.cli import output
from nexo.cli.brokers.lag import ordered_groups
from nexo.cli.brokers.stream_reading import positions
from nexo.cli.options import client
from nexo.cli.times import place
from nexo.client._sync.requests import request
from nexo.errors import NotFound
from nexo.model import Broker
from nexo.protocol import stream as wire
from nexo.protocol.ops import Op
from nexo.protocol.stream_ordered import OrderedSeek

if TYPE_CHECKING:
    from datetime import datetime

    from nexo import Client


@click.command("seek")
@click.argument("stream")
@click.argument("group")
@click.argument("to", metavar="PLACE", type=place)
def command(stream: str, group: str, to: wire.StartPosition | datetime) -> None:
    """Move GROUP of STREAM to PLACE; running consumers continue from there.

    PLACE is beginning, end, an offset, offsets by partition (0:10,1:20), a time
    (2026-01-31T12:00, in UTC unless it says otherwise), or an age (2h: two hours ago).
    If both an ordered and a shared group have this name, the ordered one is moved; if there
    is neither, a shared group is created.
    """
    with client() as nexo:
        if _ordered_lag(nexo, stream, group) is None:
            generation = nexo.stream(stream).seek(group, to)
            behind = nexo.stream(stream).group(group).lag()
        else:
            generation = _seek_ordered(nexo, stream, group, to)
            behind = _ordered_lag(nexo, stream, group) or 0
    output.done(f"{group} is {behind:,} records behind", generation=generation, lag=behind)


def _ordered_lag(nexo: Client, stream: str, group: str) -> int | None:
    """How far an ordered group is behind in a stream; None if there is no such group."""
    try:
        return ordered_groups(nexo, stream, group)[0].lag
    except NotFound:
        return None


def _seek_ordered(nexo: Client, stream: str, group: str, to: wire.StartPosition | datetime) -> int:
    """An ordered group stores the last offset that was processed, so one before the place."""
    found = positions(nexo, stream, to, exact=True)
    chosen = to if isinstance(to, dict) else found
    rows = [(stream, partition, found[partition] - 1, "") for partition in chosen]
    ask = OrderedSeek(group=group, offsets=rows)
    return request(nexo.link(Broker.STREAM).call, Op.S_ORDERED_SEEK, ask, int)
