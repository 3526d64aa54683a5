"""The store through a real server: both clients, every type (SPEC A4, B1-B3)."""

from __future__ import annotations

import asyncio
import contextlib
import math
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pydantic
import pytest

import nexo
from nexo import testing
from nexo.client._async.store.store import Store
from nexo.errors import DoesNotFit, InvalidInput, PayloadTooLarge, WrongType
from nexo.protocol import store as wire
from nexo.protocol.ops import Op
from tests.timing import eventually, wait_until


@dataclass
class User:
    name: str
    role: str = "guest"


class Point(msgspec.Struct):
    x: int
    y: int


class Order(pydantic.BaseModel):
    id: int
    items: list[str]


VALUES: list[Any] = [
    b"", b"\x00\xff\x01", "", "text", "né 🙂 \u0000", None, True, 0, -7, 2**53, 1.5, [], {},
    [1, [2, {"deep": [None]}]], {"emoji": "🙂", "nested": {"list": [1, 2.5, "x"]}},
]  # fmt: skip


class TestSyncClient:
    @pytest.mark.parametrize("value", VALUES, ids=repr)
    def test_values_come_back_as_they_were(self, client: nexo.Client, value: Any) -> None:
        client.store.set("k", value)  # SPEC A4
        found = client.store.get("k", default="absent")
        assert found == value
        assert type(found) is type(value)

    def test_absent_empty_and_none_are_distinct(self, client: nexo.Client) -> None:
        missing = object()
        assert client.store.get("k", default=missing) is missing
        for value in (None, "", b""):
            client.store.set("k", value)
            assert client.store.get("k", default=missing) == value

    def test_what_is_not_json_is_refused_before_it_is_sent(self, client: nexo.Client) -> None:
        for value in (math.nan, [math.inf], object(), {1, object()}):
            with pytest.raises(InvalidInput):
                client.store.set("k", value)
        assert not client.store.exists("k")

    def test_models_round_trip(self, client: nexo.Client) -> None:
        store = client.store
        store.mset({"u": User("Max"), "p": Point(1, 2), "o": Order(id=1, items=["a"])})
        assert store.get("u", User) == User("Max")
        assert store.get("p", Point) == Point(1, 2)
        assert store.get("o", Order) == Order(id=1, items=["a"])
        assert store.get("none", User) is None
        assert store.get("none", User, default=User("?")) == User("?")
        assert store.mget(["u", "none"], User) == [User("Max"), None]
        with pytest.raises(InvalidInput, match="User"):
            store.get("p", User)

    def test_the_store_is_one_large_map_as_the_documents_write_it(
        self, client: nexo.Client
    ) -> None:
        client.store.map.set("user:1", {"name": "Max", "role": "admin"})
        assert client.store.map.get("user:1") == {"name": "Max", "role": "admin"}
        assert client.store.map.get("user:1", User) == User("Max", "admin")
        assert client.store.map.del_("user:1")
        assert not client.store.map.delete("user:1")
        client.store.map.set("blob", bytes(1024 * 1024))
        assert client.store.map.get("blob") == bytes(1024 * 1024)

    def test_keys_live_as_long_as_they_are_told(self, client: nexo.Client) -> None:
        store = client.store
        store.set("k", 1, ttl=timedelta(minutes=1))
        assert 59 < (store.ttl("k") or 0) <= 60
        assert store.persist("k")
        assert store.ttl("k") == math.inf
        assert store.ttl("none") is None
        assert store.expire("k", 0.5)
        assert 0 < (store.ttl("k") or 0) <= 0.5
        assert store.set("k", 2, keep_ttl=True)
        assert store.ttl("k") != math.inf

    @pytest.mark.parametrize("ttl", [60, "1m", "60000ms", timedelta(minutes=1)])
    def test_a_ttl_is_written_as_any_duration(self, client: nexo.Client, ttl: Any) -> None:
        """SPEC B1, K1: as for queues and topics."""
        client.store.set("k", 1, ttl=ttl)
        assert 59 < (client.store.ttl("k") or 0) <= 60
        assert client.store.expire("k", ttl)

    @pytest.mark.parametrize(
        "ttl", [0, -1, math.nan, math.inf, 1e307, 10**400, timedelta(0), timedelta.max, "1", True]
    )
    def test_an_impossible_ttl_is_refused(self, client: nexo.Client, ttl: Any) -> None:
        with pytest.raises(InvalidInput, match="ttl"):
            client.store.set("k", 1, ttl=ttl)
        assert not client.store.exists("k")

    @pytest.mark.parametrize(
        "call",
        [
            lambda store: store.get(1),
            lambda store: store.get(None),
            lambda store: store.set(b"k", 1),
            lambda store: store.set("\udcff", 1),
            lambda store: store.set(1, 1, ttl=1),
            lambda store: store.incr("n", 2**70),
            lambda store: store.incr("n", "1"),
            lambda store: store.scan(limit=2**70),
            lambda store: store.scan(limit=0),
            lambda store: store.mget(5),
            lambda store: store.mget("abc"),
            lambda store: store.mset([1]),
            lambda store: store.mset({1: 1}),
            lambda store: store.delete(None),
            lambda store: store.list("l").pop_many(2**70),
            lambda store: store.list("l").range(2**70),
            lambda store: store.list(5).push(1),
            lambda store: store.map("m").set_many([1]),
            lambda store: store.map("m").set(5, 1),
            lambda store: store.expire("k", float("nan")),
        ],
    )
    def test_bad_arguments_are_typed_errors(self, client: nexo.Client, call: Any) -> None:
        """SPEC B1, K1: and nothing is changed."""
        with pytest.raises(InvalidInput):
            call(client.store)
        assert list(client.store.keys()) == []

    def test_what_was_taken_and_does_not_fit_is_in_the_error(self, client: nexo.Client) -> None:
        """SPEC B2: a value that is gone from the store is not lost."""
        store = client.store
        store.set("k", "text")
        with pytest.raises(DoesNotFit, match="the key was set") as refused:
            store.getset("k", "second", int)
        assert refused.value.value == "text"
        with pytest.raises(DoesNotFit, match="the key was deleted") as refused:
            store.getdel("k", int)
        assert refused.value.value == "second"
        store.list("l").push("a", "b", "c", "d")
        numbers = store.list("l", int)
        for take, held in (
            (numbers.pop, "d"), (numbers.pop_left, "a"), (lambda: numbers.pop_many(2), ["c", "b"])
        ):  # fmt: skip
            with pytest.raises(DoesNotFit, match="taken out") as refused:
                take()
            assert refused.value.value == held
        store.set_("s").add("x")
        with pytest.raises(DoesNotFit) as refused:
            store.set_("s", int).pop()
        assert refused.value.value == "x"

    def test_atomic_commands(self, client: nexo.Client) -> None:
        store = client.store
        assert store.incr("n") == 1
        assert store.incr("n", 10) == 11
        assert store.decr("n", 0.5) == 10.5
        assert store.set("lock", "me", if_absent=True, ttl=5)
        assert not store.set("lock", "you", if_absent=True)
        assert store.cas("lock", "me", "you")
        assert not store.cas("lock", "me", "third")
        assert store.getset("lock", "new") == "you"
        assert store.getset("fresh", 1, default="was absent") == "was absent"
        assert store.getdel("lock") == "new"
        assert store.getdel("lock", default="gone") == "gone"
        with pytest.raises(WrongType):
            store.incr("fresh" if store.set("fresh", "text") else "")

    def test_keys_are_listed_page_by_page(self, client: nexo.Client) -> None:
        store = client.store
        store.mset({f"user:{n:04}": n for n in range(2_500)} | {"other": 1})
        assert list(store.keys("user:")) == [f"user:{n:04}" for n in range(2_500)]
        assert list(store.keys(glob="*:001?")) == [f"user:00{n}" for n in range(10, 20)]
        page = store.scan(prefix="user:", limit=2)
        assert page.keys == ["user:0000", "user:0001"]
        assert store.scan(page.cursor or "", prefix="user:", limit=1).keys == ["user:0002"]
        with pytest.raises(InvalidInput):
            store.scan(limit=0)
        assert store.delete_many("user:0000", "other", "none") == 2
        assert store.clear() == 2_499

    def test_any_text_is_a_key(self, client: nexo.Client) -> None:
        for key in ("é" * 32_768, "with space\n\x00", "🙂/../etc", "*"):
            client.store.set(key, key)
            assert client.store.get(key) == key
        for key in ("", "x" * 65_537, "half a pair \ud800"):
            for call in (client.store.get, client.store.exists, client.store.delete):
                with pytest.raises(InvalidInput):
                    call(key)
            with pytest.raises(InvalidInput):
                client.store.set(key, 1)

    def test_maps(self, client: nexo.Client) -> None:
        session = client.store.map("session:1")
        assert session.set("user", {"id": 1})
        assert session.set_many({"cart": ["a"], "user": {"id": 2}}) == 1
        assert session.get("user") == {"id": 2}
        assert session.get("none", "default") == "default"
        assert session.get_many("cart", "none") == [["a"], None]
        assert session.has("cart")
        assert not session.has("none")
        assert not session.add("cart", [])
        assert session.add("new", None)
        assert session.incr("clicks", 3) == 3
        assert session.length() == 4
        assert session.delete("new", "none") == 1
        assert session.all() == {"user": {"id": 2}, "cart": ["a"], "clicks": 3}
        assert session.expire(60)
        assert 59 < (session.ttl() or 0) <= 60
        assert session.persist()
        assert session.exists()
        assert session.drop()
        assert session.all() == {}
        users = client.store.map("users", User)
        users.set("max", User("Max"))
        assert users.all() == {"max": User("Max")}

    def test_lists(self, client: nexo.Client) -> None:
        recent = client.store.list("recent", int)
        assert recent.push(1, 2, 3) == 3
        assert recent.push_left(0) == 4
        assert recent.range() == [0, 1, 2, 3]
        assert recent.range(-2) == [2, 3]
        assert (recent.get(0), recent.get(-1), recent.get(9), recent.get(-9)) == (0, 3, None, None)
        recent.replace(1, 9)
        assert recent.remove(9) == 1
        assert recent.trim(0, 2) == 1
        assert recent.pop() == 2
        assert recent.pop_left() == 0
        assert recent.pop(default=-1) == -1
        assert recent.pop_many(5) == []
        assert recent.length() == 0
        with pytest.raises(InvalidInput, match="outside"):
            recent.replace(0, 1)

    def test_sets(self, client: nexo.Client) -> None:
        tags = client.store.set_("tags", str)
        assert tags.add("a", "b", "a") == 2
        assert tags.contains("a")
        assert tags.contains_many("b", "c") == [True, False]
        assert sorted(tags.members()) == ["a", "b"]
        assert tags.remove("a", "c") == 1
        assert tags.pop() == "b"
        assert tags.pop(default="none") == "none"
        assert tags.length() == 0

    def test_a_wrong_type_says_what_the_key_holds(self, client: nexo.Client) -> None:
        client.store.list("l").push(1)
        with pytest.raises(WrongType, match="holds a list"):
            client.store.get("l")
        with pytest.raises(WrongType, match="not a set"):
            client.store.set_("l").add(1)
        info = client.store.inspect("l")
        assert info is not None
        assert (info.kind, info.items, info.ttl_ms) == ("list", 1, None)


