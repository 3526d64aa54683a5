"""What is replaced so that the source runs on the world unchanged; import this first.

Nothing of this is for pytest's main process: it replaces the clock of the whole interpreter.

- clocks (`time`): a process sees its machine's time, and others the world's
- `time.sleep`: a job that sleeps gives control back
- `os.urandom`, `random` (ids, nonces, jitter): drawn from the seed
- threads (`ThreadPoolExecutor`, `Lock`, `wait`) in our modules: greenlets, see `jobs`
- listening sockets: the embedded server asks the network of the world
"""

from __future__ import annotations

import concurrent.futures
import os
import random
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from tests.simulation import jobs
from tests.simulation.jobs import world_now
from tests.simulation.world import EPOCH_NS, S

if TYPE_CHECKING:
    from tests.simulation.network import Network

_REAL = {name: getattr(time, name) for name in ("time_ns", "monotonic_ns", "sleep")}
_real_urandom = os.urandom


def _monotonic_ns() -> int:
    return world_now[0].now_ns + 1_000 * S if world_now else _REAL["monotonic_ns"]()


def _time_ns() -> int:
    if not world_now:
        return int(_REAL["time_ns"]())
    world = world_now[0]
    skew_ns = world.current.machine.skew_ns if world.current is not None else 0
    return EPOCH_NS + world.now_ns + skew_ns


def _clock_gettime_ns(clock: int) -> int:
    return _time_ns() if clock == time.CLOCK_REALTIME else _monotonic_ns()


def _sleep(seconds: float) -> None:
    if world_now:
        world_now[0].block(int(seconds * S))
    else:
        _REAL["sleep"](seconds)


def _urandom(size: int) -> bytes:
    return world_now[0].chance.randbytes(size) if world_now else _real_urandom(size)


def replace_clocks() -> None:
    """Replace clocks and randomness, before anything takes them by name."""
    replaced: dict[str, Any] = {
        "time_ns": _time_ns,
        "time": lambda: _time_ns() / S,
        "monotonic_ns": _monotonic_ns,
        "monotonic": lambda: _monotonic_ns() / S,
        "perf_counter_ns": _monotonic_ns,
        "perf_counter": lambda: _monotonic_ns() / S,
        "process_time": lambda: _monotonic_ns() / S,
        "clock_gettime_ns": _clock_gettime_ns,
        "clock_gettime": lambda clock: _clock_gettime_ns(clock) / S,
        "sleep": _sleep,
    }
    for name, function in replaced.items():
        setattr(time, name, function)
    os.urandom = _urandom
    setattr(random, "_urandom", _urandom)  # noqa: B010


_THREADS = {
    concurrent.futures.ThreadPoolExecutor: jobs.SimExecutor,
    concurrent.futures.wait: jobs.wait,
    threading.Lock: jobs.SimLock,
}
_OURS = ("nexo", "aiokafka")


def replace_threads() -> None:
    """Replace what our modules took of `threading` by name, once they are all imported."""
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] not in _OURS:
            continue
        for key, value in list(vars(module).items()):
            try:
                replacement = _THREADS.get(value)
            except TypeError:  # not hashable
                continue
            if replacement is not None:
                setattr(module, key, replacement)


def replace_sockets(network: Network) -> None:
    """Have servers listen in the world."""
    from nexo.server import embedded  # noqa: PLC0415 - the clocks are replaced before
    from nexo.server.entrance import gate  # noqa: PLC0415
    from tests.simulation.network import SimListener  # noqa: PLC0415

    def listening_socket(host: str, port: int) -> SimListener:
        process = network.world.current
        assert process is not None
        return SimListener(network, process, (process.machine.name, port))

    for module in (embedded, gate):
        setattr(module, "listening_socket", listening_socket)  # noqa: B010


replace_clocks()
