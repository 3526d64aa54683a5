"""Starts the servers under test on free ports, each with a temporary folder of its own.

Peers come from the distribution's packages and are set up as their own
documentation advises for speed. One that is not installed raises `Missing`, and its
place in the table says so.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.machine import SEARCH
from nexo.testing import free_port

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_SEARCH = os.pathsep.join([SEARCH, "/usr/lib/rabbitmq/bin"])


class Missing(Exception):
    """A peer is not installed or did not start."""


@dataclass(frozen=True)
class Server:
    """A running server and the processes it consists of."""

    name: str
    port: int
    url: str
    folder: Path
    process: subprocess.Popen[bytes]
    settings: str = ""
    """How it was told to treat data, in its own words."""

    def pids(self) -> list[int]:
        """The process and all its descendants."""
        children: dict[int, list[int]] = {}
        for pid, stat in _all_stats():
            children.setdefault(int(stat[1]), []).append(pid)
        found = [self.process.pid]
        for pid in found:
            found += children.get(pid, [])
        return found

    def cpu_s(self) -> float:
        """CPU seconds used so far by all its processes."""
        stats = [stat for pid in self.pids() if (stat := _stat(pid))]
        return sum(int(stat[11]) + int(stat[12]) for stat in stats) / _TICKS_PER_S

    def memory_bytes(self) -> int:
        """Memory held by all its processes; pages they share count once."""
        return sum(_shared_out_bytes(pid) for pid in self.pids())


def _shared_out_bytes(pid: int) -> int:
    """A process's proportional set size."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8")
    except OSError:
        return 0
    return (
        next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")) * 1024
    )


