"""Celery under failures, side by side: ``python -m benchmarks.celery_chaos [--seconds 120]``.

The same app (prefork, acks late) runs on Redis, RabbitMQ and Nexo while workers are killed,
connections are cut and the broker is restarted with SIGKILL; a part of the tasks has an ETA beyond
the visibility timeout. Every task leaves a line when it begins and one when it is done, so that the
table can say how many were lost, how many were done twice (which at-least-once delivery allows if
the acknowledgement was cut off), and how many ran again although they had been acknowledged.

The broker stands behind a proxy, which cuts connections by closing them. RabbitMQ and Redis are
set up to lose nothing: durable queues, persistent messages and confirms; ``appendfsync always``.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from celery import Celery

import nexo.integrations.celery  # noqa: F401 - as an installed package this is not needed
from benchmarks import peers
from benchmarks.proxy import Proxy
from nexo.testing import free_port

VISIBILITY_S = 5
"""Short for all of them, so that a short run meets it."""
ETA_S = 12
TASK_S = 0.2
PAUSE_S = (6.0, 10.0)
"""Between two faults."""
FAULTS = ("worker", "connections", "broker")
"""In turns."""
CALM_S = 3.0
"""A run with no fault so long before and after it has been acknowledged."""
SILENT_S = 60
_START_S = 60


@dataclass
class Peer:
    """A broker, started and to be started again on its port and folder."""

    name: str
    url: Callable[[int], str]
    port: int
    command: list[str]
    environ: dict[str, str]
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it accepts connections."""
        self.process = subprocess.Popen(
            self.command,
            env=os.environ | self.environ,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        until_s = time.monotonic() + _START_S
        while not peers.answers(self.name, self.port):
            if time.monotonic() > until_s:
                raise peers.Missing(f"{self.name} did not answer within {_START_S} s")
            time.sleep(0.05)

    def kill(self) -> None:
        """As a power cut would, but for the disk."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None


def nexo_peer(folder: Path) -> Peer:
    """Nexo, with its defaults: every push and ack is synced."""
    port = free_port()
    command = [sys.executable, "-m", "nexo", "serve", "--port", str(port), "--no-dashboard"]
    command += ["--data-dir", str(folder), "--health-port", str(free_port())]
    return Peer("nexo", "nexo://127.0.0.1:{}".format, port, command, {})


def redis_peer(folder: Path) -> Peer:
    """Redis with every write synced."""
    port = free_port()
    command = [peers.binary("redis-server"), "--port", str(port), "--dir", str(folder)]
    command += ["--appendonly", "yes", "--appendfsync", "always", "--save", ""]
    return Peer("redis", "redis://127.0.0.1:{}/0".format, port, command, {})


def rabbitmq_peer(folder: Path) -> Peer:
    """RabbitMQ with durable queues."""
    port = free_port()
    command, environ = [peers.binary(*peers.RABBITMQ)], peers.rabbitmq_environ(folder, port)
    url = "amqp://guest:guest@127.0.0.1:{}//"
    return Peer("rabbitmq", url.format, port, command, environ)


PEERS = {"nexo": nexo_peer, "redis": redis_peer, "rabbitmq": rabbitmq_peer}


def make_app(url: str) -> Celery:
    """The app of workers and producer; it keeps no results."""
    app = Celery("benchmarks.celery_chaos", broker=url)
    app.conf.update(
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        task_ignore_result=True,
        worker_prefetch_multiplier=1,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_transport_options={
            "visibility_timeout": VISIBILITY_S, "max_retries": 1_000, "confirm_publish": True,
        },
    )  # fmt: skip
    app.task(mark)
    return app


def mark(folder: str, name: str) -> None:
    """The task: it says when it begins and when it is done, by the machine's one clock."""
    with (Path(folder) / name).open("a", buffering=1) as file:
        file.write(f"begun {os.getpid()} {time.monotonic()}\n")
        time.sleep(TASK_S)
        file.write(f"done {os.getpid()} {time.monotonic()}\n")


if "CHAOS_URL" in os.environ:
    app = make_app(os.environ["CHAOS_URL"])


@contextmanager
def _worker(url: str, log: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """A list that holds the running worker; `_restart_worker` puts another one in."""
    held: list[subprocess.Popen[bytes]] = []
    _restart_worker(held, url, log)
    try:
        yield held
    finally:
        _kill(held)


def _restart_worker(held: list[subprocess.Popen[bytes]], url: str, log: Path) -> None:
    command = [sys.executable, "-m", "celery", "-A", "benchmarks.celery_chaos", "worker", "-c", "2"]
    with log.open("ab") as output:
        held.append(
            subprocess.Popen(
                command,
                env=os.environ | {"CHAOS_URL": url},
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        )


def _kill(held: list[subprocess.Popen[bytes]]) -> None:
    while held:
        process = held.pop()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class Marks:
    """What the tasks have left behind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def runs(self, name: str) -> list[Run]:
        """Every run of one task."""
        found: list[Run] = []
        with suppress(FileNotFoundError):
            for line in (self.folder / name).read_text().splitlines():
                what, pid, at_s = line.split()
                if what == "begun":
                    found.append(Run(int(pid), float(at_s)))
                else:  # two may run at once, by different processes
                    [run for run in found if run.pid == int(pid)][-1].done_s = float(at_s)
        return found

    def done(self, names: list[str]) -> int:
        """How many tasks were done."""
        return sum(any(run.done_s for run in self.runs(name)) for name in names)

    def again(self, names: list[str], faults: list[float]) -> tuple[int, int]:
        """How many tasks were done twice, and how many began again although acknowledged."""
        runs = [self.runs(name) for name in names]
        twice = sum(sum(bool(run.done_s) for run in each) > 1 for each in runs)
        return twice, sum(_begun_again(each, faults) for each in runs)

    def recovered_s(self, names: list[str], faults: list[float]) -> list[float]:
        """After each fault, how long it took until a task began that was also done."""
        began = sorted(run.begun_s for name in names for run in self.runs(name) if run.done_s)
        nexts = (next((at_s for at_s in began if at_s > fault), None) for fault in faults)
        return [at_s - fault if at_s else inf for at_s, fault in zip(nexts, faults, strict=True)]


@dataclass
class Run:
    """One run of a task; ``done_s`` is 0 if it was cut short."""

    pid: int
    begun_s: float
    done_s: float = 0.0


def _begun_again(runs: list[Run], faults: list[float]) -> bool:
    """Whether a task began once more after a run that no fault can have kept from its ack."""
    calm = [
        run.done_s
        for run in runs
        if run.done_s
        and not any(run.begun_s - CALM_S < fault < run.done_s + CALM_S for fault in faults)
    ]
    return any(run.begun_s > done_s for done_s in calm for run in runs)


def run(make: Callable[[Path], Peer], seconds: float, seed: int) -> dict[str, Any]:
    """One broker's row."""
    chance = random.Random(seed)
    with ExitStack() as stack:
        base = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chaos-")))
        for name in ("data", "marks"):
            (base / name).mkdir()
        peer = make(base / "data")
        stack.callback(peer.kill)
        peer.start()
        proxy = stack.enter_context(Proxy(peer.port))
        url = peer.url(proxy.port)
        workers = stack.enter_context(_worker(url, base / "worker.log"))
        sent: list[str] = []
        over = threading.Event()
        producer = threading.Thread(
            target=_produce, args=(make_app(url), base / "marks", sent, over)
        )
        producer.start()
        faults: list[float] = []
        until_s = time.monotonic() + seconds
        for number in itertools.count():
            time.sleep(chance.uniform(*PAUSE_S))
            if time.monotonic() > until_s:
                break
            faults.append(time.monotonic())
            match FAULTS[number % len(FAULTS)]:
                case "worker":
                    _kill(workers)
                    _restart_worker(workers, url, base / "worker.log")
                case "connections":
                    proxy.cut()
                case "broker":
                    peer.kill()
                    peer.start()
        over.set()
        producer.join()
        marks = Marks(base / "marks")
        _settle(marks, sent)
        twice, again = marks.again(sent, faults)
        recovered_s = marks.recovered_s(sent, faults)
        return {
            "broker": peer.name,
            "faults": len(faults),
            "submitted": len(sent),
            "lost": len(sent) - marks.done(sent),
            "done twice": twice,
            "run again though acknowledged": again,
        } | {
            f"back after {what} s": " ".join(
                f"{each:.1f}" for each in recovered_s[n :: len(FAULTS)]
            )
            for n, what in enumerate(FAULTS)
        }


def _produce(app: Celery, folder: Path, sent: list[str], over: threading.Event) -> None:
    """Send until it is over; a task counts once the broker has confirmed it."""
    number = 0
    while not over.is_set():
        number += 1
        name, countdown = f"task{number}", ETA_S if number % 5 == 0 else None
        with suppress(Exception):  # a send that failed was not confirmed
            app.tasks["benchmarks.celery_chaos.mark"].apply_async(
                (str(folder), name), countdown=countdown, retry=True
            )
            sent.append(name)
        over.wait(0.15)


def _settle(marks: Marks, sent: list[str]) -> None:
    """Wait until all is done, or nothing has been for a minute."""
    last, last_s = marks.done(sent), time.monotonic()
    while last < len(sent) and time.monotonic() - last_s < SILENT_S:
        time.sleep(0.5)
        if (now := marks.done(sent)) > last:
            last, last_s = now, time.monotonic()
    time.sleep(VISIBILITY_S * 2)  # what would run again does so by now


def main() -> None:
    """Print a row for each broker."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--only", default=",".join(PEERS))
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    for name in asked.only.split(","):
        try:
            row = run(PEERS[name], asked.seconds, asked.seed)
        except peers.Missing as reason:
            row = {"broker": name, "missing": str(reason)}
        print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)


if __name__ == "__main__":
    main()
