"""Ordered groups: assignment, generations, commits (SPEC G5-G6)."""

from __future__ import annotations

import pytest

from nexo.brokers.stream.groups.assignment import assign
from nexo.brokers.stream.groups.ordered import STANDALONE, OrderedGroup
from nexo.brokers.stream.groups.ordered_state import OffsetCommit
from nexo.errors import Fenced, InvalidInput, InvalidOption, NotMember, NotOwner
from nexo.options.described import merged
from nexo.options.stream import OrderedOptions, Strategy

NOW = 1_000_000
EVENTS = {"events": 8}


def confirm(group: OrderedGroup, member: str, now_ms: int = NOW) -> list[int]:
    """Learn the generation, let go, confirm; returns the partitions owned then."""
    heard = group.heartbeat(member, 0, now_ms)
    return [at[1] for at in group.heartbeat(member, heard.generation, now_ms).owned]


def pair(strategy: Strategy = "range") -> OrderedGroup:
    group = OrderedGroup(OrderedOptions(strategy=strategy))
    group.join("a", EVENTS, NOW)
    group.join("b", EVENTS, NOW)
    confirm(group, "a")
    return group


class TestStrategies:
    def test_range_gives_contiguous_halves(self) -> None:
        group = pair("range")
        assert confirm(group, "a") == [0, 1, 2, 3]
        assert confirm(group, "b") == [4, 5, 6, 7]

    def test_round_robin_gives_even_and_odd(self) -> None:
        group = pair("roundRobin")
        assert confirm(group, "a") == [0, 2, 4, 6]
        assert confirm(group, "b") == [1, 3, 5, 7]

    def test_range_gives_the_rest_to_the_first(self) -> None:
        members = {name: {"t"} for name in "abc"}
        owners = assign("range", members, {"t": 8})
        assert [list(owners.values()).count(name) for name in "abc"] == [3, 3, 2]

    @pytest.mark.parametrize("strategy", ["range", "roundRobin"])
    def test_only_subscribers_of_a_topic_own_its_partitions(self, strategy: Strategy) -> None:
        members = {"a": {"x"}, "b": {"y"}, "c": {"x", "y"}}
        owners = assign(strategy, members, {"x": 3, "y": 3, "unwanted": 2})
        assert len(owners) == 6
        assert all(topic in members[name] for (topic, _), name in owners.items())

    def test_a_member_without_partitions_owns_nothing(self) -> None:
        group = OrderedGroup()
        group.join("a", {"one": 1}, NOW)
        assert group.join("b", {"one": 1}, NOW).owned == []
        confirm(group, "a")
        assert confirm(group, "b") == []


