"""Django's documented cache contract on the store broker (SPEC M2)."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from django.contrib.sessions.backends.cache import SessionStore
from django.core.cache import cache as default_cache
from django.core.cache.backends.base import CacheKeyWarning

import nexo
from nexo import testing
from nexo.errors import PayloadTooLarge
from nexo.integrations.django.cache import NexoCache
from nexo.integrations.django.clients import client_of, close_all
from tests.timing import wait_until


def sole_key(key: str, key_prefix: str, version: int) -> str:
    return f"own-{version}-{key}"


@pytest.fixture(scope="module")
def module_url() -> Iterator[str]:
    with testing.server() as url:
        yield url


@pytest.fixture
def url(module_url: str) -> Iterator[str]:
    """One server for all tests here, emptied after each."""
    yield module_url
    client_of(module_url).store.clear()
    close_all()


@pytest.fixture
def cache(url: str) -> NexoCache:
    return NexoCache(url, {})


class Pair:
    def __init__(self, left: int, right: int) -> None:
        self.sides = left, right

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pair) and other.sides == self.sides

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Pair{self.sides}"


@pytest.mark.parametrize(
    "value",
    [
        0, 7, -(2**63), 2**63, 2**200, True, 1.5, 1.0, float("inf"), None, "", "text 🎈", "\ud800",
        b"", b"\x00bytes", [1, [2]], (1, 2), {"a": {1: "b"}}, {1, 2}, Decimal("1.10"), Pair(1, 2),
        datetime(2026, 1, 2, tzinfo=UTC),
    ],
    ids=repr,
)  # fmt: skip
def test_every_value_comes_back_as_it_was(cache: NexoCache, value: object) -> None:
    cache.set("key", value)
    found = cache.get("key", "absent")
    assert found == value
    assert type(found) is type(value)


def test_an_absent_key_and_a_cached_none_differ(cache: NexoCache) -> None:
    cache.set("none", None)
    assert cache.get("none", "absent") is None
    assert cache.get("no", "absent") == "absent"
    assert "none" in cache
    assert "no" not in cache
    assert cache.get_many(["none", "no"]) == {"none": None}


def test_add_sets_only_what_is_absent(cache: NexoCache) -> None:
    assert cache.add("key", 1)
    assert not cache.add("key", 2)
    assert cache.get("key") == 1
    assert cache.add("other", 1, timeout=0)
    assert cache.get("other") is None


def test_delete_says_whether_there_was_one(cache: NexoCache) -> None:
    cache.set("key", 1)
    assert cache.delete("key")
    assert not cache.delete("key")


def test_timeouts(cache: NexoCache, client: nexo.Client) -> None:
    cache.set("default", 1)
    cache.set("never", 1, timeout=None)
    cache.set("at-once", 1, timeout=0)
    cache.set("negative", 1, timeout=-1)
    cache.set("long", 1, timeout=10**12)
    cache.set("short", 1, timeout=0.01)
    assert 299 < (client.store.ttl("django-cache/:1:default") or 0) <= 300
    assert client.store.ttl("django-cache/:1:never") == float("inf")
    assert client.store.ttl("django-cache/:1:long") == float("inf")
    assert cache.get("at-once") is cache.get("negative") is None
    wait_until(lambda: cache.get("short") is None)


def test_touch_changes_the_life_time(cache: NexoCache, client: nexo.Client) -> None:
    cache.set("key", 1, timeout=1)
    assert cache.touch("key", 1_000)
    assert 999 < (client.store.ttl("django-cache/:1:key") or 0) <= 1_000
    assert cache.touch("key", None)
    assert client.store.ttl("django-cache/:1:key") == float("inf")
    assert cache.touch("key", None), "also if it had none before"
    assert cache.touch("key")
    assert cache.touch("key", 0)
    assert cache.get("key") is None
    assert not cache.touch("key", 10)
    assert not cache.touch("key", None)


def test_incr_is_atomic_and_keeps_the_life_time(cache: NexoCache, client: nexo.Client) -> None:
    cache.set("n", 0, timeout=1_000)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: cache.incr("n"), range(100)))
    assert cache.get("n") == 100
    assert cache.decr("n", 30) == 70
    assert cache.incr("n", 0.5) == 70.5
    assert 990 < (client.store.ttl("django-cache/:1:n") or 0) <= 1_000
    cache.set("exact", Decimal("0.1"))
    assert cache.incr("exact", Decimal("0.2")) == Decimal("0.3")


@pytest.mark.parametrize("method", ["incr", "decr", "incr_version", "decr_version"])
def test_counting_what_is_absent_is_a_value_error(cache: NexoCache, method: str) -> None:
    with pytest.raises(ValueError, match="not found"):
        getattr(cache, method)("absent")
    assert "absent" not in cache


def test_get_or_set(cache: NexoCache) -> None:
    calls: list[int] = []

    def made() -> str:
        calls.append(1)
        return "made"

    assert cache.get_or_set("key", made) == "made"
    assert cache.get_or_set("key", made) == "made"
    assert calls == [1]
    assert cache.get_or_set("none", lambda: None, 10) is None
    assert cache.get_or_set("plain", 5) == 5


def test_many_keys(cache: NexoCache) -> None:
    data = {f"key{n}": n for n in range(2_500)}
    assert cache.set_many(data) == []
    assert cache.get_many([*data, "absent"]) == data
    cache.delete_many([*data][:2_499])
    assert cache.get_many(data) == {"key2499": 2_499}
    assert cache.set_many({}) == []
    assert cache.get_many([]) == {}
    cache.delete_many([])
    assert cache.set_many({"key2499": 1, "b": 2}, timeout=0) == []
    assert cache.get_many(["key2499", "b"]) == {}


def test_many_large_values_are_sent_in_several_requests(cache: NexoCache) -> None:
    data = {f"key{n}": b"x" * 4_000_000 for n in range(3)}
    cache.set_many(data)
    assert {key: len(value) for key, value in cache.get_many(["key0", "key2"]).items()} == {
        "key0": 4_000_000,
        "key2": 4_000_000,
    }
    with pytest.raises(PayloadTooLarge):
        cache.set("huge", b"x" * 11_000_000)
    assert "huge" not in cache


def test_versions(cache: NexoCache) -> None:
    cache.set("key", "one")
    cache.set("key", "two", version=2)
    assert (cache.get("key"), cache.get("key", version=2)) == ("one", "two")
    assert cache.incr_version("key", 2) == 3
    assert (cache.get("key"), cache.get("key", version=3)) == (None, "one")
    assert cache.decr_version("key", version=2) == 1
    assert cache.get("key") == "two"


def test_clear_leaves_other_prefixes_and_the_rest_of_the_store(
    url: str, client: nexo.Client
) -> None:
    client.store.set("mine", 1)
    blog, shop = (NexoCache(url, {"KEY_PREFIX": name}) for name in ("blog", "shop"))
    own = NexoCache(url, {"KEY_FUNCTION": sole_key, "OPTIONS": {"NAMESPACE": "own"}})
    for each in (blog, shop, own):
        each.set_many({f"key{n}": n for n in range(3)})
        each.set("key", 2, version=2)
    blog.clear(version=2)
    assert (blog.get("key", version=2), blog.get("key0")) == (None, 0)
    blog.clear()
    own.clear()
    assert blog.get_many(["key0", "key1"]) == own.get_many(["key0", "key1"]) == {}
    assert shop.get_many(["key0", "key1"]) == {"key0": 0, "key1": 1}
    assert client.store.get("mine") == 1


def test_keys_that_memcached_could_not_hold_are_warned_of(cache: NexoCache) -> None:
    with pytest.warns(CacheKeyWarning):
        cache.set("with space", 1)


async def test_the_async_interface_does_the_same(url: str) -> None:
    cache = NexoCache(url, {})
    await cache.aset("n", 1)
    assert await cache.aget("n") == 1
    assert not await cache.aadd("n", 2)
    assert await cache.aincr("n", 4) == 5
    assert await cache.adecr("n") == 4
    assert await cache.atouch("n", 10)
    assert await cache.ahas_key("n")
    assert await cache.aincr_version("n") == 2
    assert await cache.adecr_version("n", version=2) == 1
    assert await cache.aset_many({"a": 1, "b": 2}) == []
    assert await cache.aget_many(["a", "b", "c"]) == {"a": 1, "b": 2}
    assert await cache.aget_or_set("c", lambda: 3) == 3
    await cache.adelete_many(["a"])
    assert await cache.adelete("b")
    await cache.aclear()
    assert await cache.aget("n") is None


def test_async_calls_of_many_loops_share_one_client(url: str) -> None:
    """Django under WSGI runs each async view on a loop of its own."""
    cache = NexoCache(url, {})
    for n in range(5):
        asyncio.run(cache.aset(f"key{n}", n))
    assert cache.get_many([f"key{n}" for n in range(5)]) == {f"key{n}": n for n in range(5)}


class Upper:
    """A serializer of one's own."""

    def dumps(self, value: Any) -> Any:
        return value.upper()

    def loads(self, stored: Any) -> Any:
        return stored


def test_a_serializer_of_ones_own(url: str) -> None:
    cache = NexoCache(url, {"OPTIONS": {"SERIALIZER": Upper}})
    cache.set("key", "text")
    assert cache.get("key") == "TEXT"


def test_sessions_through_the_cache(project: str) -> None:
    session = SessionStore()
    session["cart"] = ["apple"]
    session.create()
    key = session.session_key
    again = SessionStore(session_key=key)
    assert again["cart"] == ["apple"]
    again["cart"] = copy.copy(["pear"])
    again.save()
    assert SessionStore(session_key=key)["cart"] == ["pear"]
    again.flush()
    assert not again.exists(key)
    assert default_cache.get("anything") is None
