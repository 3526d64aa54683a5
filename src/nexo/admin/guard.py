"""What stands before every request: headers that protect browsers, no forged actions, logins.

A page of another site can make a browser send a plain request here, but neither a custom
header nor JSON without asking first, which is never allowed. So an action needs ``X-Nexo``.
The Host header must name this server, so that a foreign name cannot be pointed at it.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Collection, Mapping
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nexo.admin.metrics import Metrics
from nexo.admin.replies import problem

SAFE = ("GET", "HEAD", "OPTIONS")
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class Guard:
    """ASGI middleware around the whole application; it also measures."""

    def __init__(
        self, app: ASGIApp, metrics: Metrics, host: str, methods: Mapping[str, Collection[str]]
    ) -> None:
        """``methods`` says by path what it answers to; other paths are files."""
        self._app = app
        self._methods = methods
        self._metrics = metrics
        self._host = host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began_s, method = time.perf_counter(), scope["method"]

        async def protected(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                took_s = time.perf_counter() - began_s
                label = method if method in (*SAFE, "POST") else "other"
                self._metrics.requests.labels(label, str(message["status"])).observe(took_s)
            await send(message)

        refusal = self._refusal(method, scope["path"], Headers(scope=scope))
        await (self._app if refusal is None else refusal)(scope, receive, protected)

    def _refusal(self, method: str, path: str, headers: Headers) -> Response | None:
        host = headers.get("host", "")
        if not self._is_ours(host):
            text = f"host {host!r} is not this server: use its address, or localhost"
            return problem(403, "FORBIDDEN", text)
        allowed = self._methods.get(path, (method,))
        if method not in allowed:
            reply = problem(405, "METHOD", f"{path} takes {' or '.join(allowed)}, not {method}")
            reply.headers["allow"] = ", ".join(allowed)
            return reply
        doubt = None if method in SAFE else _forged(host, headers)
        return None if doubt is None else problem(403, "FORBIDDEN", doubt)

    def _is_ours(self, host: str) -> bool:
        """Addresses cannot be forged by name; of names, only local ones and our own count."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if name in ("localhost", self._host):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            # A server that others may reach is reached by names it does not know.
            return not _loopback(self._host)
        return True


def _forged(host: str, headers: Headers) -> str | None:
    """Why an action may not be what its sender meant; None if all is well."""
    origin = headers.get("origin")
    if origin is not None and _netloc(origin) != host:
        return f"origin {origin!r} may not act here"
    if headers.get("x-nexo") != "1":
        return "an action needs the header X-Nexo: 1"
    media = headers.get("content-type", "").partition(";")[0].strip()
    if media != "application/json" and (media or not _empty(headers)):
        return "an action needs a JSON body: Content-Type: application/json"
    return None


def _netloc(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc
    except ValueError:  # such as ``http://[``
        return None


def _empty(headers: Headers) -> bool:
    return headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
