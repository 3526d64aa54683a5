"""URLs of a server: what they mean, and what is refused."""

from __future__ import annotations

import pytest

from nexo.client.address import Address, parse_url
from nexo.errors import InvalidInput, InvalidOption


def test_the_shortest_url_has_every_default() -> None:
    assert parse_url("nexo://localhost") == Address("localhost", 7654)


def test_every_part_of_a_url_is_used() -> None:
    address = parse_url(
        "nexos://ann:p%40ss@broker.example:9000"
        "?timeout=2.5&connect_timeout=1&while_down=fail&down_wait=3&ping=4"
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
        ("timeout=soon", "timeout='soon'"),
        ("timeout=0", "positive number of seconds"),
        ("timeout=nan", "positive number of seconds"),
        ("while_down=panic", "must be 'wait' or 'fail'"),
        ("verify=maybe", "must be true or false"),
    ],
)
def test_a_bad_option_is_named(query: str, message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        parse_url(f"nexo://host?{query}")
