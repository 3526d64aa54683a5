"""What the machine is and what it can do at best, measured in the run that shows it.

The limits are those of plain sockets and files, with nothing of a broker on top: no server
can be faster. Run as a program, it is the other end of the socket measurements:
``python -m benchmarks.machine echo|sink PORT``.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

_HERE = str(Path(sys.executable).parent)  # servers that pip installs go before the system's
SEARCH = os.pathsep.join([_HERE, os.environ.get("PATH", ""), "/usr/sbin"])
_SERVERS = {
    "redis-server": ("redis-server", "--version"),
    "nats-server": ("nats-server", "--version"),
    "mosquitto": ("mosquitto", "-h"),
    "rabbitmq-server": ("dpkg-query", "--show", "--showformat=${Version}", "rabbitmq-server"),
}
_CLIENTS = ("redis", "hiredis", "nats-py", "aio-pika", "aiomqtt", "paho-mqtt", "uvloop", "pyspark")
_CHUNK = 1 << 20
_REPEATS = 5


def describe() -> dict[str, Any]:
    """The machine and the software under test."""
    return {
        "cpu": cpu(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "system": f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}",
        "python": platform.python_version(),
        "servers": {name: _server_version(command) for name, command in _SERVERS.items()},
        "clients": {name: version for name in _CLIENTS if (version := _client_version(name))},
    }


def cpu() -> str:
    """The processor's name."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())


def _server_version(command: tuple[str, ...]) -> str:
    path = shutil.which(command[0], path=SEARCH)
    if path is None:
        return "not installed"
    said = subprocess.run([path, *command[1:]], capture_output=True, text=True, check=False).stdout
    found = re.search(r"\d+\.\d+(\.\d+)?", said)
    return found[0] if found else "not installed"


def _client_version(name: str) -> str:
    if sys.modules.get(name, ...) is None:  # shut out of this run
        return ""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


# -- limits ------------------------------------------------------------------------


def limits(quick: bool = False) -> dict[str, float]:
    """The best of several tries each: what disturbs a try is not the machine's limit."""
    size = _CHUNK * (32 if quick else 256)
    return {
        "syscall_us": min(_syscall_us() for _ in range(_REPEATS)),
        "round_trip_us": _round_trip_us(2_000 if quick else 10_000),
        "loopback_bytes_per_s": max(_loopback_bytes_per_s(size) for _ in range(_REPEATS)),
        "disk_bytes_per_s": max(_disk_bytes_per_s(size) for _ in range(_REPEATS)),
        "fsync_us": _fsync_us(50 if quick else 300),
    }


def _syscall_us(count: int = 20_000) -> float:
    """One send or receive of one byte, both ends in one process, so that nobody is woken."""
    one, other = socket.socketpair()
    with one, other:
        start = time.perf_counter()
        for _ in range(count):
            one.send(b"x")
            other.recv(1)
        return (time.perf_counter() - start) / (2 * count) * 1e6


def _round_trip_us(count: int) -> float:
    """The median of one hundred bytes to another process and back."""
    with _other_end("echo") as sock:
        message = b"x" * 100
        times = []
        for _ in range(count):
            start = time.perf_counter()
            sock.sendall(message)
            sock.recv(4096)
            times.append(time.perf_counter() - start)
        return statistics.median(times) * 1e6


def _loopback_bytes_per_s(size: int) -> float:
    """Bytes to another process that reads and drops them."""
    chunk = bytes(_CHUNK)
    with _other_end("sink") as sock:
        start = time.perf_counter()
        for _ in range(size // _CHUNK):
            sock.sendall(chunk)
        sock.shutdown(socket.SHUT_WR)
        sock.recv(1)  # it closes once it has read everything
        return size / (time.perf_counter() - start)


def _disk_bytes_per_s(size: int) -> float:
    """Large writes to a new file, then one sync."""
    chunk = os.urandom(_CHUNK)
    with _file() as number:
        start = time.perf_counter()
        for _ in range(size // _CHUNK):
            os.write(number, chunk)
        os.fdatasync(number)
        return size / (time.perf_counter() - start)


def _fsync_us(count: int) -> float:
    """The median of one small append and its sync."""
    times = []
    with _file() as number:
        for _ in range(count):
            start = time.perf_counter()
            os.write(number, b"x" * 100)
            os.fdatasync(number)
            times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


@contextmanager
def _file() -> Iterator[int]:
    with tempfile.TemporaryFile(prefix="nexo-bench-") as file:
        yield file.fileno()


@contextmanager
def _other_end(role: str) -> Iterator[socket.socket]:
    """A connection to another process that does ``role``."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        command = [sys.executable, "-m", __name__, role, str(port)]
        with subprocess.Popen(command) as process:
            try:
                listener.settimeout(30)
                sock, _ = listener.accept()
                with sock:
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    yield sock
            finally:
                process.kill()


def _echo(sock: socket.socket) -> None:
    while data := sock.recv(4096):
        sock.sendall(data)


def _sink(sock: socket.socket) -> None:
    buffer = bytearray(_CHUNK)
    while sock.recv_into(buffer):
        pass


_ROLES: dict[str, Callable[[socket.socket], None]] = {"echo": _echo, "sink": _sink}

if __name__ == "__main__":
    with socket.create_connection(("127.0.0.1", int(sys.argv[2]))) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _ROLES[sys.argv[1]](connection)
