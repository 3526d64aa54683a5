"""Maps, lists and sets as values (SPEC B2)."""

from __future__ import annotations

import pytest

from nexo.brokers.store.engine import StoreEngine
from nexo.errors import InvalidInput, WrongType

NOW = 1_000_000
A, B, C, D = b"\x01a", b"\x01b", b"\x01c", b"\x01d"


@pytest.fixture
def store() -> StoreEngine:
    return StoreEngine()


class TestMaps:
    def test_fields_are_set_read_and_removed(self, store: StoreEngine) -> None:
        maps = store.maps
        assert maps.set("m", {"x": A, "y": B}, NOW) == 2
        assert maps.set("m", {"y": C, "z": D}, NOW) == 1
        assert maps.get("m", ["z", "no", "y"], NOW) == [D, None, C]
        assert maps.all("m", NOW) == {"x": A, "y": C, "z": D}
        assert maps.delete("m", ["x", "no"], NOW) == 1
        assert maps.length("m", NOW) == 2

    def test_absent_fields_only(self, store: StoreEngine) -> None:
        store.maps.set("m", {"x": A}, NOW)
        assert store.maps.set("m", {"x": B, "y": B}, NOW, if_absent=True) == 1
        assert store.maps.all("m", NOW) == {"x": A, "y": B}

    def test_numbers_in_fields_count(self, store: StoreEngine) -> None:
        assert store.maps.incr("m", "n", 3, NOW) == 3
        assert store.maps.incr("m", "n", -1, NOW) == 2
        store.maps.set("m", {"t": A}, NOW)
        with pytest.raises(WrongType, match="field 't' of 'm'"):
            store.maps.incr("m", "t", 1, NOW)

    def test_nothing_to_set_is_an_error(self, store: StoreEngine) -> None:
        with pytest.raises(InvalidInput):
            store.maps.set("m", {}, NOW)
        assert store.exists(["m"], NOW) == 0


class TestLists:
    def test_both_ends_push_and_pop(self, store: StoreEngine) -> None:
        lists = store.lists
        assert lists.push("l", [B, C], NOW) == 2
        assert lists.push("l", [A, D], NOW, left=True) == 4
        assert lists.range("l", 0, None, NOW) == [D, A, B, C]
        assert lists.pop("l", 1, NOW) == [C]
        assert lists.pop("l", 2, NOW, left=True) == [D, A]
        assert lists.length("l", NOW) == 1

    def test_ranges_are_python_slices(self, store: StoreEngine) -> None:
        values = [bytes([1, n]) for n in range(20)]
        store.lists.push("l", values, NOW)
        for start in (-25, -20, -3, 0, 5, 11, 19, 25):
            for stop in (None, -30, -2, 0, 7, 12, 20, 99):
                assert store.lists.range("l", start, stop, NOW) == values[start:stop]

    def test_trim_keeps_a_slice(self, store: StoreEngine) -> None:
        for start, stop in ((0, 3), (-2, None), (2, 4), (4, 2), (0, 0), (9, None)):
            store.delete(["l"], NOW)
            values = [A, B, C, D, A]
            store.lists.push("l", values, NOW)
            kept = values[start:stop]
            assert store.lists.trim("l", start, stop, NOW) == 5 - len(kept)
            assert store.lists.range("l", 0, None, NOW) == kept

    def test_values_are_replaced_and_removed(self, store: StoreEngine) -> None:
        store.lists.push("l", [A, B, A, C, A], NOW)
        store.lists.replace("l", -2, D, NOW)
        assert store.lists.remove("l", A, 2, NOW) == 2
        assert store.lists.range("l", 0, None, NOW) == [B, D, A]
        assert store.lists.remove("l", A, 0, NOW) == 1
        for index in (2, -3):
            with pytest.raises(InvalidInput, match="outside"):
                store.lists.replace("l", index, A, NOW)
        with pytest.raises(InvalidInput, match="outside"):
            store.lists.replace("none", 0, A, NOW)

    @pytest.mark.parametrize("count", [0, -1])
    def test_popping_nothing_is_an_error(self, store: StoreEngine, count: int) -> None:
        with pytest.raises(InvalidInput):
            store.lists.pop("l", count, NOW)
        with pytest.raises(InvalidInput):
            store.sets.pop("s", count, NOW)
        with pytest.raises(InvalidInput):
            store.lists.push("l", [], NOW)
        with pytest.raises(InvalidInput):
            store.lists.remove("l", A, -1, NOW)


class TestSets:
    def test_members_are_distinct(self, store: StoreEngine) -> None:
        sets = store.sets
        assert sets.add("s", [A, B, A], NOW) == 2
        assert sets.add("s", [B, C], NOW) == 1
        assert sets.contains("s", [A, D], NOW) == [True, False]
        assert sets.remove("s", [A, D], NOW) == 1
        assert set(sets.members("s", NOW)) == {B, C}
        assert set(sets.pop("s", 5, NOW)) == {B, C}
        assert sets.contains("s", [B], NOW) == [False]
        with pytest.raises(InvalidInput):
            sets.add("s", [], NOW)


class TestAllKinds:
    def test_a_collection_goes_with_its_last_item(self, store: StoreEngine) -> None:
        store.maps.set("m", {"x": A}, NOW)
        store.lists.push("l", [A], NOW)
        store.sets.add("s", [A], NOW)
        store.maps.delete("m", ["x"], NOW)
        store.lists.pop("l", 1, NOW)
        store.sets.remove("s", [A], NOW)
        assert store.scan(NOW).keys == []
        assert store.keyspace.used_bytes == 0

    def test_commands_on_nothing_find_nothing(self, store: StoreEngine) -> None:
        assert store.maps.all("k", NOW) == {}
        assert store.maps.get("k", ["f"], NOW) == [None]
        assert store.maps.delete("k", ["f"], NOW) == 0
        assert store.lists.pop("k", 1, NOW) == []
        assert store.lists.range("k", 0, None, NOW) == []
        assert store.lists.trim("k", 0, 1, NOW) == 0
        assert store.lists.remove("k", A, 0, NOW) == 0
        assert store.sets.members("k", NOW) == []
        assert store.sets.remove("k", [A], NOW) == 0
        assert store.sets.pop("k", 1, NOW) == []

    def test_another_type_is_refused(self, store: StoreEngine) -> None:
        store.put("k", A)
        with pytest.raises(WrongType, match="holds a value, not a map"):
            store.maps.set("k", {"f": A}, NOW)
        with pytest.raises(WrongType, match="not a list"):
            store.lists.push("k", [A], NOW)
        with pytest.raises(WrongType, match="not a set"):
            store.sets.length("k", NOW)
        assert store.get("k", NOW) == A

    def test_a_collection_expires_whole_and_keeps_its_ttl_while_it_changes(
        self, store: StoreEngine
    ) -> None:
        store.lists.push("l", [A], NOW)
        store.expire("l", 100, NOW)
        store.lists.push("l", [B], NOW + 50)
        assert store.lists.length("l", NOW + 99) == 2
        assert store.lists.length("l", NOW + 100) == 0
        assert store.lists.push("l", [C], NOW + 100) == 1
        assert store.inspect("l", NOW + 100).ttl_ms is None  # type: ignore[union-attr]
