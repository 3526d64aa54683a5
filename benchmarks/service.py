"""The service as a whole: how soon it answers, what it holds when idle."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager

from benchmarks import peers
from benchmarks.harness import Bench, Contender, Measure, Row
from benchmarks.peers import Server


def rows() -> list[Row]:
    return [
        Row(
            "start to first reply, empty data folder", "s",
            ours=Contender("nexo", lambda bench: lambda: _start_s(peers.nexo())),
            peers=[Contender("redis-server", lambda bench: lambda: _start_s(peers.redis("off")))],
            limit=1.0, lower_is_better=True,
        ),
        Row(
            "memory when idle", "MB",
            ours=Contender("nexo", _idle_nexo),
            peers=[Contender("redis-server", _idle_redis), Contender("rabbitmq", _idle_rabbitmq)],
            limit=250.0, lower_is_better=True, slow=True,
        ),
    ]  # fmt: skip


def _start_s(context: AbstractContextManager[Server]) -> float:
    start = time.perf_counter()
    with context:
        return time.perf_counter() - start


def _idle_nexo(bench: Bench) -> Measure:
    return _memory_mb(bench.nexo())


def _idle_redis(bench: Bench) -> Measure:
    return _memory_mb(bench.redis())


def _idle_rabbitmq(bench: Bench) -> Measure:
    return _memory_mb(bench.rabbitmq())


def _memory_mb(server: Server) -> Measure:
    return lambda: server.memory_bytes() / 1e6