class TestAsyncClient:
    async def test_the_same_in_async(self, aclient: nexo.AsyncClient) -> None:
        store = aclient.store
        await store.set("k", {"a": 1}, ttl=10)
        assert await store.get("k") == {"a": 1}
        assert [key async for key in store.keys("")] == ["k"]
        assert await store.map("m").set("f", 1)
        assert await store.list("l").push(1, 2) == 2
        assert await store.set_("s").add("x") == 1
        assert await store.map.get("k") == {"a": 1}
        assert await store.clear() == 4

    async def test_counting_from_many_tasks_loses_nothing(self, aclient: nexo.AsyncClient) -> None:
        totals = await asyncio.gather(*(aclient.store.incr("n") for _ in range(500)))
        assert sorted(totals) == list(range(1, 501))

    async def test_only_one_of_many_gets_the_lock(self, aclient: nexo.AsyncClient) -> None:
        tries = [aclient.store.set("lock", n, if_absent=True) for n in range(50)]
        assert sum(await asyncio.gather(*tries)) == 1

    async def test_compare_and_set_loops_lose_no_update(self, aclient: nexo.AsyncClient) -> None:
        await aclient.store.set("doc", {"n": 0, "name": "é"})

        async def add_one() -> None:
            while True:
                doc = await aclient.store.get("doc")
                if await aclient.store.cas("doc", doc, doc | {"n": doc["n"] + 1}):
                    return

        await asyncio.gather(*(add_one() for _ in range(20)))
        assert (await aclient.store.get("doc"))["n"] == 20

    async def test_an_expired_key_is_gone_and_reclaimed(self, aclient: nexo.AsyncClient) -> None:
        await aclient.store.mset({f"k{n}": n for n in range(100)}, ttl=0.05)
        await _until_no_keys(aclient.store)
        assert [key async for key in aclient.store.keys("k")] == []

    async def test_garbage_does_no_harm(self, aclient: nexo.AsyncClient) -> None:
        await aclient.store.set("stays", 1)
        link = aclient.link(nexo.Broker.STORE)
        for op in (Op.MAP_SET, Op.MAP_GET, *wire.REQUESTS):
            for payload in (b"", b"\xff" * 9, b"\x91\xa1k", b"\xdd\xff\xff\xff\xff"):
                with contextlib.suppress(nexo.NexoError):  # a few of these are requests for "k"
                    await link.call(op, payload)
        assert await aclient.store.get("stays") == 1


