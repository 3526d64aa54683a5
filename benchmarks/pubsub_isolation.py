"""Pub/sub latency while the queue works as hard as it can: apart, and in one shared loop.

Run as a program, it is one of the helpers: ``load PORT`` keeps a server's queue busy,
``shared PORT FOLDER`` is a server with all brokers in one event loop.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import uvloop

from benchmarks.harness import Bench, Measure, latencies_us, percentile
from benchmarks.pubsub_raw import DIALECTS, FanOut
from nexo.config import load as load_settings
from nexo.protocol.frames import FrameKind, frame, pack_str
from nexo.protocol.ops import Op
from nexo.server.embedded import EmbeddedServer
from nexo.testing import free_port

_PUBLISHES = 100
_ENOUGH_S = 5.0
"""In one shared loop a publish may take seconds: so long, and the worst of those done counts."""
_WARM_UP_BYTES = 100_000
"""Ten thousand replies: the load is at its full height."""


def apart(bench: Bench) -> Measure:
    """As ``nexo serve`` runs: one process per broker."""
    return _measure(bench, bench.nexo().port)


def in_one_loop(bench: Bench) -> Measure:
    """The same brokers in one event loop."""
    folder = bench.enter(tempfile.TemporaryDirectory())
    port = free_port()
    bench.enter(_helper("shared", port, folder))
    return _measure(bench, port)


def _measure(bench: Bench, port: int) -> Measure:
    fan = bench.enter(FanOut(DIALECTS["nexo"], port, 1))

    def measure() -> float:
        with _helper("load", port):
            return percentile(sorted(_pings_us(fan)), 0.99)

    return measure


def _pings_us(fan: FanOut) -> Iterator[float]:
    end = time.monotonic() + _ENOUGH_S
    for _ in range(_PUBLISHES):
        yield from latencies_us(1, lambda: fan.deliver(1, 1, 1))
        if time.monotonic() > end:
            return


@contextmanager
def _helper(*arguments: object) -> Iterator[None]:
    """One of the helpers, from the moment it says that it is at work."""
    command = [sys.executable, "-m", __name__, *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield
        finally:
            process.kill()


async def load(port: str) -> None:
    """Push jobs without end, in the existing client's frames, which cost the server most."""
    with socket.create_connection(("127.0.0.1", int(port))) as sock:
        create = pack_str("load") + pack_str("{}")
        sock.sendall(frame(FrameKind.REQUEST, Op.Q_DELETE, 1, pack_str("load")))
        sock.sendall(frame(FrameKind.REQUEST, Op.Q_CREATE, 2, create))
        push = frame(FrameKind.REQUEST, Op.Q_PUSH, 3, create + b"\0" + b"x" * 64)
        Thread(target=_discard, args=(sock,), daemon=True).start()
        while True:
            sock.sendall(push * 1_000)


def _discard(sock: socket.socket) -> None:
    answered = 0
    while answered < _WARM_UP_BYTES:
        answered += len(sock.recv(1 << 20))
    print("at work", flush=True)
    while sock.recv(1 << 20):
        pass


async def shared(port: str, folder: str) -> None:
    """Serve until killed."""
    flags = {"port": int(port), "data_dir": folder, "dashboard": False}
    await EmbeddedServer(load_settings(flags=flags)).open()
    print("at work", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    _, role, *arguments = sys.argv
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run((load if role == "load" else shared)(*arguments))
