"""Keys and plain values (SPEC B1, B2)."""

from __future__ import annotations

import pytest

from nexo.brokers.store.engine import SCAN_LOOKS, StoreEngine
from nexo.errors import InvalidInput, PayloadTooLarge, WrongType
from nexo.model.store import MAX_TTL_MS

NOW = 1_000_000


def text(value: str) -> bytes:
    return b"\x01" + value.encode()


def number(value: int | float) -> bytes:
    return b"\x02" + repr(value).encode()


@pytest.fixture
def store() -> StoreEngine:
    return StoreEngine()


class TestPlainValues:
    def test_a_value_comes_back_as_the_bytes_it_was(self, store: StoreEngine) -> None:
        for value in (b"\x00", b"\x01", b"\x02null", b"\x00\x00\xff", text("né 🙂")):
            store.put("k", value)
            assert store.get("k", NOW) == value  # SPEC A4: empty, null and absent are distinct
        assert store.get("absent", NOW) is None

    def test_delete_says_how_many_keys_there_were(self, store: StoreEngine) -> None:
        store.mset({"a": text("1"), "b": text("2")}, NOW)
        assert store.delete(["a", "a", "b", "c"], NOW) == 2
        assert store.delete(["a"], NOW) == 0
        assert (len(store.keyspace), store.keyspace.used_bytes) == (0, 0)

    def test_exists_counts_the_keys_there_are(self, store: StoreEngine) -> None:
        store.put("a", text("1"))
        assert store.exists(["a", "b", "a"], NOW) == 2

    def test_mget_keeps_the_order_of_the_keys(self, store: StoreEngine) -> None:
        store.mset({"a": text("1"), "b": text("2")}, NOW)
        assert store.mget(["b", "x", "a"], NOW) == [text("2"), None, text("1")]

    @pytest.mark.parametrize("key", ["", "x" * 65_537, "é" * 32_769])
    def test_a_key_outside_1_byte_to_64_kib_is_refused(self, store: StoreEngine, key: str) -> None:
        with pytest.raises(InvalidInput, match="key"):
            store.put(key, text("1"))
        with pytest.raises(InvalidInput, match="key"):
            store.mset({"good": text("1"), key: text("2")}, NOW)
        assert len(store.keyspace) == 0  # nothing changed

    def test_the_longest_key_is_accepted(self, store: StoreEngine) -> None:
        store.put("é" * 32_768, text("1"))
        assert store.get("é" * 32_768, NOW) == text("1")

    def test_getdel_takes_the_value_away(self, store: StoreEngine) -> None:
        store.put("k", text("once"))
        assert store.getdel("k", NOW) == text("once")
        assert store.getdel("k", NOW) is None

    def test_clear_forgets_everything(self, store: StoreEngine) -> None:
        store.mset({"a": text("1"), "b": text("2")}, NOW, ttl_ms=50)
        store.maps.set("m", {"f": text("1")}, NOW)
        assert store.clear() == 3
        assert store.scan(NOW).keys == []
        assert store.maps.length("m", NOW) == 0


class TestConditions:
    def test_only_if_absent_sets_once(self, store: StoreEngine) -> None:
        assert store.set("k", text("1"), NOW, if_absent=True).done
        assert not store.set("k", text("2"), NOW, if_absent=True).done
        assert store.get("k", NOW) == text("1")

    def test_an_expired_key_counts_as_absent(self, store: StoreEngine) -> None:
        store.set("k", text("1"), NOW, ttl_ms=10)
        assert not store.set("k", text("2"), NOW + 9, if_absent=True).done
        assert store.set("k", text("2"), NOW + 10, if_absent=True).done

    def test_compare_and_set_needs_the_expected_value(self, store: StoreEngine) -> None:
        assert not store.set("k", text("2"), NOW, if_equal=text("1")).done
        assert store.get("k", NOW) is None
        store.put("k", text("1"))
        assert store.set("k", text("2"), NOW, if_equal=text("1")).done
        assert not store.set("k", text("3"), NOW, if_equal=text("1")).done
        assert store.get("k", NOW) == text("2")

    def test_compare_and_set_sees_through_the_spelling_of_json_only(
        self, store: StoreEngine
    ) -> None:
        store.put("k", b'\x02{"a": 1, "b": "\\u00e9"}')
        same = '\x02{"b":"é","a":1}'.encode()
        assert store.set("k", same, NOW, if_equal=same).done
        for other in (b'\x02{"a":true,"b":"x"}', b"\x02not json", b'\x01{"b":"e","a":1}'):
            assert not store.set("k", text("no"), NOW, if_equal=other).done

    def test_the_previous_value_is_returned_when_asked_for(self, store: StoreEngine) -> None:
        assert store.set("k", text("1"), NOW, get_previous=True).previous is None
        assert store.set("k", text("2"), NOW, get_previous=True).previous == text("1")
        refused = store.set("k", text("3"), NOW, get_previous=True, if_absent=True)
        assert (refused.done, refused.previous) == (False, text("2"))
        assert store.set("k", text("4"), NOW).previous is None

    def test_contradicting_conditions_are_refused(self, store: StoreEngine) -> None:
        with pytest.raises(InvalidInput, match="either"):
            store.set("k", text("1"), NOW, if_absent=True, if_equal=text("1"))
        with pytest.raises(InvalidInput, match="either"):
            store.set("k", text("1"), NOW, ttl_ms=5, keep_ttl=True)
        assert store.get("k", NOW) is None


