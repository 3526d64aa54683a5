"""URLs of a server: what they mean, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from nexo.client.address import Address, ConnectOptions, parse_url
from nexo.errors import InvalidInput, InvalidOption
from nexo.options.described import keywords


def test_the_shortest_url_has_every_default() -> None:
    assert parse_url("nexo://localhost") == Address("localhost", 7654)


def test_every_part_of_a_url_is_used() -> None:
    address = parse_url(
        "nexos://ann:p%40ss@broker.example:9000"
        "?timeout=2.5&connect_timeout=1&while_down=fail&down_wait=3s&ping=4000ms"
        "&client=billing&token=t&ca_file=/ca.pem&verify=false"
    )
    assert address == Address(
        "broker.example", 9000, tls=True, user="ann", password="p@ss", token="t",
        client="billing", timeout_s=2.5, connect_timeout_s=1.0, while_down="fail",
        down_wait_s=3.0, ping_s=4.0, ca_file="/ca.pem", verify=False,
    )  # fmt: skip


def test_an_address_is_shown_without_its_secrets() -> None:
    assert str(parse_url("nexo://ann:secret@[::1]:7?token=t")) == "nexo://[::1]:7"
    assert "secret" not in repr(parse_url("nexo://ann:secret@host"))


def test_the_environment_names_the_default_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEXO_URL", "nexo://from-environment:1")
    assert parse_url() == Address("from-environment", 1)
    monkeypatch.delenv("NEXO_URL")
    assert parse_url() == Address("127.0.0.1", 7654)


@pytest.mark.parametrize(
    ("url", "environment", "login"),
    [
        ("nexo://h", {"NEXO_TOKEN": "t"}, (None, None, "t")),
        ("nexo://h", {"NEXO_USER": "ann", "NEXO_PASSWORD": "p"}, ("ann", "p", None)),
        ("nexo://h", {"NEXO_USER": "ann"}, (None, None, None)),
        (
            "nexo://h",
            {"NEXO_TOKEN": "t", "NEXO_USER": "a", "NEXO_PASSWORD": "p"},
            (None, None, "t"),
        ),
        ("nexo://bob:q@h", {"NEXO_TOKEN": "t"}, ("bob", "q", None)),
        ("nexo://bob@h", {"NEXO_TOKEN": "t", "NEXO_PASSWORD": "p"}, ("bob", "p", None)),
        ("nexo://h?token=u", {"NEXO_TOKEN": "t"}, (None, None, "u")),
    ],
)
def test_the_environment_logs_in_who_did_not_say_who_they_are(
    monkeypatch: pytest.MonkeyPatch, url: str, environment: dict[str, str], login: tuple[str, ...]
) -> None:
    """SPEC A10: so that secrets need not stand in command lines."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    address = parse_url(url)
    assert (address.user, address.password, address.token) == login
    said = parse_url("nexo://h", token="mine")
    assert (said.user, said.password, said.token) == (None, None, "mine")
    assert parse_url("nexo://h", token=None).token is None
    assert "mine" not in repr(said)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"foo": 1}, "unknown option 'foo'; known are .*timeout"),
        ({"timeout": "x"}, "option timeout = 'x': must be a duration such as"),
        ({"timeout": "5"}, "option timeout = '5': must be a duration such as"),
        ({"timeout": -1}, "option timeout = -1: .* from 1ms to 10000d"),
        ({"timeout": 0}, "option timeout = 0: .* from 1ms to 10000d"),
        ({"timeout": None}, "option timeout = None: must be a duration"),
        ({"ping": 0}, "option ping = 0: must be a duration"),
        ({"down_wait": float("nan")}, "option down_wait = nan: must be a duration"),
        ({"connect_timeout": 1e10}, "option connect_timeout = .* from 1ms to 10000d"),
        ({"while_down": "x"}, "must be one of wait, fail"),
        ({"verify": "no"}, "must be true or false"),
        ({"port": 1}, "port: write them into the URL, as in 'nexo://"),
        ({"host": "a", "port": 1}, "host and port: write them into the URL"),
        ({"client": 5}, "client = 5: must be text"),
        ({"token": "\udcff"}, "option token: cannot be written as UTF-8"),
        ({"password": 7}, "option password: must be text"),
    ],
)
def test_a_bad_keyword_is_named(option: dict[str, Any], said: str) -> None:
    """SPEC K1: as in the URL."""
    with pytest.raises(InvalidOption, match=said):
        parse_url("nexo://host", **option)


def test_the_sdk_types_exactly_the_options_there_are() -> None:
    assert set(ConnectOptions.__annotations__) == set(keywords(Address))


def test_an_address_takes_options_without_asking_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NEXO_TOKEN", "of-someone-else")
    place = Address("host", 7, caller="10.0.0.1")
    assert parse_url(place, timeout="2s") == Address("host", 7, timeout_s=2.0, caller="10.0.0.1")


def test_a_url_is_text_with_a_real_port() -> None:
    """SPEC K1."""
    with pytest.raises(InvalidInput, match="a URL is text, not int"):
        parse_url(5)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="a port is a number from 1 to 65,535"):
        parse_url("nexo://host:0")


@pytest.mark.parametrize("host", ["a..b", "x" * 64])
def test_what_no_host_can_be_called_is_refused(host: str) -> None:
    """SPEC A5, K1: no attempt to connect could go well."""
    with pytest.raises(InvalidInput, match="is not the name of a host"):
        parse_url(f"nexo://{host}")


@pytest.mark.parametrize(
    "url",
    [
        "localhost:7654",
        "http://host",
        "nexo://",
        "nexo://host/db",
        "nexo://host:99999",
        "nexo://:1",
    ],
)
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(InvalidInput, match="is not a Nexo URL"):
        parse_url(url)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("tiemout=1", "unknown URL option 'tiemout'; known are .*timeout"),
        ("timeout=soon", "URL option timeout = 'soon': must be a duration"),
        ("timeout=0", "timeout = '0': must be a duration"),
        ("timeout=nan", "timeout = 'nan': must be a duration"),
        ("while_down=panic", "must be one of wait, fail"),
        ("verify=maybe", "must be true or false"),
    ],
)
def test_a_bad_option_is_named(query: str, message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        parse_url(f"nexo://host?{query}")