def _stat(pid: int) -> list[str] | None:
    """The fields of ``/proc/<pid>/stat`` behind the command name; None if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None


def _all_stats() -> Iterator[tuple[int, list[str]]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (stat := _stat(int(entry.name))):
            yield int(entry.name), stat


@contextmanager
def nexo(**settings: object) -> Iterator[Server]:
    """``nexo serve`` on an empty data folder."""
    port = free_port()
    with _folder() as folder:
        command = [sys.executable, "-m", "nexo", "serve", "--port", str(port)]
        options = {"data_dir": folder / "data", "dashboard": False, "log": "warning"} | settings
        environ = _without_settings() | _as_environ(options)
        with _running("nexo", command, port, folder, environ=environ) as server:
            yield server


def _without_settings() -> dict[str, str]:
    from nexo.config import SETTINGS  # noqa: PLC0415 - peers work where nexo is not installed

    known = {each.variable for each in SETTINGS.values()}
    dropped = known | {"PYTHONDONTWRITEBYTECODE"}  # as pip installs it, it is compiled
    return {key: value for key, value in os.environ.items() if key not in dropped}


def _as_environ(options: Mapping[str, object]) -> dict[str, str]:
    from nexo.config import SETTINGS  # noqa: PLC0415

    return {SETTINGS[key].variable: str(value) for key, value in options.items()}


@contextmanager
def redis(fsync: str) -> Iterator[Server]:
    """``redis-server`` with its append-only file ``off``, or synced ``everysec``/``always``."""
    port = free_port()
    with _folder() as folder:
        command = [
            binary("redis-server"), "--port", str(port), "--bind", "127.0.0.1", "--save", "",
            "--dir", str(folder), "--appendonly", "no" if fsync == "off" else "yes",
        ]  # fmt: skip
        command += [] if fsync == "off" else ["--appendfsync", fsync]
        said = "appendonly no" if fsync == "off" else f"appendonly yes, appendfsync {fsync}"
        with _running("redis", command, port, folder, said) as server:
            yield server


@contextmanager
def nats(sync: str | None) -> Iterator[Server]:
    """``nats-server`` with JetStream."""
    port = free_port()
    with _folder() as folder:
        interval = f"sync_interval: {sync}" if sync else ""
        config = f'listen: "127.0.0.1:{port}"\njetstream {{ store_dir: "{folder}"\n{interval} }}\n'
        command = [binary("nats-server"), "-c", str(_write(folder / "nats.conf", config))]
        said = f"file store, sync_interval {sync or '2m (its default)'}"
        with _running("nats", command, port, folder, said) as server:
            yield server


@contextmanager
def mosquitto() -> Iterator[Server]:
    """``mosquitto`` without limits on what it queues, so that it drops nothing."""
    port = free_port()
    with _folder() as folder:
        config = (
            f"listener {port} 127.0.0.1\nallow_anonymous true\nset_tcp_nodelay true\n"
            "max_queued_messages 0\nmax_inflight_messages 0\npersistence false\nlog_type none\n"
        )
        config += "user root\n" if os.geteuid() == 0 else ""
        command = [binary("mosquitto"), "-c", str(_write(folder / "mosquitto.conf", config))]
        with _running("mosquitto", command, port, folder, "persistence false") as server:
            yield server


RABBITMQ = ("/usr/lib/rabbitmq/bin/rabbitmq-server", "rabbitmq-server")


def rabbitmq_environ(folder: Path, port: int) -> dict[str, str]:
    """What makes RabbitMQ a node of its own, with a port mapper of its own."""
    dist_port, epmd_port = free_port(), free_port()
    plugins = _write(folder / "enabled_plugins", "[].")
    own = {
        "HOME": folder, "RABBITMQ_NODENAME": f"bench{port}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1", "RABBITMQ_NODE_PORT": port,
        "RABBITMQ_DIST_PORT": dist_port, "ERL_EPMD_PORT": epmd_port,
        "RABBITMQ_MNESIA_BASE": folder, "RABBITMQ_LOG_BASE": folder,
        "RABBITMQ_ENABLED_PLUGINS_FILE": plugins, "RABBITMQ_PID_FILE": folder / "pid",
        "RABBITMQ_CONFIG_FILE": folder / "none", "RABBITMQ_CONF_ENV_FILE": folder / "none",
    }  # fmt: skip
    return dict(os.environ) | {key: str(value) for key, value in own.items()}


@contextmanager
def rabbitmq() -> Iterator[Server]:
    """``rabbitmq-server`` as a node of its own, with a port mapper of its own."""
    port = free_port()
    program = binary(*RABBITMQ)
    with _folder() as folder:
        environ = rabbitmq_environ(folder, port)
        try:
            said = "classic durable queues, persistent messages, confirms"
            with _running("rabbitmq", [program], port, folder, said, environ, 90) as server:
                yield server
        finally:
            if epmd := shutil.which("epmd"):
                subprocess.run([epmd, "-kill"], env=environ, capture_output=True, check=False)


@contextmanager
def kafka(partitions: int, *, sync: bool) -> Iterator[Server]:
    """Apache Kafka, broker and controller in one process."""
    from benchmarks import kafka_broker  # noqa: PLC0415 - it uses this module

    port = free_port()
    with _folder() as folder:
        command = kafka_broker.command(folder, port, partitions, sync=sync)
        said = f"KRaft, 1 GB heap, {'flush.messages=1' if sync else 'its own flush'}"
        with _running("kafka", command, port, folder, said, wait_s=90) as server:
            yield server


@contextmanager
def _running(
    name: str,
    command: Sequence[str],
    port: int,
    folder: Path,
    settings: str = "",
    environ: Mapping[str, str] | None = None,
    wait_s: float = 60,
) -> Iterator[Server]:
    """A server process from its first answer until it is stopped, with all its children."""
    with (folder / "output.log").open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, cwd=folder, env=environ, start_new_session=True
        )
    server = Server(name, port, _URLS[name].format(port), folder, process, settings)
    try:
        if not _wait(lambda: answers(name, port) or process.poll() is not None, wait_s):
            raise Missing(f"{name} did not answer within {wait_s:.0f} s")
        if process.poll() is not None:
            raise Missing(f"{name} stopped at once: {_last_line(folder / 'output.log')}")
        yield server
    finally:
        _stop(process)


_URLS = {
    "nexo": "nexo://127.0.0.1:{}",
    "redis": "redis://127.0.0.1:{}",
    "nats": "nats://127.0.0.1:{}",
    "mosquitto": "mqtt://127.0.0.1:{}",
    "kafka": "127.0.0.1:{}",
    "rabbitmq": "amqp://guest:guest@127.0.0.1:{}/",
}
_FIRST_WORDS = {
    "redis": b"PING\r\n",
    "nexo": bytes([1, 0]) + bytes(8),
    "mosquitto": b"\x10\x10\x00\x04MQTT\x04\x02\x00\x3c\x00\x04ping",
    "rabbitmq": b"AMQP\x00\x00\x09\x01",
    "nats": b"",
    "kafka": b"\0\0\0\x0a\0\x12\0\0\0\0\0\1\xff\xff",
}


def answers(name: str, port: int) -> bool:
    """Whether a server says anything to its protocol's first words."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(_FIRST_WORDS[name])
            return bool(connection.recv(1))
    except OSError:
        return False


def _wait(done: Callable[[], bool], limit_s: float) -> bool:
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if done():
            return True
        time.sleep(0.01)
    return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    for number, patience_s in ((signal.SIGTERM, 10), (signal.SIGKILL, 5)):
        try:
            os.killpg(process.pid, number)
            process.wait(patience_s)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


def binary(*names: str) -> str:
    """Where a program is; `Missing` if it is not installed."""
    for name in names:
        if path := shutil.which(name, path=_SEARCH):
            return path
    raise Missing(f"{Path(names[-1]).name} is not installed")


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="nexo-bench-", ignore_cleanup_errors=True) as name:
        yield Path(name)


def _write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def _last_line(path: Path) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line for line in reversed(lines) if line.strip()), "no output")