class TestLifeTime:
    def test_a_key_ends_to_the_millisecond(self, store: StoreEngine) -> None:
        store.set("k", text("1"), NOW, ttl_ms=250)
        assert store.get("k", NOW + 249) == text("1")
        assert store.get("k", NOW + 250) is None
        assert store.keyspace.used_bytes == 0

    def test_no_ttl_means_no_expiry(self, store: StoreEngine) -> None:
        store.put("k", text("1"))
        assert store.get("k", NOW + MAX_TTL_MS * 2) == text("1")

    def test_setting_again_drops_the_ttl_unless_it_is_kept(self, store: StoreEngine) -> None:
        store.set("k", text("1"), NOW, ttl_ms=100)
        store.set("k", text("2"), NOW, keep_ttl=True)
        assert store.inspect("k", NOW).ttl_ms == 100  # type: ignore[union-attr]
        store.set("k", text("3"), NOW)
        assert store.inspect("k", NOW).ttl_ms is None  # type: ignore[union-attr]
        store.set("k", text("4"), NOW, ttl_ms=100)
        store.put("k", text("5"))
        assert store.get("k", NOW + 1000) == text("5")

    def test_expire_and_persist_change_the_life_time_only(self, store: StoreEngine) -> None:
        store.put("k", text("1"))
        assert store.expire("k", 100, NOW)
        assert store.expire("k", 300, NOW)
        assert store.get("k", NOW + 200) == text("1")
        assert store.persist("k", NOW + 200)
        assert not store.persist("k", NOW + 200)
        assert store.get("k", NOW + 500) == text("1")
        assert not store.expire("absent", 100, NOW)
        assert not store.persist("absent", NOW)

    @pytest.mark.parametrize("ttl_ms", [0, -1, MAX_TTL_MS + 1])
    def test_an_impossible_ttl_is_refused_and_changes_nothing(
        self, store: StoreEngine, ttl_ms: int
    ) -> None:
        store.put("k", text("old"))
        with pytest.raises(InvalidInput, match="TTL"):
            store.set("k", text("new"), NOW, ttl_ms=ttl_ms)
        with pytest.raises(InvalidInput, match="TTL"):
            store.expire("k", ttl_ms, NOW)
        with pytest.raises(InvalidInput, match="TTL"):
            store.mset({"k": text("new")}, NOW, ttl_ms=ttl_ms)
        with pytest.raises(InvalidInput, match="TTL"):
            store.incr("n", 1, NOW, ttl_ms=ttl_ms)
        assert store.get("k", NOW) == text("old")
        assert store.get("n", NOW) is None

    def test_expired_keys_are_seen_by_no_command(self, store: StoreEngine) -> None:
        store.mset({"a": text("1"), "b": text("2")}, NOW, ttl_ms=10)
        later = NOW + 10
        assert store.scan(later).keys == []
        assert store.exists(["a", "b"], later) == 0
        assert store.inspect("a", later) is None
        assert store.delete(["a"], later) == 0
        assert store.incr("b", 5, later) == 5


