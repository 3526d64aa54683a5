"""Servers for tests: embedded in a thread, or the real processes of ``nexo serve``.

``with nexo.testing.server() as url`` is ready in a fraction of a second and leaves nothing
behind. As a pytest plugin this module also gives the fixtures ``nexo_url``, a fresh
embedded server per test, and ``nexo_server``, the same with its handle.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from nexo.extras import require

if TYPE_CHECKING:
    from nexo.config.keywords import ServerSettings
    from nexo.server.embedded import EmbeddedServer

# ruff: noqa: PLC0415 - pytest loads this module in every run, mostly without starting a server

T = TypeVar("T")

_READY_S = 60.0
_STOP_S = 10.0


class Server:
    """All four brokers in one event loop, in a thread of its own.

    The data folder is a temporary one unless ``data_dir`` is given; then it survives `stop` and
    `crash`, and `start` recovers it.
    """

    def __init__(
        self, data_dir: Path | str | None = None, **settings: Unpack[ServerSettings]
    ) -> None:
        self._own_folder = data_dir is None
        self.data_dir = Path(data_dir or tempfile.mkdtemp(prefix="nexo-"))
        self._given = settings
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._server: EmbeddedServer | None = None
        self.port = settings.pop("port", 0)

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"nexo://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Recover and listen; after a stop, again on the same port."""
        require("server")
        from nexo.server.loop import loop_factory

        self._loop = loop_factory()()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="nexo-server", daemon=True
        )
        self._thread.start()
        try:
            self._do(self._open())
        except BaseException:
            self._end_loop()
            raise

    async def _open(self) -> None:
        from nexo.config import load
        from nexo.server.embedded import EmbeddedServer

        given = {"data_dir": self.data_dir, "port": self.port, **self._given}
        self._server = EmbeddedServer(load(flags=given))
        await self._server.open()
        self.port = self._server.port

    def stop(self) -> None:
        """Stop gracefully."""
        if self._server is not None:
            self._do(self._server.close())
            self._end_loop()

    def crash(self) -> None:
        """Stop as a kill would: nothing more is flushed, written or said."""
        if self._server is not None:
            self._do(self._server.crash())
            self._end_loop()

    def close(self) -> None:
        """Stop and remove the data folder if it is a temporary one."""
        self.stop()
        if self._own_folder:
            shutil.rmtree(self.data_dir, ignore_errors=True)

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_READY_S)

    def _end_loop(self) -> None:
        loop, thread = self._loop, self._thread
        self._loop = self._thread = self._server = None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()


@contextlib.contextmanager
def server(data_dir: Path | str | None = None, **settings: Unpack[ServerSettings]) -> Iterator[str]:
    """An embedded server; yields its URL (SPEC K2)."""
    with contextlib.closing(Server(data_dir, **settings)) as running:
        running.start()
        yield running.url


@contextlib.asynccontextmanager
async def server_async(
    data_dir: Path | str | None = None, **settings: Unpack[ServerSettings]
) -> AsyncIterator[str]:
    """`server` for async tests; it still runs in its own thread, so that neither can stall."""
    running = Server(data_dir, **settings)
    try:
        await asyncio.to_thread(running.start)
        yield running.url
    finally:
        await asyncio.to_thread(running.close)


