"""Watches every queue, stream and group, however many there are.

They are read in rounds of bounded pages, a few pages a second, so that the load on the
brokers stays small. With some hundreds, each is seen every second; with more, they take turns.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from nexo.admin.watching import alerts
from nexo.admin.watching.alerts import Alert
from nexo.admin.watching.watch import GroupWatch, QueueWatch, StreamWatch
from nexo.client._async.client import AsyncClient
from nexo.client._async.requests import request
from nexo.model import Broker
from nexo.model.queue import QueueInfo, QueueSurvey
from nexo.model.stream import StreamSurvey
from nexo.protocol.ops import Op
from nexo.protocol.server import SurveyAsk

PAGES = 10
"""Pages of one broker that are read in a second."""
PATIENCE_S = 2.0
MOST = 50_000
"""Things of one kind that are watched; further ones are only counted."""
TOP = 100
"""Busiest things that are known by rank."""

GroupKey: TypeAlias = tuple[str, str, str]
"""``stream, group, kind``."""


class _Watch(Protocol):
    def seen(self, info: Any, now_s: float) -> None: ...


K = TypeVar("K")
W = TypeVar("W", bound=_Watch)


class Book(Generic[K, W]):
    """The things of one kind as they were last seen, and what is wrong with them."""

    def __init__(self, judge: Callable[[W], Iterable[Alert]]) -> None:
        self.watches: dict[K, W] = {}
        self.alerts: dict[K, list[Alert]] = {}
        self._judge = judge
        self._unseen: set[K] = set()

    def of(self, keys: Iterable[K] | None) -> list[W]:
        """The watches of these keys, or all."""
        if keys is None:
            return list(self.watches.values())
        return [self.watches[key] for key in keys if key in self.watches]

    def see(self, key: K, info: Any, now_s: float, make: Callable[[Any], W]) -> None:
        """Take in the current state of one thing and judge it; new ones only up to `MOST`."""
        watch = self.watches.get(key)
        if watch is None:
            if len(self.watches) >= MOST:
                return
            watch = self.watches[key] = make(info)
        watch.seen(info, now_s)
        self._unseen.discard(key)
        found = list(self._judge(watch))
        if found:
            self.alerts[key] = found
        else:
            self.alerts.pop(key, None)

    def forget(self, key: K) -> None:
        """Forget what was deleted, or replaced by another of the same name."""
        self.watches.pop(key, None)
        self.alerts.pop(key, None)

    def end_round(self) -> None:
        """The round is over: forget what was not seen."""
        for key in self._unseen:
            self.forget(key)
        self._unseen = set(self.watches)


class BrokerSurvey:
    """The three books, filled a few pages at a time."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self.queues: Book[str, QueueWatch] = Book(alerts.of_queue)
        self.streams: Book[str, StreamWatch] = Book(lambda watch: ())
        self.groups: Book[GroupKey, GroupWatch] = Book(alerts.of_group)
        self.busy_queues: list[QueueWatch] = []
        self.busy_streams: list[StreamWatch] = []
        self.late_groups: list[GroupWatch] = []
        self.lags: dict[str, int] = {}
        """By stream, over all its groups."""
        self.round_s: float | None = None
        """How long the last look at all queues and streams took; None before the first."""
        self._finished = 0
        self._began_s = time.monotonic()
        self._ended_s: dict[Broker, float] = {}
        self._rounds: dict[Broker, float] = {}
        self._queue_position = self._stream_position = 0

    def top_queues(self, count: int, names: Iterable[str] | None = None) -> list[QueueWatch]:
        """The busiest queues, or those of ``names``."""
        if names is None:
            return self.busy_queues[:count]
        return heapq.nlargest(count, self.queues.of(names), queue_rank)

    def top_streams(self, count: int, names: Iterable[str] | None = None) -> list[StreamWatch]:
        """The busiest streams, or those of ``names``."""
        if names is None:
            return self.busy_streams[:count]
        return heapq.nlargest(count, self.streams.of(names), self.stream_rank)

    def _ended(self, broker: Broker) -> None:
        """A round over everything of a broker is done."""
        now_s = time.monotonic()
        self._rounds[broker] = now_s - self._ended_s.get(broker, self._began_s)
        self._ended_s[broker] = now_s
        if len(self._rounds) == 2:
            self.round_s = max(self._rounds.values())

    async def see_queues(self) -> None:
        """This second's pages of queues."""
        call = partial(self._client.link(Broker.QUEUE).call, timeout_s=PATIENCE_S)
        for _ in range(PAGES):
            ask = SurveyAsk(position=self._queue_position)
            page, now_s = await request(call, Op.Q_SURVEY, ask, QueueSurvey), time.time()
            for info in page.queues:
                self._see_queue(info, now_s)
            self._queue_position = page.next
            if not page.next:
                self.queues.end_round()
                self._ended(Broker.QUEUE)
                break
        self.busy_queues = heapq.nlargest(TOP, self.queues.watches.values(), queue_rank)

    def _see_queue(self, info: QueueInfo, now_s: float) -> None:
        known = self.queues.watches.get(info.name)
        if known is not None and known.info.created_ms != info.created_ms:
            self.queues.forget(info.name)  # another queue of the same name
        self.queues.see(info.name, info, now_s, QueueWatch)

    async def see_streams(self) -> dict[str, int]:
        """This second's pages of streams and groups; returns the sums over all groups."""
        call = partial(self._client.link(Broker.STREAM).call, timeout_s=PATIENCE_S)
        for _ in range(PAGES):
            ask = SurveyAsk(position=self._stream_position)
            self._see_page(await request(call, Op.S_SURVEY, ask, StreamSurvey), time.time())
            if not self._stream_position:
                self.streams.end_round()
                self.groups.end_round()
                self._ended(Broker.STREAM)
                break
        self.lags = {}
        for (stream, *_), group in self.groups.watches.items():
            self.lags[stream] = self.lags.get(stream, 0) + group.info.lag
        self.busy_streams = heapq.nlargest(TOP, self.streams.watches.values(), self.stream_rank)
        late = (group for group in self.groups.watches.values() if group.info.lag)
        self.late_groups = heapq.nlargest(TOP, late, lambda group: group.info.lag)
        return self._sums()

    def _see_page(self, page: StreamSurvey, now_s: float) -> None:
        for stream in page.streams:
            self.streams.see(stream.name, stream, now_s, StreamWatch)
        for group in page.groups:
            key = (group.stream, group.name, group.kind)
            known = self.groups.watches.get(key)
            if known is not None:
                self._finished += max(0, group.finished - known.info.finished)
            self.groups.see(key, group, now_s, GroupWatch)
        self._stream_position = page.next

    def _sums(self) -> dict[str, int]:
        rows = [group.info for group in self.groups.watches.values()]
        return {
            "lag": sum(row.lag for row in rows),
            "in_flight": sum(row.in_flight for row in rows),
            "parked": sum(row.parked for row in rows),
            "finished": self._finished,
        }

    def stream_rank(self, watch: StreamWatch) -> tuple[float, int, int]:
        """How busy a stream is: by its traffic, then by the lag of its groups, then by size."""
        info = watch.info
        return watch.published.series.last or 0.0, self.lags.get(info.name, 0), info.offsets

    def alerts(self) -> Iterator[Alert]:
        """Every alert about queues, streams and groups."""
        books: tuple[dict[Any, list[Alert]], ...] = (self.queues.alerts, self.groups.alerts)
        return chain.from_iterable(found for book in books for found in book.values())


def queue_rank(watch: QueueWatch) -> tuple[float, int]:
    """How busy a queue is: by its traffic, then by its jobs."""
    rate = (watch.pushed.series.last or 0.0) + (watch.finished.series.last or 0.0)
    return rate, watch.info.waiting + watch.info.dead
