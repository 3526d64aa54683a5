"""What tests ask of servers that replicate."""

from __future__ import annotations

import contextlib
import json
import threading
import time
import urllib.error
import urllib.request
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
    """Pushes jobs to one server alone, and notes when each was acknowledged."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.values: dict[object, tuple[float, float]] = {}
        """Each with the times when it was sent and acknowledged."""
        self._url = url
        self._ended = threading.Event()

    def __enter__(self) -> Writer:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self.join()

    def run(self) -> None:
        turn = 0
        while not self._ended.is_set():
            with (
                contextlib.suppress(NexoError),
                Client(f"{self._url}?while_down=fail&timeout=2") as client,
            ):
                while not self._ended.is_set():
                    turn += 1
                    value, sent_s = f"{self._url} {turn}", time.monotonic()
                    client.queue("jobs").push(value)
                    self.values[value] = sent_s, time.monotonic()
                    self._ended.wait(0.01)
            self._ended.wait(0.02)

    def wait_for(self, more: int) -> None:
        """Wait until so many more were acknowledged."""
        wanted = len(self.values) + more
        wait_until(lambda: len(self.values) >= wanted, 60)


def verdict(old: Writer, new: Writer) -> str:
    """Judge the history: whatever the old leader acknowledged was sent before the new one led."""
    took_over_s = min(acked_s for _, acked_s in new.values.values())
    late = [value for value, (sent_s, _) in old.values.items() if sent_s > took_over_s]
    assert not late, f"two servers acknowledged: {late[:5]}"
    return (
        f"{len(old.values)} acknowledged by the old leader, {len(new.values)} by the new one, "
        "never two at a time"
    )
