"""``nexo seek``: move a group."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import click

from nexo.cli import output
from nexo.cli.options import client
from nexo.cli.sizes import place

if TYPE_CHECKING:
    from nexo.protocol.stream import Position


@click.command("seek")
@click.argument("stream")
@click.argument("group")
@click.argument("to", metavar="PLACE", type=place)
def command(stream: str, group: str, to: Position | datetime) -> None:
    """Have GROUP of STREAM go on from PLACE; running consumers follow.

    PLACE is beginning, end, an offset, offsets by partition (0:10,1:20), a time
    (2026-01-31T12:00, in UTC unless it says otherwise), or an age (2h: two hours ago).
    """
    with client() as nexo:
        generation = nexo.stream(stream).seek(group, to)
        behind = nexo.stream(stream).lag(group)
    output.done(f"{group} has {behind:,} records before it", generation=generation, lag=behind)
