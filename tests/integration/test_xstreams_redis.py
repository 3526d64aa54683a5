"""The broker on Redis beside programs that use Redis' own commands."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from nexo.errors import NexoError, Unavailable, WrongType
from nexo.xstreams import RedisStreamBroker
from tests.contract.redis_server import redis_server

pytestmark = pytest.mark.redis


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with redis_server(tmp_path_factory.mktemp("redis")) as url:
        yield url


@pytest.fixture
def raw(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url) as client:
        client.flushall()
        yield client


@pytest.fixture
def broker(redis_url: str, raw: redis.Redis) -> Iterator[RedisStreamBroker]:
    with RedisStreamBroker(redis_url) as made:
        yield made


def test_messages_of_others_come_as_their_fields(
    broker: RedisStreamBroker, raw: redis.Redis
) -> None:
    broker.create_group("s", "g", "0")
    raw.xadd("s", {"a": "1", "b": "2"})
    [message] = broker.xreadgroup("g", "c", "s")
    assert message.data == {"a": b"1", "b": b"2"}


def test_others_read_what_is_added_here(broker: RedisStreamBroker, raw: redis.Redis) -> None:
    message_id = broker.xadd("s", {"n": 1})
    assert raw.xrange("s") == [(message_id.encode(), {b"value": b'\x02{"n":1}'})]


def test_what_others_deleted_is_not_claimed(broker: RedisStreamBroker, raw: redis.Redis) -> None:
    broker.create_group("s", "g", "0")
    ids = [broker.xadd("s", n) for n in range(3)]
    broker.xreadgroup("g", "a", "s", 3)
    raw.xdel("s", ids[0])
    assert [message.id for message in broker.xautoclaim("s", "g", "b", 0, 10)] == ids[1:]


def test_claiming_looks_past_many_fresh_messages(broker: RedisStreamBroker) -> None:
    """Redis itself looks at ten times the count and then stops."""
    broker.create_group("s", "g", "0")
    for n in range(100):
        broker.xadd("s", n)
    broker.xreadgroup("g", "a", "s", 100)
    assert [message.data for message in broker.xautoclaim("s", "g", "b", 0, 1)] == [0]
    assert len(broker.xautoclaim("s", "g", "b", 0, 200)) == 100


def test_a_key_of_another_type_is_said(broker: RedisStreamBroker, raw: redis.Redis) -> None:
    raw.set("s", "text")
    with pytest.raises(WrongType):
        broker.xadd("s", 1)
    with pytest.raises(WrongType):
        broker.xlen("s")


def test_a_server_out_of_memory_is_said(broker: RedisStreamBroker, raw: redis.Redis) -> None:
    raw.config_set("maxmemory", "1")
    try:
        with pytest.raises(NexoError, match="memory"):
            broker.xadd("s", 1)
    finally:
        raw.config_set("maxmemory", "0")


def test_without_the_package_the_message_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without_redis(name: str, *given: Any, **options: Any) -> Any:
        if name == "redis":
            raise ImportError(name)
        return real(name, *given, **options)

    monkeypatch.setattr(builtins, "__import__", without_redis)
    with pytest.raises(Unavailable, match=r"nexo-broker\[redis\]"):
        RedisStreamBroker("redis://127.0.0.1:1/0")
