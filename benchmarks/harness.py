"""Rows, rounds and ratios: how a benchmark is run and summed up.

Machines are shared and noisy, so only ratios count: all contenders of a row are
prepared first, then measured in turn, round after round, in alternating order.
"""

from __future__ import annotations

import asyncio
import resource
import signal
import statistics
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    ExitStack,
    contextmanager,
)
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeAlias, TypeVar

import uvloop

from benchmarks import peers
from benchmarks.peers import Missing, Server

T = TypeVar("T")

Measure: TypeAlias = Callable[[], float]
"""Runs one round and returns its figure, in the row's unit."""

STEP_LIMIT_S = 180.0
"""A contender that prepares itself or works on one round for longer has failed."""
ROUNDS = 3
MORE_ROUNDS = 5
ENOUGH_S = 8.0
"""Rows that are quick get ``MORE_ROUNDS`` rounds: until so much time was spent on them."""


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
        # A loop may swallow what a signal raises, so it watches its time itself.
        left_s, _ = signal.setitimer(signal.ITIMER_REAL, 0)
        try:
            return self._runner.run(_in_time(work))
        finally:
            signal.setitimer(signal.ITIMER_REAL, left_s)

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

    def kafka(self, partitions: int, *, sync: bool = False) -> Server:
        """Kafka with KRaft, one node; ``sync`` flushes each batch before its answer."""
        return self._serve(peers.kafka(partitions, sync=sync))

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
    slow: bool = False
    """Takes long even with a tenth of the work: a quick run leaves it out, and says so."""

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
    settings: str = ""
    """How its servers were told to treat data."""
    missing: str = ""
    """What is not installed, if that is why it did not run."""
    failed: str = ""
    """What went wrong, if something did; then no figure counts."""

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


def run(row: Row, *, rounds: int | None = None, quick: bool = False) -> Result:
    """Prepare every contender, then measure them in turn; one warm-up round is thrown away.

    Whatever a contender raises, or hangs on, is noted in its outcome: the others go on.
    """
    contenders = [row.ours, *row.peers]
    outcomes = [Outcome(contender.name) for contender in contenders]
    turns: list[Turn] = []
    with ExitStack() as stack:
        for contender, outcome in zip(contenders, outcomes, strict=True):
            turn = Turn(Bench(quick), outcome)
            stack.callback(turn.close)
            if turn.prepare(contender):
                turns.append(turn)
        _take_turns(turns, rounds)
    return Result(row, outcomes)


def _take_turns(turns: list[Turn], rounds: int | None) -> None:
    start = time.monotonic()
    for number in range(rounds or MORE_ROUNDS):
        if rounds is None and number >= ROUNDS and time.monotonic() - start > ENOUGH_S:
            return
        for turn in turns if number % 2 == 0 else reversed(turns):
            turn.measure()


class Turn:
    """One contender at work; its failures end up in its outcome."""

    def __init__(self, bench: Bench, outcome: Outcome) -> None:
        self._bench = bench
        self._outcome = outcome
        self._measure: Measure = float

    def prepare(self, contender: Contender) -> bool:
        """Start what it needs and run a round that does not count; False if it cannot."""
        try:
            with time_limit(STEP_LIMIT_S):
                self._measure = contender.prepare(self._bench)
            with time_limit(STEP_LIMIT_S):
                self._measure()
        except (Missing, ImportError) as error:
            self._outcome.missing = str(error)
        except Exception as error:  # whatever a client raises belongs into the table
            self._fail(error)
        else:
            self._outcome.settings = "; ".join(
                server.settings for server in self._bench.servers if server.settings
            )
            return True
        return False

    def measure(self) -> None:
        """One round, unless an earlier one failed."""
        outcome, servers = self._outcome, self._bench.servers
        if outcome.failed:
            return
        client, server = _own_cpu_s(), sum(s.cpu_s() for s in servers)
        try:
            with time_limit(STEP_LIMIT_S):
                figure = self._measure()
        except Exception as error:  # see `prepare`
            self._fail(error)
            return
        outcome.figures.append(figure)
        outcome.client_cpu_s.append(_own_cpu_s() - client)
        outcome.server_cpu_s.append(sum(s.cpu_s() for s in servers) - server)

    def _fail(self, error: Exception) -> None:
        self._outcome.failed = f"{type(error).__name__}: {error}"
        self._outcome.figures.clear()

    def close(self) -> None:
        """End it; if that fails, the figures stand nevertheless."""
        try:
            with time_limit(STEP_LIMIT_S):
                self._bench.close()
        except Exception as error:  # see `prepare`
            print(f"  {self._outcome.name} did not end well: {type(error).__name__}: {error}")


async def _in_time(work: Coroutine[Any, Any, T]) -> T:
    async with asyncio.timeout(STEP_LIMIT_S):
        return await work


@contextmanager
def time_limit(limit_s: float) -> Iterator[None]:
    """Raise `TimeoutError` if the block takes longer; time in `Bench.run` is not counted."""

    def too_long(*_: object) -> None:
        raise TimeoutError(f"took more than {limit_s:g} s")

    before = signal.signal(signal.SIGALRM, too_long)
    timer = signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *timer)


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
