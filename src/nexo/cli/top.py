"""``nexo top``: what a server is doing, once or again and again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from nexo.cli import figures, output
from nexo.cli.figures import Sample
from nexo.cli.options import client, terms
from nexo.cli.sizes import size_text
from nexo.errors import NexoError
from nexo.model import Broker
from nexo.protocol.ops import Op
from nexo.protocol.values import decode_value

if TYPE_CHECKING:
    from rich.console import Group

    from nexo import Client

# ruff: noqa: PLC0415 - rich is slow to import, and JSON output does not need it

_BROKERS = ("broker", "in_per_s", "out_per_s", "connections", "cpu_percent", "memory", "sync_ms")
_HOLDINGS = ("broker", "holds")
_QUEUES = ("queue", "in_per_s", "out_per_s", "waiting", "working", "dead")
_STREAMS = ("stream", "in_per_s", "records", "size", "partitions", "groups")


@click.command()
@click.option("--interval", "interval_s", type=click.FloatRange(min=0.05), default=1.0,
              show_default=True, help="Seconds between two looks.")  # fmt: skip
@click.option("--once", is_flag=True, help="Look once, with rates over one interval, and end.")
@click.option("--count", type=click.IntRange(min=1), help="End after this many looks.")
@click.option("--limit", type=click.IntRange(min=0), default=10, show_default=True,
              help="Queues and streams shown.")  # fmt: skip
def command(interval_s: float, once: bool, count: int | None, limit: int) -> None:
    """Show rates, depths and load of all brokers, renewed until Ctrl-C."""
    with client() as nexo:
        views = islice(_views(nexo, interval_s, limit), 1 if once else count)
        if terms().as_json:
            for view in views:
                output.line(view)
        else:
            _show(views, live=not once)


def _views(nexo: Client, interval_s: float, limit: int) -> Iterator[dict[str, Any]]:
    """What is shown, look by look."""
    before = sample(nexo)
    while True:
        time.sleep(interval_s)
        now = sample(nexo)
        yield {
            "time_ms": int(time.time() * 1000),
            "brokers": list(figures.broker_rows(before, now)),
            "queues": figures.queue_rows(before, now, limit),
            "streams": figures.stream_rows(before, now, limit),
        }
        before = now


def sample(nexo: Client) -> Sample:
    """Ask every broker how it is."""
    return Sample(time.monotonic(), {broker.label: _status(nexo, broker) for broker in Broker})


def _status(nexo: Client, broker: Broker) -> Any:
    try:
        reply = nexo.link(broker).call(Op.STATUS, bytes((broker,)))
    except NexoError as error:
        return f"no answer: {error.message}"
    return decode_value(reply or b"\x02{}")


def _show(views: Iterator[dict[str, Any]], *, live: bool) -> None:
    from rich.live import Live

    console = output.console()
    if not (live and console.is_terminal):
        for view in views:
            console.print(_tables(view))
        return
    with Live(console=console, screen=True, auto_refresh=False) as screen:
        for view in views:
            screen.update(_tables(view), refresh=True)


def _tables(view: dict[str, Any]) -> Group:
    from rich.console import Group

    brokers = [row | {"memory": size_text(row.get("rss_bytes", 0))} for row in view["brokers"]]
    streams = [row | {"size": size_text(row["bytes"])} for row in view["streams"]]
    parts = [output.table(brokers, _BROKERS), output.table(brokers, _HOLDINGS)]
    if view["queues"]:
        parts.append(output.table(view["queues"], _QUEUES))
    if streams:
        parts.append(output.table(streams, _STREAMS))
    return Group(*parts)