class TestRebalance:
    def test_the_first_member_owns_everything(self) -> None:
        assert len(OrderedGroup().join("a", EVENTS, NOW).owned) == 8

    def test_a_partition_is_awaited_until_its_owner_has_let_go(self) -> None:
        group = OrderedGroup()
        group.join("a", EVENTS, NOW)
        joined = group.join("b", EVENTS, NOW)
        assert joined.owned == []
        assert [at[1] for at in joined.awaited] == [4, 5, 6, 7]
        heard = group.heartbeat("a", 1, NOW)
        assert [at[1] for at in heard.revoked] == [4, 5, 6, 7]
        assert group.heartbeat("b", 2, NOW).owned == []
        group.heartbeat("a", 2, NOW)
        assert [at[1] for at in group.heartbeat("b", 2, NOW).owned] == [4, 5, 6, 7]
        assert group.stable

    def test_a_member_is_given_nothing_new_before_it_let_go_of_the_old(self) -> None:
        group = pair("range")
        group.tune(OrderedOptions(strategy="roundRobin"), NOW)
        confirm(group, "b")
        heard = group.heartbeat("a", 2, NOW)
        assert [at[1] for at in heard.owned] == [0, 2]
        assert [at[1] for at in heard.revoked] == [1, 3]
        assert confirm(group, "a") == [0, 2, 4, 6]

    def test_the_generation_rises_on_join_leave_and_expiry(self) -> None:
        group = OrderedGroup(OrderedOptions(session_timeout_ms=100))
        seen = [group.generation]
        group.join("a", EVENTS, NOW)
        seen.append(group.generation)
        group.join("b", EVENTS, NOW)
        seen.append(group.generation)
        group.leave("b", NOW)
        seen.append(group.generation)
        assert group.expire(NOW + 100) == ["a"]
        seen.append(group.generation)
        assert seen == [0, 1, 2, 3, 4]

    def test_the_leader_is_the_first_member_and_is_replaced(self) -> None:
        group = pair()
        assert group.leader == "a"
        group.leave("a", NOW)
        assert group.leader == "b"
        assert group.assignment("b").leader == "b"

    def test_what_a_member_leaves_goes_to_the_rest(self) -> None:
        group = pair()
        group.leave("a", NOW)
        assert confirm(group, "b") == list(range(8))

    def test_a_silent_member_expires(self) -> None:
        group = OrderedGroup(OrderedOptions(session_timeout_ms=100))
        group.join("a", EVENTS, NOW)
        group.join("b", EVENTS, NOW)
        group.heartbeat("b", 2, NOW + 50)
        assert group.next_deadline() == NOW + 100
        assert group.expire(NOW + 99) == []
        assert group.expire(NOW + 100) == ["a"]
        with pytest.raises(NotMember):
            group.heartbeat("a", 2, NOW + 101)

    def test_a_member_that_never_lets_go_is_put_out(self) -> None:
        group = OrderedGroup(OrderedOptions(session_timeout_ms=9_000, rebalance_timeout_ms=100))
        group.join("a", EVENTS, NOW)
        group.join("b", EVENTS, NOW + 10)
        group.heartbeat("a", 1, NOW + 109)
        assert group.next_deadline() == NOW + 110
        assert group.expire(NOW + 110) == ["a"]
        assert confirm(group, "b", NOW + 111) == list(range(8))

    def test_a_member_that_joins_again_starts_anew(self) -> None:
        group = pair()
        again = group.join("a", EVENTS, NOW)
        assert group.leader == "b"
        assert [at[1] for at in again.owned] == []
        assert confirm(group, "b") == [0, 1, 2, 3]
        assert confirm(group, "a") == [4, 5, 6, 7]

    def test_a_generation_from_the_future_is_refused(self) -> None:
        with pytest.raises(Fenced):
            pair().heartbeat("a", 99, NOW)

    def test_a_member_none_of_whose_topics_exists_yet_owns_nothing(self) -> None:
        assert OrderedGroup().join("a", {}, NOW).owned == []


class TestCommit:
    def test_a_commit_keeps_offset_metadata_and_time(self) -> None:
        group = pair()
        group.commit("a", 2, [OffsetCommit("events", 0, 41, "note")], NOW)
        stored = group.committed("events", 0)
        assert stored is not None
        assert (stored.offset, stored.metadata, stored.committed_ms) == (41, "note", NOW)
        assert group.committed("events", 1) is None

    def test_a_commit_never_moves_back(self) -> None:
        group = pair()
        group.commit("a", 2, [OffsetCommit("events", 0, 41)], NOW)
        group.commit("a", 2, [OffsetCommit("events", 0, 7)], NOW)
        assert group.offsets["events", 0].offset == 41

    def test_a_commit_after_a_seek_may_move_back(self) -> None:
        group = pair()
        group.commit("a", 2, [OffsetCommit("events", 0, 41)], NOW)
        group.commit("a", 2, [OffsetCommit("events", 0, 7)], NOW, rewind=True)
        assert group.offsets["events", 0].offset == 7

    def test_a_stale_generation_is_refused(self) -> None:
        group = pair()
        with pytest.raises(Fenced, match="generation 1"):
            group.commit("a", 1, [OffsetCommit("events", 0, 1)], NOW)

    def test_what_another_owns_is_refused_and_nothing_stored(self) -> None:
        group = pair()
        with pytest.raises(NotOwner, match="events/5"):
            group.commit("a", 2, [OffsetCommit("events", 0, 1), OffsetCommit("events", 5, 1)], NOW)
        assert not group.offsets

    def test_a_stranger_is_refused(self) -> None:
        with pytest.raises(NotMember):
            pair().commit("z", 2, [OffsetCommit("events", 0, 1)], NOW)

    def test_the_old_owner_commits_what_it_processed_before_it_lets_go(self) -> None:
        group = OrderedGroup()
        group.join("a", EVENTS, NOW)
        group.join("b", EVENTS, NOW)
        heard = group.heartbeat("a", 1, NOW)
        group.commit("a", heard.generation, [OffsetCommit("events", 7, 3)], NOW)
        group.heartbeat("a", heard.generation, NOW)
        with pytest.raises(NotOwner):
            group.commit("a", heard.generation, [OffsetCommit("events", 7, 4)], NOW)
        assert group.offsets["events", 7].offset == 3

    def test_a_standalone_consumer_commits_while_there_are_no_members(self) -> None:
        group = OrderedGroup()
        group.commit("", STANDALONE, [OffsetCommit("events", 0, 5)], NOW)
        assert group.offsets["events", 0].offset == 5
        group.join("a", EVENTS, NOW)
        with pytest.raises(Fenced, match="live members"):
            group.commit("", STANDALONE, [OffsetCommit("events", 0, 6)], NOW)