class TestNumbers:
    def test_a_new_counter_starts_at_zero(self, store: StoreEngine) -> None:
        assert store.incr("n", 5, NOW) == 5
        assert store.incr("n", -7, NOW) == -2
        assert store.get("n", NOW) == number(-2)

    def test_floats_add_up(self, store: StoreEngine) -> None:
        assert store.incr("n", 1, NOW) == 1
        assert store.incr("n", 0.5, NOW) == 1.5
        assert store.get("n", NOW) == number(1.5)

    def test_a_ttl_is_given_to_a_new_counter_only(self, store: StoreEngine) -> None:
        store.incr("hits", 1, NOW, ttl_ms=1000)
        store.incr("hits", 1, NOW + 900, ttl_ms=1000)
        assert store.get("hits", NOW + 999) == number(2)
        assert store.incr("hits", 1, NOW + 1000, ttl_ms=1000) == 1  # a new window

    def test_what_is_not_a_number_is_not_counted(self, store: StoreEngine) -> None:
        for value in (text("five"), b"\x00", b"\x02true", b'\x02"5"', b"\x02[1]", b"\x02nope"):
            store.put("k", value)
            with pytest.raises(WrongType, match="key 'k'"):
                store.incr("k", 1, NOW)
            assert store.get("k", NOW) == value

    def test_a_sum_out_of_range_is_refused(self, store: StoreEngine) -> None:
        for start, by in ((2**63 - 1, 1), (-(2**63), -1), (1.7e308, 1.7e308), (0, float("nan"))):
            store.put("k", number(start))
            with pytest.raises(InvalidInput):
                store.incr("k", by, NOW)
            assert store.get("k", NOW) == number(start)
        store.put("k", b"\x02" + b"9" * 400)
        with pytest.raises(InvalidInput):
            store.incr("k", 0.5, NOW)


class TestTypes:
    def test_plain_commands_refuse_collections(self, store: StoreEngine) -> None:
        store.maps.set("m", {"f": text("1")}, NOW)
        store.lists.push("l", [text("1")], NOW)
        store.sets.add("s", [text("1")], NOW)
        for key, kind in (("m", "map"), ("l", "list"), ("s", "set")):
            with pytest.raises(WrongType, match=f"holds a {kind}"):
                store.get(key, NOW)
            with pytest.raises(WrongType):
                store.incr(key, 1, NOW)
            with pytest.raises(WrongType):
                store.set(key, text("2"), NOW, if_equal=text("1"))
            with pytest.raises(WrongType):
                store.set(key, text("2"), NOW, get_previous=True)
            assert store.inspect(key, NOW).kind == kind  # type: ignore[union-attr]

    def test_a_plain_set_replaces_a_collection(self, store: StoreEngine) -> None:
        store.maps.set("m", {"f": text("1")}, NOW)
        store.put("m", text("plain"))
        assert store.get("m", NOW) == text("plain")
        assert store.delete(["m"], NOW) == 1
        assert store.keyspace.used_bytes == 0


class TestScan:
    def test_pages_come_in_order_and_end(self, store: StoreEngine) -> None:
        store.mset({f"k{n:03}": text("") for n in range(250)}, NOW)
        seen, cursor = [], ""
        while True:
            page = store.scan(NOW, cursor=cursor, limit=100)
            seen += page.keys
            if page.cursor is None:
                break
            cursor = page.cursor
        assert seen == [f"k{n:03}" for n in range(250)]

    def test_prefix_and_glob_choose(self, store: StoreEngine) -> None:
        store.mset(
            dict.fromkeys(["user:1", "user:2", "user:10", "use", "visit:1", "[x"], text("")), NOW
        )
        assert store.scan(NOW, prefix="user:").keys == ["user:1", "user:10", "user:2"]
        assert store.scan(NOW, glob="user:?").keys == ["user:1", "user:2"]
        assert store.scan(NOW, glob="*:1").keys == ["user:1", "visit:1"]
        assert store.scan(NOW, glob="u[!s]*").keys == []
        assert store.scan(NOW, glob="[[]x").keys == ["[x"]
        assert store.scan(NOW, prefix="user:1", glob="user:*").keys == ["user:1", "user:10"]
        assert store.scan(NOW, prefix="v", glob="user:*").keys == []

    def test_keys_that_stay_are_seen_once_whatever_else_changes(self, store: StoreEngine) -> None:
        stay = [f"stay{n:04}" for n in range(0, 2000, 2)]
        store.mset(dict.fromkeys(stay, text("")), NOW)
        seen, cursor, turn = [], "", 0
        while True:
            page = store.scan(NOW, cursor=cursor, limit=37)
            seen += page.keys
            if page.cursor is None:
                break
            cursor = page.cursor
            turn += 1
            store.mset({f"stay{n:04}": text("") for n in range(turn, 2000, 97) if n % 2}, NOW)
            store.delete([f"stay{n:04}" for n in range(turn, 2000, 89) if n % 2], NOW)
        assert len(seen) == len(set(seen))
        assert set(stay) <= set(seen)

    def test_a_page_looks_at_a_bounded_number_of_keys(self, store: StoreEngine) -> None:
        store.mset({f"{n:06}": text("") for n in range(SCAN_LOOKS + 5)}, NOW)
        page = store.scan(NOW, glob="*nothing")
        assert (page.keys, page.cursor) == ([], f"{SCAN_LOOKS - 1:06}")
        assert store.scan(NOW, glob="*nothing", cursor=page.cursor or "").cursor is None

    def test_a_page_without_keys_is_refused(self, store: StoreEngine) -> None:
        with pytest.raises(InvalidInput):
            store.scan(NOW, limit=0)