async def _until_no_keys(store: Store) -> None:
    async def empty() -> bool:
        return not (await store.info()).keys

    await eventually(empty)


class TestServer:
    def test_the_budget_evicts_what_was_not_used(self) -> None:
        with testing.server(store_max_bytes=20_000) as url, nexo.connect(url) as client:
            client.store.set("kept", "x")
            for n in range(200):
                client.store.set(f"k{n}", "x" * 100)
                client.store.get("kept")
            assert client.store.get("kept") == "x"
            assert not client.store.exists("k0")
            assert client.store.exists("k199")
            with pytest.raises(PayloadTooLarge):
                client.store.set("big", "x" * 20_000)
            info = client.store.info()
            assert info.evicted > 0
            assert info.used_bytes <= 20_000

    def test_a_restart_is_warm_when_snapshots_are_on(self, tmp_path: Path) -> None:
        server = testing.Server(data_dir=tmp_path, store_snapshot_ms=60_000)
        server.start()
        with nexo.connect(server.url) as client:
            client.store.mset({f"k{n}": n for n in range(3_000)})
            client.store.map("m").set("f", User("Max"))
            client.store.set("short", 1, ttl=3600)
        server.stop()
        server.start()
        with nexo.connect(server.url) as client:
            assert client.store.get("k2999") == 2999
            assert client.store.map("m", User).get("f") == User("Max")
            assert 3500 < (client.store.ttl("short") or 0) <= 3600
        server.close()

    def test_a_save_while_running_survives_a_kill(self, tmp_path: Path) -> None:
        server = testing.Server(data_dir=tmp_path, store_snapshot_ms=30)
        server.start()
        with nexo.connect(server.url) as client:
            client.store.mset({f"k{n}": n for n in range(5_000)})
            wait_until(lambda: client.store.info().snapshot.saved_ms is not None)
        server.crash()
        server.start()
        with nexo.connect(server.url) as client:
            assert client.store.info().keys == 5_000
        server.close()

    def test_without_snapshots_a_planned_restart_is_warm_and_a_crash_leaves_nothing(
        self, nexo_server: testing.Server
    ) -> None:
        with nexo.connect(nexo_server.url) as client:
            client.store.set("k", 1)
        nexo_server.stop()
        nexo_server.start()
        with nexo.connect(nexo_server.url) as client:
            assert client.store.get("k") == 1
        nexo_server.crash()
        nexo_server.start()
        with nexo.connect(nexo_server.url) as client:
            assert client.store.get("k") is None
