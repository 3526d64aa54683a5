"""Rows, rounds and ratios: how a benchmark is run and summed up.

Machines are shared and noisy, so only ratios count: all contenders of a row are
prepared first, then measured in turn, round after round, in alternating order.
"""

from __future__ import annotations

import asyncio
import resource
import statistics
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeAlias, TypeVar

import uvloop

from benchmarks import peers
from benchmarks.peers import Missing, Server

T = TypeVar("T")

Measure: TypeAlias = Callable[[], float]
"""Runs one round and returns its figure, in the row's unit."""


class Bench:
    """What a contender prepares itself on; everything entered here ends with the row.

    The CPU time of servers started here is counted as the server's, that of this
    process as the client's.
    """

    def __init__(self, quick: bool) -> None:
        self.quick = quick
        self.servers: list[Server] = []
        self._stack = ExitStack()
        self._runner: asyncio.Runner | None = None

    def scaled(self, count: int) -> int:
        """``count``, or a tenth of it in a quick run."""
        return max(1, count // 10) if self.quick else count

    def enter(self, context: AbstractContextManager[T]) -> T:
        """Enter a context that ends with the row."""
        return self._stack.enter_context(context)

    def enter_async(self, context: AbstractAsyncContextManager[T]) -> T:
        """Enter an async context, on the loop of `run`, that ends with the row."""
        entered = self.run(context.__aenter__())
        self._stack.callback(lambda: self.run(context.__aexit__(None, None, None)))
        return entered

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on this contender's own uvloop, which lives as long as the row."""
        if self._runner is None:
            self._runner = self.enter(asyncio.Runner(loop_factory=uvloop.new_event_loop))
        return self._runner.run(work)

    def nexo(self, **settings: object) -> Server:
        """Our server on an empty data folder; ``settings`` are fields of `nexo.config.Settings`."""
        return self._serve(peers.nexo(**settings))

    def redis(self, fsync: str = "off") -> Server:
        """Redis: ``off`` (nothing on disk), ``everysec`` or ``always`` (append-only file)."""
        return self._serve(peers.redis(fsync))

    def nats(self, sync: str | None = None) -> Server:
        """NATS with JetStream; ``sync="always"`` syncs every write, None as it comes (2 min)."""
        return self._serve(peers.nats(sync))

    def mosquitto(self) -> Server:
        """Mosquitto without persistence."""
        return self._serve(peers.mosquitto())

    def rabbitmq(self) -> Server:
        """RabbitMQ; durable queues and confirms are the client's choice."""
        return self._serve(peers.rabbitmq())

    def close(self) -> None:
        """End everything, last first."""
        self._stack.close()

    def _serve(self, context: AbstractContextManager[Server]) -> Server:
        server = self.enter(context)
        self.servers.append(server)
        return server


@dataclass(frozen=True)
class Contender:
    """One way to do a row's work."""

    name: str
    prepare: Callable[[Bench], Measure]
    bar: float | None = None
    """What ours divided by this peer must reach, if it has a bar of its own."""


@dataclass(frozen=True)
class Row:
    """One line of the table: the same work by us and by the peers, durability set alike."""

    name: str
    unit: str
    """``op/s``, ``msg/s`` and the like, or ``µs``, ``ms``, ``MB`` with ``lower_is_better``."""
    ours: Contender
    peers: Sequence[Contender] = ()
    bar: float | None = None
    """What ours divided by the best peer must reach (or stay under, if lower is better)."""
    limit: float | None = None
    """The same for our own figure, for rows without a peer."""
    durability: str = ""
    lower_is_better: bool = False

    def best(self, figures: Sequence[float]) -> float:
        """The best of several figures."""
        return min(figures) if self.lower_is_better else max(figures)

    def reached(self, figure: float, bar: float | None) -> bool | None:
        """Whether a figure meets a bar; None without one."""
        if bar is None:
            return None
        return figure <= bar if self.lower_is_better else figure >= bar


@dataclass
class Outcome:
    """What one contender's rounds gave."""

    name: str
    figures: list[float] = field(default_factory=list)
    client_cpu_s: list[float] = field(default_factory=list)
    server_cpu_s: list[float] = field(default_factory=list)
    missing: str = ""
    """Why it could not run."""

    @property
    def median(self) -> float:
        """The middle figure of all rounds."""
        return statistics.median(self.figures)


@dataclass
class Result:
    """A row with its outcomes, ours first."""

    row: Row
    outcomes: list[Outcome]

    def ratios(self, peer: Outcome) -> list[float]:
        """Ours divided by ``peer``, round by round."""
        ours = self.outcomes[0].figures
        return [mine / theirs for mine, theirs in zip(ours, peer.figures, strict=True)]

    def best_peer(self) -> Outcome | None:
        """The strongest peer that ran."""
        ran = [outcome for outcome in self.outcomes[1:] if outcome.figures]
        if not ran or not self.outcomes[0].figures:
            return None
        best = self.row.best([outcome.median for outcome in ran])
        return next(outcome for outcome in ran if outcome.median == best)


def run(row: Row, *, rounds: int, quick: bool) -> Result:
    """Prepare every contender, then measure them in turn; one warm-up round is thrown away."""
    contenders = [row.ours, *row.peers]
    outcomes = [Outcome(contender.name) for contender in contenders]
    with ExitStack() as stack:
        ready = [_prepare(c, o, quick, stack) for c, o in zip(contenders, outcomes, strict=True)]
        turns = [turn for turn in ready if turn is not None and _warmed_up(turn)]
        for number in range(rounds):
            for bench, measure, outcome in turns if number % 2 == 0 else reversed(turns):
                _round(bench, measure, outcome)
    return Result(row, outcomes)


Turn: TypeAlias = tuple[Bench, Measure, Outcome]


def _warmed_up(turn: Turn) -> bool:
    """Run a round that does not count; one that fails takes its contender out, visibly."""
    _, measure, outcome = turn
    try:
        measure()
    except Exception as error:  # whatever a peer's client raises belongs into the table
        outcome.missing = f"{type(error).__name__}: {error}"
        return False
    return True


def _prepare(contender: Contender, outcome: Outcome, quick: bool, stack: ExitStack) -> Turn | None:
    bench = Bench(quick)
    stack.callback(bench.close)
    try:
        return bench, contender.prepare(bench), outcome
    except (Missing, ImportError) as error:
        outcome.missing = str(error)
        return None


def _round(bench: Bench, measure: Measure, outcome: Outcome) -> None:
    client, server = _own_cpu_s(), sum(s.cpu_s() for s in bench.servers)
    outcome.figures.append(measure())
    outcome.client_cpu_s.append(_own_cpu_s() - client)
    outcome.server_cpu_s.append(sum(s.cpu_s() for s in bench.servers) - server)


def _own_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def rate(count: int, work: Callable[[], object]) -> float:
    """Things per second, when ``work`` does ``count`` of them."""
    start = time.perf_counter()
    work()
    return count / (time.perf_counter() - start)


async def rate_async(count: int, work: Awaitable[object]) -> float:
    """`rate` for something awaited."""
    start = time.perf_counter()
    await work
    return count / (time.perf_counter() - start)


def latencies_us(count: int, work: Callable[[], object]) -> list[float]:
    """How long each of ``count`` calls took, in microseconds, sorted."""
    clock = time.perf_counter_ns
    marks = [clock()]
    for _ in range(count):
        work()
        marks.append(clock())
    return sorted((after - before) / 1e3 for before, after in pairwise(marks))


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which ``share`` (0..1) of the sorted values lie."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