@pytest.mark.parametrize("kind", [b"\x00", b"\x01", b"\x02"])
def test_a_number_is_one_whatever_its_type_and_keeps_it(kind: bytes) -> None:  # SPEC B2
    store = StoreEngine()
    store.set("a", kind + b"41", 0)
    assert (store.incr("a", 1, 0), store.get("a", 0)) == (42, kind + b"42")
    for none in (b"one", b"", b'"1"', b"1x", b"\xff"):
        store.set("a", kind + none, 0)
        with pytest.raises(WrongType, match=r"not a number$"):
            store.incr("a", 1, 0)


class TestDeleteIf:
    def test_only_the_expected_value_is_deleted(self, store: StoreEngine) -> None:  # SPEC O1
        store.set("k", text("mine"), NOW)
        assert not store.delete_if("k", text("yours"), NOW)
        assert store.get("k", NOW) == text("mine")
        assert store.delete_if("k", text("mine"), NOW)
        assert not store.delete_if("k", text("mine"), NOW)
        assert store.get("k", NOW) is None

    def test_json_is_compared_as_json(self, store: StoreEngine) -> None:
        store.set("k", b'\x02{"a": 1, "b": 2}', NOW)
        assert store.delete_if("k", b'\x02{"b":2,"a":1}', NOW)

    def test_a_collection_has_no_value_to_compare(self, store: StoreEngine) -> None:
        store.sets.add("k", [text("x")], NOW)
        with pytest.raises(WrongType):
            store.delete_if("k", text("x"), NOW)


class TestRepliesAreBounded:  # G6
    def test_reading_too_much_is_refused(self) -> None:
        store = StoreEngine(max_reply_bytes=1_000)
        store.set("k", b"\0" * 600, NOW)
        assert store.mget(["k", "none"], NOW) == [b"\0" * 600, None]
        store.maps.set("map", {"a": b"\0" * 600, "b": b"\0" * 600}, NOW)
        store.lists.push("list", [b"\0" * 600, b"\1" * 600], NOW)
        store.sets.add("set", [b"\0" * 600, b"\1" * 600], NOW)
        for read in (
            lambda: store.mget(["k", "k"], NOW),
            lambda: store.maps.get("map", ["a", "a"], NOW),
            lambda: store.maps.all("map", NOW),
            lambda: store.lists.range("list", 0, None, NOW),
            lambda: store.sets.members("set", NOW),
        ):
            with pytest.raises(PayloadTooLarge, match="ask for less"):
                read()

    def test_taking_too_much_takes_less(self) -> None:
        store = StoreEngine(max_reply_bytes=1_000)
        store.lists.push("list", [bytes([n]) * 600 for n in range(3)], NOW)
        store.sets.add("set", [bytes([n]) * 600 for n in range(3)], NOW)
        assert (len(store.lists.pop("list", 3, NOW)), store.lists.length("list", NOW)) == (2, 1)
        assert (len(store.sets.pop("set", 3, NOW)), store.sets.length("set", NOW)) == (2, 1)

    def test_a_page_of_long_keys_is_short(self, store: StoreEngine) -> None:
        keys = [f"{n:03}" + "x" * 60_000 for n in range(40)]
        store.mset(dict.fromkeys(keys, text("")), NOW)
        page = store.scan(NOW, limit=10_000)
        assert len(page.keys) == 18
        assert store.scan(NOW, limit=10_000, cursor=page.cursor or "").keys[0] == keys[18]
