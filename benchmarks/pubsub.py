"""Pub/Sub: fan-out over raw sockets, and one to one with Python clients (MEASURE)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from benchmarks import pubsub_clients as clients
from benchmarks import pubsub_isolation as isolation
from benchmarks.harness import Bench, Contender, Measure, Row
from benchmarks.peers import Server
from benchmarks.pubsub_raw import DIALECTS, FanOut

_SERVERS: dict[str, Callable[[Bench], Server]] = {
    "nexo": Bench.nexo,
    "redis": Bench.redis,
    "nats": Bench.nats,
    "mosquitto": Bench.mosquitto,
}
_CLIENTS = {
    "nexo": clients.nexo,
    "redis": clients.redis,
    "nats": clients.nats,
    "mosquitto": clients.mosquitto,
}
_DELIVERIES = 400_000
_BURST = 100
_AHEAD = 4


def rows() -> list[Row]:
    """The rows of MEASURE that concern pub/sub."""
    fan_outs = [
        _fan_out(subscribers, bar) for subscribers, bar in ((1, 0.5), (100, 2), (1000, 1.2))
    ]
    return [*fan_outs, _one_at_a_time(), _python_clients(), _isolation()]


def _row(name: str, unit: str, bar: float, prepare: Callable[[str, Bench], Measure]) -> Row:
    ours, *peers = (Contender(server, partial(prepare, server)) for server in _SERVERS)
    return Row(name, unit, ours, peers, bar=bar, durability="none")


def _fan_out(subscribers: int, bar: float) -> Row:
    def prepare(name: str, bench: Bench) -> Measure:
        fan = bench.enter(FanOut(DIALECTS[name], _SERVERS[name](bench).port, subscribers))
        bursts = max(1, bench.scaled(_DELIVERIES) // (_BURST * subscribers))
        return lambda: fan.deliver(bursts, _BURST, _AHEAD)

    name = f"fan-out 1 → {subscribers:,}, raw sockets, bursts of {_BURST}"
    return _row(name, "deliveries/s", bar, prepare)


def _one_at_a_time() -> Row:
    def prepare(name: str, bench: Bench) -> Measure:
        fan = bench.enter(FanOut(DIALECTS[name], _SERVERS[name](bench).port, 100))
        return lambda: fan.deliver(bench.scaled(1_000), 1, 1)

    return _row("fan-out 1 → 100, raw sockets, one at a time", "deliveries/s", 0.9, prepare)


def _python_clients() -> Row:
    def prepare(name: str, bench: Bench) -> Measure:
        return clients.prepare(bench, _CLIENTS[name], _SERVERS[name](bench).url)

    return _row("1 → 1, Python clients", "msg/s", 3, prepare)


def _isolation() -> Row:
    return Row(
        "p99 of a publish while the queue is at full load",
        "µs",
        Contender("nexo", isolation.apart),
        [Contender("all brokers in one loop", isolation.in_one_loop)],
        bar=0.25,
        lower_is_better=True,
        durability="queue: file_sync",
        slow=True,
    )
