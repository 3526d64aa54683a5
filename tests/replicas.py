"""What tests ask of servers that replicate."""

from __future__ import annotations

import contextlib
import itertools
import json
import select
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

from nexo import Client
from nexo.errors import NexoError
from nexo.testing import Process
from tests.timing import wait_until


def ready(server: Process) -> dict[str, Any]:
    """What ``/ready`` says; empty if nobody answers."""
    try:
        with urllib.request.urlopen(f"{server.health_url}/ready") as reply:
            body = reply.read()
    except urllib.error.HTTPError as error:
        body = error.read()
    except OSError:
        return {}
    found: dict[str, Any] = json.loads(body)
    return found


def leads(server: Process) -> bool:
    """Whether it leads and serves."""
    return ready(server).get("ready") is True


class Writer(threading.Thread):
    """Writes to all brokers of one server, and notes when each write was acknowledged.

    With ``options`` such as other addresses, its client may follow the leader.
    """

    def __init__(self, url: str, options: str = "") -> None:
        super().__init__(daemon=True)
        self.values: dict[str, tuple[float, float]] = {}
        """Each with the times when it was sent and acknowledged."""
        self._url = url
        self._options = options
        self._ended = threading.Event()

    def __enter__(self) -> Writer:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self.join()

    def run(self) -> None:
        turns = itertools.count()
        while not self._ended.is_set():
            with (
                contextlib.suppress(NexoError),
                Client(f"{self._url}{self._options}?while_down=fail&timeout=2") as client,
            ):
                writes = itertools.cycle(_writes(client).items())
                for turn, (kind, write) in zip(turns, writes, strict=False):
                    value, sent_s = f"{kind} {turn} of {self._url}", time.monotonic()
                    write(value)
                    self.values[value] = sent_s, time.monotonic()
                    if self._ended.wait(0.005):
                        return
            self._ended.wait(0.02)

    def wait_for(self, more: int) -> None:
        """Wait until so many more were acknowledged."""
        wanted = len(self.values) + more
        wait_until(lambda: len(self.values) >= wanted, 60)


def _writes(client: Client) -> dict[str, Callable[[str], object]]:
    """One write to each broker, by what it writes."""
    return {
        "job": client.queue("jobs").push,
        "record": client.stream("records").publish,
        "key": lambda value: client.store.set("key", value),
        "message": lambda value: client.pubsub.publish("topic", value),
    }


LATE_S = 2.0
"""How long after its arrival a busy client may look at an acknowledgement."""


def verdict(old: Writer, new: Writer) -> str:
    """Judge the history: the old leader acknowledged nothing after the new one's first."""
    took_over_s = min(acked_s for _, acked_s in new.values.values())
    last_s = max(acked_s for _, acked_s in old.values.values())
    late = [
        value
        for value, (sent_s, acked_s) in old.values.items()
        if sent_s > took_over_s or acked_s > took_over_s + LATE_S
    ]
    assert not late, f"two servers acknowledged: {late[:5]}"
    return (
        f"{len(old.values)} acknowledged by the old leader, {len(new.values)} by the new one, "
        f"nobody for {took_over_s - last_s:.1f} s between them, never two at a time"
    )


class Door:
    """A way to a server that can be cut: connections end, and new ones are not answered."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._ends: list[socket.socket] = []
        self._open = threading.Event()
        self._open.set()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """End all connections, and answer none."""
        self._open.clear()
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def heal(self) -> None:
        """Let connections through again."""
        self._open.set()

    def close(self) -> None:
        self._listener.close()
        self.cut()
        self.heal()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._relay, args=(client,), daemon=True).start()

    def _relay(self, client: socket.socket) -> None:
        self._open.wait()
        with (
            contextlib.suppress(OSError),
            client,
            socket.create_connection(("127.0.0.1", self._target)) as server,
        ):
            self._ends += [client, server]
            other = {client: server, server: client}
            while self._open.is_set():
                for end in select.select([client, server], [], [])[0]:
                    if not (data := end.recv(65_536)):
                        return
                    other[end].sendall(data)
