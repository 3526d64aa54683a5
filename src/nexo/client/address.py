"""Where a server is and how to talk to it, read from a URL.

``nexo://user:password@host:7654?timeout=30&while_down=fail``; ``nexos://`` is the same
over TLS. Several servers are ``nexo://a:7654,b:7654``: the first that answers is used.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict
from urllib.parse import parse_qsl, unquote, urlsplit

from nexo.client.certificates import checked_ca, load_chain
from nexo.client.checks import Duration, positive_millis
from nexo.errors import InvalidInput, InvalidOption
from nexo.model import Broker

if TYPE_CHECKING:
    import ssl

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
    """How long a request may take, unless it has a timeout of its own."""
    connect_timeout_s: float = 5.0
    """How long one attempt to connect may take."""
    while_down: WhileDown = "wait"
    """What a request does while there is no connection."""
    down_wait_s: float | None = None
    """How long that request waits with ``while_down='wait'``. None: 5 seconds if the server was
    never reached, and as long as the request may take during a restart.
    """
    ping_s: float = 15.0
    """A connection silent this long is pinged, and given up after twice this."""
    ca_file: str | None = None
    """Certificates to trust instead of the system's."""
    cert_file: str | None = None
    """The client's own certificate with its key, for servers that ask for one."""
    verify: bool = True
    """False accepts any certificate: for tests only."""
    others: tuple[tuple[str, int], ...] = ()
    """Hosts and ports to try where ``host`` does not answer."""
    door_folder: str | None = None
    """For the server's own processes: unix sockets to use instead, see `door_path`."""
    caller: str | None = None
    """For the server's own processes: the address of the client they act for."""

    def __post_init__(self) -> None:
        for option in fields(self):
            name, value = option.name, getattr(self, option.name)
            if name not in _CHECKS or (value is None and option.default is None):
                continue
            try:
                _CHECKS[name](value)
            except ValueError as error:
                shown = "" if name in ("password", "token") else f"={value!r}"
                raise InvalidOption(f"option {name}{shown}: {error}") from None

    def __str__(self) -> str:
        if self.door_folder is not None:
            return "the broker"
        scheme = "nexos" if self.tls else "nexo"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{host}:{self.port}" + "".join(f",{h}:{p}" for h, p in self.others)

    @property
    def places(self) -> tuple[tuple[str, int], ...]:
        """Every host and port, in the order to try them."""
        return ((self.host, self.port), *self.others)

    def patience_s(self, timeout_s: float | None, *, was_up: bool) -> float:
        """How long a request may wait for a connection."""
        most_s = self.timeout_s if timeout_s is None else timeout_s
        if self.down_wait_s is not None:
            return min(most_s, self.down_wait_s)
        return most_s if was_up else min(most_s, _FIRST_WAIT_S)


class ConnectOptions(TypedDict, total=False):
    """Options of a client; they override those of its URL."""

    user: str | None
    password: str | None
    token: str | None
    client: str
    timeout: Duration
    connect_timeout: Duration
    while_down: WhileDown
    down_wait: Duration
    ping: Duration
    ca_file: str | None
    cert_file: str | None
    verify: bool
    tls: bool


_DURATIONS = ("timeout", "connect_timeout", "down_wait", "ping")
_IN_URL = {"ca_file", "cert_file", "client", "token", "verify", "while_down", *_DURATIONS}
_NOT_FOR_USERS = {"host", "port", "door_folder", "caller"}
_LONGEST_MS = 10**12
_FIRST_WAIT_S = 5.0


def door_path(folder: str, broker: Broker) -> str:
    """The unix socket of a broker for processes of its own server, which must log in too."""
    return f"{folder}/{broker.label}.door"


def parse_url(url: str | None = None, **options: Any) -> Address:
    """The address in ``url``, or in ``NEXO_URL``, or of a local server.

    ``options`` are `ConnectOptions` and win over the URL's. Credentials default to the
    environment: ``NEXO_TOKEN``, or ``NEXO_USER`` with ``NEXO_PASSWORD``.
    """
    known = ConnectOptions.__annotations__.keys()
    if unknown := options.keys() - known - _NOT_FOR_USERS:
        raise InvalidOption(
            f"unknown option {min(unknown)!r}; known are {', '.join(sorted(known))}"
        )
    address = _parse(url or os.environ.get("NEXO_URL") or DEFAULT_URL)
    address = replace(address, **_in_seconds(options))
    given = {"user", "password", "token", "door_folder"} & options.keys()
    return address if given else _logged_in(address, os.environ)


