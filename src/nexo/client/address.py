"""Where a server is and how to talk to it, read from a URL.

``nexo://user:password@host:7654?timeout=30&while_down=fail``; ``nexos://`` is the same
over TLS. Every query option is a field of `Address`.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast
from urllib.parse import parse_qsl, unquote, urlsplit

from nexo.client.certificates import checked_ca, load_chain
from nexo.errors import InvalidInput, InvalidOption
from nexo.model import Broker

DEFAULT_PORT = 7654
DEFAULT_URL = f"nexo://127.0.0.1:{DEFAULT_PORT}"

WhileDown: TypeAlias = Literal["wait", "fail"]


@dataclass(frozen=True, slots=True)
class Address:
    """A server and the terms of the connection; times in seconds."""

    host: str
    port: int = DEFAULT_PORT
    tls: bool = False
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    client: str = ""
    """A name for the server's logs and dashboard."""
    timeout_s: float = 30.0
    """How long a request may take that says nothing else."""
    connect_timeout_s: float = 5.0
    """How long one attempt to connect may take."""
    while_down: WhileDown = "wait"
    """What a request does while there is no connection."""
    down_wait_s: float = 5.0
    """How long such a request waits with ``while_down='wait'``."""
    ping_s: float = 15.0
    """A connection silent this long is pinged, and given up after twice this."""
    ca_file: str | None = None
    """Certificates to trust instead of the system's."""
    cert_file: str | None = None
    """The client's own certificate with its key, for servers that ask for one."""
    verify: bool = True
    """False accepts any certificate: for tests only."""
    door_folder: str | None = None
    """Of the server's own processes: unix sockets to use instead, see `door_path`."""
    caller: str | None = None
    """Of the server's own processes: the address of the one they speak for."""

    def __str__(self) -> str:
        scheme = "nexos" if self.tls else "nexo"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{host}:{self.port}"


def door_path(folder: str, broker: Broker) -> str:
    """Where a broker lets in processes of its own server, which log in as anyone must."""
    return f"{folder}/{broker.label}.door"


def parse_url(url: str | None = None) -> Address:
    """The address in ``url``, or in ``NEXO_URL``, or of a local server."""
    url = url or os.environ.get("NEXO_URL") or DEFAULT_URL
    try:
        parts = urlsplit(url)
        port = parts.port or DEFAULT_PORT
    except ValueError as error:
        raise InvalidInput(f"{url!r} is not a Nexo URL: {error}") from None
    if parts.scheme not in ("nexo", "nexos") or not parts.hostname or parts.path.strip("/"):
        raise InvalidInput(
            f"{url!r} is not a Nexo URL: write nexo://host:port or nexos://host:port"
        )
    address = Address(parts.hostname, port, tls=parts.scheme == "nexos")
    given = _options(parse_qsl(parts.query, keep_blank_values=True))
    for name, raw in (("user", parts.username), ("password", parts.password)):
        if raw:
            given[name] = unquote(raw)
    return replace(address, **given)


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError("must be a positive number of seconds")
    return value


def _while_down(text: str) -> WhileDown:
    if text not in ("wait", "fail"):
        raise ValueError("must be 'wait' or 'fail'")
    return cast("WhileDown", text)


def _flag(text: str) -> bool:
    if text not in ("true", "false", "1", "0"):
        raise ValueError("must be true or false")
    return text in ("true", "1")


_OPTIONS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "timeout": ("timeout_s", _seconds),
    "connect_timeout": ("connect_timeout_s", _seconds),
    "while_down": ("while_down", _while_down),
    "down_wait": ("down_wait_s", _seconds),
    "ping": ("ping_s", _seconds),
    "client": ("client", str),
    "token": ("token", str),
    "ca_file": ("ca_file", str),
    "cert_file": ("cert_file", str),
    "verify": ("verify", _flag),
}


def _options(pairs: list[tuple[str, str]]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for key, text in pairs:
        if key not in _OPTIONS:
            known = ", ".join(sorted(_OPTIONS))
            raise InvalidOption(f"unknown URL option {key!r}; known are {known}")
        name, convert = _OPTIONS[key]
        try:
            given[name] = convert(text)
        except ValueError as error:
            raise InvalidOption(f"URL option {key}={text!r}: {error}") from None
    return given


def tls_context(address: Address, broker: Broker) -> ssl.SSLContext:
    """TLS for one broker's connection; ALPN names the broker, so that the gate can route.

    `InvalidOption` names a file that cannot be used.
    """
    ca = address.ca_file and checked_ca("ca_file", Path(address.ca_file))
    context = ssl.create_default_context(cafile=ca)
    if not address.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if address.cert_file is not None:
        load_chain(context, ("cert_file", Path(address.cert_file)))
    context.set_alpn_protocols([f"nexo-{broker.label}"])
    return context
