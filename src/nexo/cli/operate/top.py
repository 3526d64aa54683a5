"""``nexo top``: what a server is doing, once or again and again."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import click
from msgspec import structs

from nexo.cli import output
from nexo.cli.brokers.lag import stream_page
from nexo.cli.operate import figures
from nexo.cli.operate.figures import Board, Sample
from nexo.cli.options import client, common
from nexo.cli.times import seconds
from nexo.client._sync.requests import request, status
from nexo.errors import NexoError
from nexo.model import Broker
from nexo.model.queue import QueueSurvey
from nexo.options.units import size_text
from nexo.protocol.ops import Op
from nexo.protocol.server import SurveyAsk

if TYPE_CHECKING:
    from rich.console import Group

    from nexo import Client

# ruff: noqa: PLC0415 - rich is slow to import, and JSON output does not need it

_BROKERS = ("broker", "in_per_s", "out_per_s", "connections", "cpu_percent", "memory", "sync_ms")
_HOLDINGS = ("broker", "holds")
_QUEUES = ("queue", "in_per_s", "out_per_s", "waiting", "working", "scheduled", "dead")
_STREAMS = ("stream", "in_per_s", "offsets", "size", "partitions", "groups")
_GROUPS = ("group", "stream", "kind", "lag", "out_per_s", "in_flight", "parked", "consumers")
_QUEUE_COUNTS = ("waiting", "working", "scheduled", "dead", "pushed_total", "finished_total")
_PAGES = 10
"""Pages of queues, and of streams, that one look reads; with more, they take turns."""


@click.command()
@click.option("--interval", "interval_s", type=seconds(least_ms=50), default="1s",
              show_default=True, help="Between two looks.")  # fmt: skip
@click.option("--once", is_flag=True, help="Look once, with rates over one interval, and end.")
@click.option("--count", type=click.IntRange(min=1), help="End after this many looks.")
@click.option("--limit", type=click.IntRange(min=0), default=10, show_default=True,
              help="Queues, streams and groups shown.")  # fmt: skip
def command(interval_s: float, once: bool, count: int | None, limit: int) -> None:
    """Show rates, depths and load of all brokers, renewed until Ctrl-C.

    A broker whose figures the user may not read is shown as forbidden; it takes permission to
    read everything of it.
    """
    with client() as nexo:
        views = islice(_views(nexo, interval_s, limit), 1 if once else count)
        if common().as_json:
            for view in views:
                output.line(view)
        else:
            _show(views, live=not once)


class Looks:
    """A server's figures, renewed with each look."""

    def __init__(self, nexo: Client) -> None:
        self._nexo = nexo
        self._queues = Board({"in_per_s": "pushed_total", "out_per_s": "finished_total"})
        self._streams = Board({"in_per_s": "published"})
        self._groups = Board({"out_per_s": "finished"})
        self._queue_position = self._stream_position = 0
        self._before = self._look()
        errors = [each for each in self._before.brokers.values() if isinstance(each, NexoError)]
        if len(errors) == len(Broker):
            raise errors[0]

    def next(self, limit: int) -> dict[str, Any]:
        """Look again, and return the screen."""
        before, self._before = self._before, self._look()
        return {
            "time_ms": int(time.time() * 1000),
            "brokers": list(figures.broker_rows(before, self._before)),
            "queues": self._queues.top(limit, "in_per_s", "out_per_s", "waiting"),
            "streams": self._streams.top(limit, "in_per_s", "bytes"),
            "groups": self._groups.top(limit, "lag", "out_per_s"),
        }

    def _look(self) -> Sample:
        with contextlib.suppress(NexoError):  # a broker that is down shows in its status
            self._see_queues()
        with contextlib.suppress(NexoError):
            self._see_streams()
        return Sample(
            time.monotonic(), {broker.label: _status(self._nexo, broker) for broker in Broker}
        )

    def _see_queues(self) -> None:
        call = self._nexo.link(Broker.QUEUE).call
        for _ in range(_PAGES):
            ask = SurveyAsk(position=self._queue_position)
            page, now_s = request(call, Op.Q_SURVEY, ask, QueueSurvey), time.monotonic()
            for info in page.queues:
                counts = {name: getattr(info, name) for name in _QUEUE_COUNTS}
                self._queues.see((info.name,), {"queue": info.name, **counts}, now_s)
            self._queue_position = page.next
            if not page.next:
                self._queues.end_round()
                return

    def _see_streams(self) -> None:
        for _ in range(_PAGES):
            page, now_s = stream_page(self._nexo, self._stream_position), time.monotonic()
            for stream in page.streams:
                row = {"stream": stream.name, **structs.asdict(stream)}
                self._streams.see((stream.name,), row, now_s)
            for group in page.groups:
                key = (group.stream, group.name, group.kind)
                self._groups.see(key, {"group": group.name, **structs.asdict(group)}, now_s)
            self._stream_position = page.next
            if not page.next:
                self._streams.end_round()
                self._groups.end_round()
                return


def _views(nexo: Client, interval_s: float, limit: int) -> Iterator[dict[str, Any]]:
    """The screens, look by look."""
    looks = Looks(nexo)
    while True:
        time.sleep(interval_s)
        yield looks.next(limit)


def _status(nexo: Client, broker: Broker) -> dict[str, Any] | NexoError:
    try:
        found: dict[str, Any] = status(nexo.link(broker).call, broker)
    except NexoError as error:
        return error
    return found


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

    brokers = [
        row | ({"memory": size_text(row["rss_bytes"])} if row["up"] else {})
        for row in view["brokers"]
    ]
    streams = [row | {"size": size_text(row["bytes"])} for row in view["streams"]]
    parts = [output.table(brokers, _BROKERS), output.table(brokers, _HOLDINGS)]
    others = ((view["queues"], _QUEUES), (streams, _STREAMS), (view["groups"], _GROUPS))
    parts += [output.table(rows, columns) for rows, columns in others if rows]
    return Group(*parts)