def _in_seconds(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as fields of `Address`, where durations are seconds."""
    found = dict(options)
    for name in options.keys() & set(_DURATIONS):
        try:
            found[f"{name}_s"] = positive_millis(found.pop(name), name, _LONGEST_MS) / 1_000
        except InvalidInput as error:
            raise InvalidOption(f"option {error.message}") from None
    return found


def _logged_in(address: Address, environ: Mapping[str, str]) -> Address:
    """The options, with missing credentials taken from the environment."""
    if address.token or address.password is not None:
        return address
    token, password = environ.get("NEXO_TOKEN"), environ.get("NEXO_PASSWORD")
    user = address.user or environ.get("NEXO_USER")
    if token and not address.user:
        return replace(address, token=token)
    return replace(address, user=user, password=password) if user and password else address


def _parse(url: str) -> Address:
    if not isinstance(url, str):
        raise InvalidInput(f"a URL is text, not {type(url).__name__}: write nexo://host:port")
    try:
        parts = urlsplit(url)
        login, _, hosts = parts.netloc.rpartition("@")
        places = [_place(host) for host in hosts.split(",")]
        parts = parts._replace(netloc=f"{login}@host")
    except ValueError as error:
        raise InvalidInput(f"{url!r} is not a Nexo URL: {error}") from None
    named = all(host for host, _ in places)
    if parts.scheme not in ("nexo", "nexos") or not named or parts.path.strip("/"):
        raise InvalidInput(
            f"{url!r} is not a Nexo URL: write nexo://host:port or nexos://host:port"
        )
    (host, port), *others = places
    address = Address(host, port, tls=parts.scheme == "nexos", others=tuple(others))
    given = _url_options(parts.query)
    for name, raw in (("user", parts.username), ("password", parts.password)):
        if raw:
            given[name] = unquote(raw)
    return replace(address, **_in_seconds(given))


def _url_options(query: str) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for name, text in parse_qsl(query, keep_blank_values=True):
        if name not in _IN_URL:
            known = ", ".join(sorted(_IN_URL))
            raise InvalidOption(f"unknown URL option {name!r}; known are {known}")
        given[name] = text
        if name in _DURATIONS:
            with suppress(ValueError):  # it has a unit, as in timeout=500ms
                given[name] = float(text)
        elif name == "verify":
            given[name] = {"true": True, "1": True, "false": False, "0": False}.get(text, text)
    return given


def _place(text: str) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    return parts.hostname or "", DEFAULT_PORT if parts.port is None else parts.port


def _others(value: Any) -> None:
    for host, port in value:
        _host(host)
        _port(port)


def _while_down(value: Any) -> None:
    if value not in ("wait", "fail"):
        raise ValueError("must be 'wait' or 'fail'")


def _port(value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 65_536:
        raise ValueError("must be a number from 1 to 65535")


def _flag(value: Any) -> None:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")


def _text(value: Any) -> None:
    if not isinstance(value, str):
        raise ValueError("must be text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"cannot be written as UTF-8: {error.reason}") from None


def _host(value: Any) -> None:
    _text(value)
    try:
        value.encode("idna")
    except UnicodeError as error:
        raise ValueError(f"is no name of a host: {error}") from None


_TEXTS = (
    "user", "password", "token", "client", "ca_file", "cert_file", "door_folder", "caller",
)  # fmt: skip
_CHECKS: dict[str, Callable[[Any], None]] = {
    "host": _host,
    "port": _port,
    "tls": _flag,
    "while_down": _while_down,
    "verify": _flag,
    "others": _others,
    **dict.fromkeys(_TEXTS, _text),
}
"""What each field may be; a `ValueError` says what it may."""


def tls_context(address: Address, broker: Broker) -> ssl.SSLContext:
    """TLS for one broker's connection; ALPN names the broker, so that the gate can route.

    `InvalidOption` names a file that cannot be used.
    """
    import ssl  # noqa: PLC0415 - slow to import, and most connections do without

    ca = address.ca_file and checked_ca("ca_file", Path(address.ca_file))
    context = ssl.create_default_context(cafile=ca)
    if not address.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if address.cert_file is not None:
        load_chain(context, ("cert_file", Path(address.cert_file)))
    context.set_alpn_protocols([f"nexo-{broker.label}"])
    return context
