"""Guards every request: headers that protect browsers, no forged actions, no foreign hosts.

A page of another site can make a browser send a plain request here, but neither a custom
header nor JSON without asking first, which only the sites of ``http_origins`` may. So an action
needs ``X-Nexo``, or a token, which no browser sends by itself. A request from another site is
never treated as the logged-in user's: its cookie is dropped.
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

from nexo.admin.http.replies import problem
from nexo.admin.http.routes import PREFIX
from nexo.admin.prometheus import Metrics
from nexo.config import is_loopback

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


class HttpGuard:
    """ASGI middleware around the whole application; it also measures request times."""

    def __init__(
        self,
        app: ASGIApp,
        metrics: Metrics,
        host: str,
        methods: Mapping[str, Collection[str]],
        origins: Collection[str],
    ) -> None:
        """``methods`` says by path what it answers to; other paths are files.

        ``origins`` are the other sites whose pages may use the API.
        """
        self._origins = origins
        self._app = app
        self._methods = methods
        self._metrics = metrics
        self._host = host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through or refuse it."""
        headers = Headers(scope=scope)
        foreign = _foreign(headers)
        if foreign is not None:
            scope["headers"] = [pair for pair in scope["headers"] if pair[0] != b"cookie"]
        if scope["type"] == "websocket":
            refusal = self._refused_socket(headers, foreign)
            await (self._app if refusal is None else refusal)(scope, receive, send)
            return
        began_s, method = time.perf_counter(), scope["method"]
        shared = foreign is not None and scope["path"].startswith(PREFIX) and self._knows(foreign)

        async def protected(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                if shared:
                    headers.update(_shared(foreign or ""))
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                took_s = time.perf_counter() - began_s
                label = method if method in (*SAFE, "POST") else "other"
                self._metrics.requests.labels(label, str(message["status"])).observe(took_s)
            await send(message)

        refusal = self._refusal(method, scope["path"], headers, foreign, shared)
        await (self._app if refusal is None else refusal)(scope, receive, protected)

    def _refusal(
        self, method: str, path: str, headers: Headers, foreign: str | None, shared: bool
    ) -> Response | None:
        if (stranger := self._stranger(headers)) is not None:
            return problem(403, "FORBIDDEN", stranger)
        if method == "OPTIONS" and foreign is not None:
            return _preflight() if shared else problem(403, "FORBIDDEN", _denied(foreign))
        allowed = self._methods.get(path, (method,))
        if method not in allowed:
            reply = problem(405, "METHOD", f"{path} takes {' or '.join(allowed)}, not {method}")
            reply.headers["allow"] = ", ".join(allowed)
            return reply
        if method in SAFE:
            return None
        doubt = _denied(foreign) if foreign is not None and not shared else _forged(headers)
        return None if doubt is None else problem(403, "FORBIDDEN", doubt)

    def _refused_socket(self, headers: Headers, foreign: str | None) -> Response | None:
        """A page of any site can open a web socket, and browsers do not ask first."""
        doubt = self._stranger(headers)
        if doubt is None and foreign is not None and not self._knows(foreign):
            doubt = _denied(foreign)
        return None if doubt is None else problem(403, "FORBIDDEN", doubt)

    def _knows(self, origin: str) -> bool:
        return origin in self._origins or "*" in self._origins

    def _stranger(self, headers: Headers) -> str | None:
        host = headers.get("host", "")
        if self._is_ours(host):
            return None
        return f"host {host!r} is not this server: use its address, or localhost"

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
            return not is_loopback(self._host)
        return True


def _foreign(headers: Headers) -> str | None:
    """The other site that a browser sends this for; None for our own pages and for programs."""
    origin = headers.get("origin")
    return None if origin is None or _netloc(origin) == headers.get("host", "") else origin


def _denied(origin: str) -> str:
    return f"origin {origin!r} may not act here: http_origins names those that may"


def _shared(origin: str) -> dict[str, str]:
    """Lets a page of another site read the reply; never with cookies."""
    return {
        "access-control-allow-origin": origin,
        "access-control-expose-headers": "Retry-After",
        "cross-origin-resource-policy": "cross-origin",
        "vary": "Origin",
    }


def _preflight() -> Response:
    return Response(
        status_code=204,
        headers={
            "access-control-allow-methods": "GET, POST",
            "access-control-allow-headers": "authorization, content-type, x-nexo, last-event-id",
            "access-control-max-age": "600",
        },
    )


def _forged(headers: Headers) -> str | None:
    """Why an action may not be what its sender meant; None if all is well."""
    if headers.get("x-nexo") != "1" and "authorization" not in headers:
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
