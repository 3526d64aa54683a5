"""S3's API on loopback, from `moto`, that can be told to misbehave.

Puts are done one at a time, because moto looks for an object and puts it in two steps.
"""

from __future__ import annotations

import itertools
import socket
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import pytest

pytest.importorskip("moto.server", reason="pip install 'moto[s3]' flask-cors")

from moto.moto_server.werkzeug_app import (
    DomainDispatcherApplication,
    MotoRequestHandler,
    create_backend_app,
)
from werkzeug.serving import BaseWSGIServer, make_server

Fault = Literal["refused", "hung", "503", "409", "412", "reply lost"]
_STATUS = {"refused": "403 Forbidden", "503": "503 Slow Down", "409": "409 Conflict",
           "412": "412 Precondition Failed", "hung": "500 Internal Server Error"}  # fmt: skip


HANG_S = 1.0
"""How long a put hangs that goes wrong alone."""
_KINDS = {"log", "lease", "base", "file", "reset", "server", "standby"}


class S3Server:
    """Buckets in memory. ``fault`` is what happens to every put for now."""

    def __init__(self) -> None:
        self.fault: Fault | None = None
        self.faults = 0
        """Puts that went wrong."""
        self._app: Any = DomainDispatcherApplication(create_backend_app)
        self.cut = False
        """Whether the first of two ways to the store is cut."""
        self.struck: Counter[tuple[str, Fault]] = Counter()
        """What `striking` did, by the kind of object, or the log's broker."""
        self._strikes: Iterator[Fault] | None = None
        self._met: set[str] = set()
        self._one_put = threading.Lock()
        self._released = threading.Event()
        self._released.set()
        self._doors = [self._door(), self._door()]

    def _door(self) -> BaseWSGIServer:
        door = make_server("127.0.0.1", 0, self._serve, threaded=True, request_handler=_Quiet)
        threading.Thread(target=door.serve_forever, daemon=True).start()
        return door

    def url(self, door: int = 0) -> str:
        return f"http://127.0.0.1:{self._doors[door].port}"

    def environment(self, door: int = 0) -> dict[str, str]:
        """What clients of it need."""
        keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
        return {"AWS_ENDPOINT_URL": self.url(door), "AWS_REGION": "us-east-1", **keys}

    def make_bucket(self, name: str) -> None:
        asked = urllib.request.Request(f"{self.url()}/{name}", method="PUT")
        urllib.request.urlopen(asked).close()

    def bucket(self) -> str:
        """Make a bucket; returns its name."""
        name = f"bucket-{uuid4().hex[:8]}"
        self.make_bucket(name)
        return name

    def configure_lake(self, patch: pytest.MonkeyPatch, catalog: str, file: Path) -> None:
        """Have PyIceberg know a catalog: a SQLite ``file``, and a new bucket for its files."""
        from pyiceberg.utils.config import Config  # noqa: PLC0415 - others test without it

        said = {
            "TYPE": "sql",
            "URI": f"sqlite:///{file}",
            "WAREHOUSE": f"s3://{self.bucket()}/warehouse",
            "S3__ENDPOINT": self.url(),
            "S3__REGION": "us-east-1",
            "S3__ACCESS_KEY_ID": "test",
            "S3__SECRET_ACCESS_KEY": "test",
        }
        for name, value in said.items():
            patch.setenv(f"PYICEBERG_CATALOG__{catalog.upper()}__{name}", value)
        patch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())  # as it was when first imported

    @contextmanager
    def failing(self, fault: Fault) -> Iterator[None]:
        """Every put goes wrong in this way meanwhile."""
        self.fault = fault
        self._released.clear()
        try:
            yield
        finally:
            self.fault = None
            self._released.set()

    @contextmanager
    def striking(self, faults: Sequence[Fault]) -> Iterator[None]:
        """The first put of each object goes wrong meanwhile, in these ways in turn."""
        self._strikes = itertools.cycle(faults)
        try:
            yield
        finally:
            self._strikes = None

    def _strike(self, path: str) -> Fault | None:
        with self._one_put:
            if self._strikes is None or path in self._met:
                return None
            self._met.add(path)
            fault = next(self._strikes)
            self.struck[_kind(path), fault] += 1
        if fault == "hung":
            time.sleep(HANG_S)
        return fault

    def _serve(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        if self.cut and int(environ["SERVER_PORT"]) == self._doors[0].port:
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            return []
        if environ["REQUEST_METHOD"] != "PUT":
            return list(self._app(environ, start))
        fault = self.fault or self._strike(environ["PATH_INFO"])
        if fault is None:
            return self._put(environ, start)
        self.faults += 1
        if fault == "hung":
            self._released.wait(60)
        if fault == "reply lost":
            self._put(environ, start)
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            return []
        start(_STATUS[fault], [("content-type", "application/xml")])
        return [b"<Error><Code>Injected</Code></Error>"]

    def _put(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        with self._one_put:
            return list(self._app(environ, start))

    def close(self) -> None:
        self._released.set()
        for door in self._doors:
            door.shutdown()


def _kind(path: str) -> str:
    """The kind of an object; of a log, its broker."""
    parts = path.split("/")
    kind = next((part for part in parts if part in _KINDS), "other")
    return parts[parts.index(kind) - 1] if kind == "log" else kind


class _Quiet(MotoRequestHandler):
    def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002 - as werkzeug calls it
        pass
