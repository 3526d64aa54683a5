"""The address of a server and how to talk to it, read from a URL.

``nexo://user:password@host:7654?timeout=30&while_down=fail``; ``nexos://`` is the same
over TLS. Several servers are ``nexo://a:7654,b:7654``: the first that answers is used.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, TypedDict, Unpack
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from nexo.client.certificates import checked_ca, load_chain
from nexo.errors import InvalidInput, InvalidOption
from nexo.model import Broker
from nexo.options.described import keywords, unknown
from nexo.options.option import Described, Unfit, option
from nexo.options.units import Duration

if TYPE_CHECKING:
    import ssl

DEFAULT_PORT = 7654
DEFAULT_URL = f"nexo://127.0.0.1:{DEFAULT_PORT}"

WhileDown: TypeAlias = Literal["wait", "fail"]
TimeoutSeconds: TypeAlias = Annotated[float, Meta(ge=0.001, le=10_000 * 86_400)]


class Address(msgspec.Struct, frozen=True):
    """A server and the terms of the connection; times in seconds.

    What is described can be given to a client; `ConnectOptions` types it.
    """

    host: str
    port: int = DEFAULT_PORT
    tls: Annotated[bool, option("Whether to use TLS, as `nexos://` does.")] = False
    user: Annotated[str | None, option("Who logs in.")] = None
    password: Annotated[str | None, option("The user's password.", secret=True)] = None
    token: Annotated[str | None, option("A token instead of user and password.", secret=True)] = (
        None
    )
    client: Annotated[str, option("A name for the server's logs and dashboard.")] = ""
    timeout_s: Annotated[
        TimeoutSeconds,
        option("How long a request may take, unless it has a timeout of its own."),
    ] = 30.0
    connect_timeout_s: Annotated[
        TimeoutSeconds, option("How long one attempt to connect may take.")
    ] = 5.0
    while_down: Annotated[WhileDown, option("What a request does without a connection.")] = "wait"
    down_wait_s: Annotated[
        TimeoutSeconds | None,
        option(
            "How long it waits; by default 5 seconds if the server was never reached, and during "
            "a restart as long as the request may take."
        ),
    ] = None
    ping_s: Annotated[
        TimeoutSeconds,
        option("A connection silent this long is pinged, and given up after twice this."),
    ] = 15.0
    ca_file: Annotated[str | None, option("Certificates to trust instead of the system's.")] = None
    cert_file: Annotated[
        str | None,
        option("The client's own certificate and key, for servers that ask for one."),
    ] = None
    verify: Annotated[bool, option("`false` accepts any certificate; for tests only.")] = True
    others: tuple[tuple[str, int], ...] = ()
    """Hosts and ports to try where ``host`` does not answer."""
    door_folder: str | None = None
    """For the server's own processes: unix sockets to use instead, see `door_path`."""
    caller: str | None = None
    """For the server's own processes: the address of the client they act for."""

    def __repr__(self) -> str:
        return f"Address({str(self)!r})"

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


_OPTIONS = keywords(Address)
IN_URL = {name: one for name, one in _OPTIONS.items() if name not in ("tls", "user", "password")}
"""Options that a URL gives after its ``?``; for the other three it has places of their own."""
_FIRST_WAIT_S = 5.0


def door_path(folder: str, broker: Broker) -> str:
    """The unix socket of a broker for processes of its own server, which must log in too."""
    return f"{folder}/{broker.label}.door"


def parse_url(url: str | Address | None = None, **options: Unpack[ConnectOptions]) -> Address:
    """The address in ``url``, or in ``NEXO_URL``, or of a local server.

    ``options`` win over the URL's. Credentials default to the environment: ``NEXO_TOKEN``, or
    ``NEXO_USER`` with ``NEXO_PASSWORD``. An `Address` is complete without them.
    """
    if place := {"host", "port"} & options.keys():
        raise InvalidOption(
            f"{' and '.join(sorted(place))}: write them into the URL, as in {DEFAULT_URL!r}"
        )
    said = dict(_read(options, _OPTIONS, "option"))
    if isinstance(url, Address):
        return replace(url, **said)
    address = replace(_parse(url or os.environ.get("NEXO_URL") or DEFAULT_URL), **said)
    given = {"user", "password", "token"} & options.keys()
    return address if given else _logged_in(address, os.environ)


def _read(
    given: Mapping[str, Any], known: Mapping[str, Described], what: str, *, from_text: bool = False
) -> Iterator[tuple[str, Any]]:
    """Options as fields of `Address`; `InvalidOption` calls a wrong one ``what``."""
    for name, value in given.items():
        if name not in known:
            raise unknown(name, known, what)
        one = known[name]
        try:
            yield one.name, one.check(one.read(value, name, from_text=from_text))
        except Unfit as error:
            raise InvalidOption(f"{what} {one.refusal(name, value, error)}") from None


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
    if parts.scheme not in ("nexo", "nexos") or parts.path.strip("/"):
        raise InvalidInput(
            f"{url!r} is not a Nexo URL: write nexo://host:port or nexos://host:port"
        )
    (host, port), *others = places
    address = Address(host, port, tls=parts.scheme == "nexos", others=tuple(others))
    login_parts = {"user": parts.username, "password": parts.password}
    given = {name: unquote(raw) for name, raw in login_parts.items() if raw}
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    return replace(
        address,
        **dict(_read(given, _OPTIONS, "option")),
        **dict(_read(query, IN_URL, "URL option", from_text=True)),
    )


def _place(text: str) -> tuple[str, int]:
    """A host and its port. Raises `ValueError` for what cannot be one."""
    parts = urlsplit(f"//{text}")
    host, port = parts.hostname or "", DEFAULT_PORT if parts.port is None else parts.port
    if not host:
        raise ValueError("a host is missing: write nexo://host:port")
    try:
        host.encode("idna")
    except UnicodeError as error:
        raise ValueError(f"{host!r} is not the name of a host: {error}") from None
    if not port:
        raise ValueError("a port is a number from 1 to 65,535")
    return host, port


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
