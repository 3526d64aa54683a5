"""Brokers by URL (SPEC J1)."""

from __future__ import annotations

import pytest

from nexo import xstreams
from nexo.errors import ConnectionLost, InvalidInput, InvalidOption
from nexo.xstreams import LocalStreamBroker, NexoStreamBroker, RedisStreamBroker


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("memory://", LocalStreamBroker),
        ("nexo://127.0.0.1:1", NexoStreamBroker),
        ("redis://127.0.0.1:1/0", RedisStreamBroker),
    ],
)
def test_the_scheme_names_the_broker(url: str, kind: type[xstreams.StreamBroker]) -> None:
    with xstreams.connect(url) as broker:
        assert type(broker) is kind


def test_limits_stand_in_the_url_or_beside_it() -> None:
    local = xstreams.connect("memory://?max_pending=5&max_stream_length=7", max_pending=6)
    assert isinstance(local, LocalStreamBroker)
    assert (local.limits.max_stream_length, local.limits.max_pending) == (7, 6)
    default = LocalStreamBroker().limits
    assert (default.max_stream_length, default.max_pending) == (10_000, 1_000)  # SPEC J3


def test_other_options_are_those_of_the_server() -> None:
    with xstreams.connect("nexo://127.0.0.1:1?timeout=3&max_pending=5") as broker:
        assert isinstance(broker, NexoStreamBroker)
        assert broker.limits.max_pending == 5
    with pytest.raises(InvalidOption, match="colour"):
        xstreams.connect("nexo://127.0.0.1:1?colour=red")


def test_each_memory_broker_is_empty() -> None:
    xstreams.connect("memory://").xadd("s", 1)
    assert xstreams.connect("memory://").xlen("s") == 0


@pytest.mark.parametrize(
    "url",
    ["", "kafka://x", "memory://host", "memory://?colour=red", "memory://?max_pending=many",
     "memory://?max_pending=0"],
)  # fmt: skip
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(InvalidInput):
        xstreams.connect(url)


@pytest.mark.parametrize("url", ["nexo://127.0.0.1:1?while_down=fail", "redis://127.0.0.1:1/0"])
def test_a_server_that_is_not_there_is_a_connection_error(url: str) -> None:
    with xstreams.connect(url) as broker, pytest.raises(ConnectionLost):
        broker.xadd("s", 1)
