"""A small HTTP client for the admin API."""

from __future__ import annotations

import contextlib
import json
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import Any

from tests.timing import wait_until

TIMEOUT_S = 30.0
ACTION = {"content-type": "application/json", "x-nexo": "1"}


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Api:
    """Requests to one server; a refusal is a reply like any other."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.cookie = ""

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> Reply:
        given = dict(headers or {})
        if self.cookie:
            given["cookie"] = self.cookie
        request = urllib.request.Request(self.url + path, body, given, method=method)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
                return Reply(reply.status, _lower(reply.headers), reply.read())
        except urllib.error.HTTPError as refusal:
            with refusal:
                return Reply(refusal.code, _lower(refusal.headers), refusal.read())

    def get(self, path: str, **parameters: object) -> Any:
        """The JSON reply of a look that must work."""
        reply = self.look(path, **parameters)
        assert reply.status == 200, reply.body
        return reply.json

    def look(self, path: str, **parameters: object) -> Reply:
        query = urllib.parse.urlencode(parameters)
        return self.request("GET", f"/api/v1{path}?{query}")

    def post(self, path: str, **body: object) -> Any:
        """The JSON reply of an action that must work."""
        reply = self.act(path, **body)
        assert reply.status == 200, reply.body
        return reply.json

    def act(self, path: str, **body: object) -> Reply:
        return self.request("POST", f"/api/v1{path}", json.dumps(body).encode(), ACTION)

    def wait_ready(self) -> None:
        """Wait until the dashboard's process has seen every broker."""
        wait_until(self._is_ready, what="the dashboard did not come up", every_s=0.05)

    def _is_ready(self) -> bool:
        with contextlib.suppress(OSError):
            return self.request("GET", "/ready").status == 200
        return False


def value(data: object) -> dict[str, str]:
    """A JSON value to send."""
    return {"type": "json", "text": json.dumps(data)}


def _lower(headers: Any) -> dict[str, str]:
    return {name.lower(): text for name, text in headers.items()}