class TestAdministration:
    def test_after_a_reset_the_owner_starts_again_from_the_new_offset(self) -> None:
        group = pair()
        group.commit("a", 2, [OffsetCommit("events", 0, 41)], NOW)
        group.reset([OffsetCommit("events", 0, 3)], NOW)
        heard = group.heartbeat("a", 2, NOW)
        assert [at[1] for at in heard.revoked] == [0]
        with pytest.raises(NotOwner):
            group.commit("a", heard.generation, [OffsetCommit("events", 0, 42)], NOW)
        assert confirm(group, "a") == [0, 1, 2, 3]
        assert group.offsets["events", 0].offset == 3

    def test_a_reset_to_the_beginning_says_that_nothing_was_processed(self) -> None:
        group = pair()
        group.reset([OffsetCommit("events", 0, -1)], NOW)
        assert group.offsets["events", 0].offset == -1
        for offset in (-2, -10):
            with pytest.raises(InvalidInput):
                group.reset([OffsetCommit("events", 0, offset)], NOW)
        with pytest.raises(InvalidInput):
            group.commit("a", group.generation, [OffsetCommit("events", 0, -1)], NOW)

    def test_a_group_can_begin_at_an_empty_partition(self) -> None:  # SPEC G4
        group = pair()
        group.commit("a", group.generation, [OffsetCommit("events", 0, -1)], NOW)
        assert group.offsets["events", 0].offset == -1
        group.commit("a", group.generation, [OffsetCommit("events", 0, 3)], NOW)
        for offset in (-1, -2):
            with pytest.raises(InvalidInput, match="below 0"):
                group.commit("a", group.generation, [OffsetCommit("events", 0, offset)], NOW)

    def test_a_deleted_topic_takes_its_offsets_along(self) -> None:
        group = pair()
        group.commit("a", 2, [OffsetCommit("events", 0, 41)], NOW)
        group.forget("events", NOW)
        assert not group.offsets
        assert confirm(group, "a") == []

    def test_another_strategy_moves_partitions(self) -> None:
        group = pair()
        group.tune(OrderedOptions(strategy="roundRobin"), NOW)
        confirm(group, "a")
        confirm(group, "b")
        assert confirm(group, "a") == [0, 2, 4, 6]

    def test_offsets_and_generation_survive_and_members_join_again(self) -> None:
        group = pair()
        group.commit("a", 2, [OffsetCommit("events", 0, 41)], NOW)
        again = OrderedGroup.restore(group.snapshot())
        assert again.offsets == group.offsets
        with pytest.raises(NotMember):
            again.heartbeat("a", 2, NOW)
        assert again.join("a", EVENTS, NOW).generation == 3

    def test_an_unknown_strategy_is_refused(self) -> None:
        with pytest.raises(InvalidOption, match="sticky"):
            merged({"strategy": "sticky"}, OrderedOptions(), "group")