class Process:
    """``nexo serve`` with its processes, to be stopped, killed and started again.

    Ports are free ones unless given, and stay the same over restarts. If clients must show a
    certificate, ``client_certificate`` is the part of the URL that names one. ``pipeline`` takes
    streams with tiering into the lake too.
    """

    def __init__(
        self,
        data_dir: Path | str | None = None,
        *,
        client_certificate: str = "",
        pipeline: bool = False,
        **settings: Unpack[ServerSettings],
    ) -> None:
        require("server")
        self._own_folder = data_dir is None
        self.data_dir = Path(data_dir or tempfile.mkdtemp(prefix="nexo-"))
        self.port = settings.pop("port", 0) or free_port()
        self.http_port = settings.pop("http_port", 0) or free_port()
        self.health_port = settings.pop("health_port", 0) or free_port()
        self.log_file = self.data_dir / "server.log"
        self._certificate = client_certificate
        self._pipeline = pipeline
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where clients connect."""
        scheme = "nexos" if "tls_cert" in self._settings else "nexo"
        return f"{scheme}://127.0.0.1:{self.port}"

    @property
    def http_url(self) -> str:
        """Where the dashboard and the HTTP API are."""
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def health_url(self) -> str:
        """Where the probes are."""
        return f"http://127.0.0.1:{self.health_port}"

    @property
    def pid(self) -> int:
        """The supervisor's process id."""
        assert self._process is not None, "the server was not started"
        return self._process.pid

    def start(self) -> None:
        """Start it and wait until every broker answers."""
        self.data_dir.mkdir(parents=True, exist_ok=True)
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                self._command(), stdout=log, stderr=log, start_new_session=True
            )
        try:
            self.wait_ready()
        except BaseException:
            self.kill()
            raise

    def _command(self) -> list[str]:
        flags = {
            "port": self.port,
            "http_port": self.http_port,
            "health_port": self.health_port,
            "data_dir": self.data_dir,
        }
        command = [sys.executable, "-c", "from nexo.cli import main; main()", "serve"]
        command += ["--pipeline"] if self._pipeline else []
        for key, value in (flags | self._settings).items():
            name = key.replace("_", "-")
            if isinstance(value, bool):
                command.append(f"--{name}" if value else f"--no-{name}")
            else:
                command.append(f"--{name}={value}")
        return command

    def wait_ready(self) -> None:
        """Wait until every broker answers."""
        from nexo.client._sync.link.link import Link
        from nexo.client.address import parse_url
        from nexo.errors import NexoError, NotLeader, Unauthenticated
        from nexo.model import Broker
        from nexo.protocol.ops import Op

        address = parse_url(f"{self.url}?while_down=fail&timeout=5&verify=false{self._certificate}")
        deadline_s = time.monotonic() + _READY_S
        while not self._has_announced():
            self._check_alive(deadline_s, "it did not say that it is ready")
            time.sleep(0.01)
        for broker in Broker:
            link = Link(address, broker)
            while True:
                try:
                    link.call(Op.ECHO, b"")
                    break
                except (Unauthenticated, NotLeader):
                    break  # it is up, and wants to know who asks, or is a standby
                except NexoError as error:
                    self._check_alive(deadline_s, error)
                    time.sleep(0.01)
            link.close()

    def _has_announced(self) -> bool:
        """Whether it is this process that serves the port, and not a server that had it before."""
        from nexo.server.processes.folders import FILE

        try:
            facts = json.loads((self.data_dir / FILE).read_bytes())
        except (OSError, ValueError):
            return False  # it is starting, or being written
        return (facts.get("pid"), facts.get("port")) == (self.pid, self.port)

    def _check_alive(self, deadline_s: float, error: Exception | str) -> None:
        ended = self._process is None or self._process.poll() is not None
        if ended or time.monotonic() > deadline_s:
            tail = self.log_file.read_text(errors="replace")[-4000:]
            raise RuntimeError(f"nexo serve did not come up: {error}\n{tail}")

    def terminate(self, timeout: float = _STOP_S) -> int:
        """SIGTERM, wait for up to ``timeout`` seconds, and return the exit status."""
        assert self._process is not None, "the server was not started"
        self._process.terminate()
        try:
            return self._process.wait(timeout)
        finally:
            self.kill()

    def kill(self) -> None:
        """SIGKILL the supervisor and every broker's process at once."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def restart(self) -> None:
        """Start again after `kill` or `terminate`, or stop gracefully first."""
        if self._process is not None:
            self.terminate()
        self.start()

    def close(self) -> None:
        """Kill what runs and remove the data folder if it is a temporary one."""
        self.kill()
        if self._own_folder:
            shutil.rmtree(self.data_dir, ignore_errors=True)


@contextlib.contextmanager
def process(
    data_dir: Path | str | None = None,
    *,
    client_certificate: str = "",
    pipeline: bool = False,
    **settings: Unpack[ServerSettings],
) -> Iterator[Process]:
    """The real multi-process server, for crash tests and benchmarks."""
    made = Process(data_dir, client_certificate=client_certificate, pipeline=pipeline, **settings)
    with contextlib.closing(made) as running:
        running.start()
        yield running


_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST, _USUAL_EPHEMERAL = 10_000, 32_768
_given: set[int] = set()
"""Ports that were given out: none is given twice."""


def free_port(host: str = "127.0.0.1") -> int:
    """A port nobody listens on, below those the system gives to outgoing connections.

    So nobody takes it by chance before the server opens it, or while the server restarts.
    """
    highest = max(_first_ephemeral(), _LOWEST + 1_000)
    while True:
        port = random.randrange(_LOWEST, highest)
        if port not in _given and _is_free(host, port):
            _given.add(port)
            return port


def _first_ephemeral() -> int:
    try:
        return int(_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return _USUAL_EPHEMERAL


def _is_free(host: str, port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


with contextlib.suppress(ImportError):  # the servers above need no pytest
    import pytest

    @pytest.fixture
    def nexo_server(tmp_path: Path) -> Iterator[Server]:
        """A fresh embedded server that the test may stop, crash and start again."""
        running = Server(data_dir=tmp_path / "nexo")
        running.start()
        yield running
        running.close()

    @pytest.fixture
    def nexo_url(nexo_server: Server) -> str:
        """The URL of a fresh embedded server."""
        return nexo_server.url

    @pytest.fixture
    def kafka_bootstrap(nexo_server: Server) -> str:
        """``bootstrap.servers`` for Kafka clients of a fresh embedded server."""
        return f"127.0.0.1:{nexo_server.port}"
