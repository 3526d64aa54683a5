"""Kafka's classic group coordinator: joins, syncs, heartbeats, static members (SPEC L2)."""

from __future__ import annotations

from typing import Any

import pytest

from nexo.brokers.stream.groups.kafka.coordinator import Coordinator
from nexo.brokers.stream.groups.kafka.model import (
    Answer,
    Caller,
    GroupError,
    Join,
    Joined,
    JoinRefused,
    RebalanceState,
    Synced,
)
from nexo.brokers.stream.groups.ordered import STANDALONE, OrderedGroup
from nexo.brokers.stream.groups.ordered_state import OffsetCommit

SESSION_MS, REBALANCE_MS = 10_000, 60_000


def ask(member_id: str = "", *protocols: str, data: bytes = b"sub", **given: Any) -> Join:
    names = protocols or ("range",)
    fields = {"session_timeout_ms": SESSION_MS, "rebalance_timeout_ms": REBALANCE_MS} | given
    rows = tuple((name, data) for name in names)
    return Join("consumer", rows, member_id, asks_for_id=False, **fields)


class Group:
    """A coordinator, the time, and every answer by its ticket."""

    def __init__(self, **options: Any) -> None:
        self.engine = Coordinator(**options)
        self.now = 0
        self.replies: dict[str, Any] = {}
        self._count = 0

    def note(self, answers: list[Answer]) -> None:
        for answer in answers:
            assert answer.ticket not in self.replies, "answered twice"
            self.replies[str(answer.ticket)] = answer.reply

    def join(self, join: Join, new_id: str = "") -> str:
        self._count += 1
        ticket = f"join {self._count}"
        self.note(self.engine.join(ticket, join, new_id, self.now))
        return ticket

    def sync(self, member: str, generation: int | None = None, /, **assignments: bytes) -> str:
        self._count += 1
        ticket = f"sync {self._count}"
        number = self.engine.generation if generation is None else generation
        self.note(self.engine.sync(ticket, Caller(member, number), assignments, self.now))
        return ticket

    def beat(self, member: str, generation: int | None = None) -> GroupError | None:
        number = self.engine.generation if generation is None else generation
        return self.engine.heartbeat(Caller(member, number), self.now)

    def after(self, ms: int) -> None:
        self.now += ms
        while (due := self.engine.next_deadline()) is not None and due <= self.now:
            self.note(self.engine.expire(self.now))

    def leave(self, *members: tuple[str, str | None]) -> list[GroupError | None]:
        results, answers = self.engine.leave(members, self.now)
        self.note(answers)
        return results

    def stable(self, *members: str) -> None:
        """Bring the members, all new or rejoining, to a stable generation."""
        for member in members:
            known = member in self.engine.members
            self.join(ask(member if known else ""), member)
        for member in self.engine.members:
            if self.engine.state is RebalanceState.PREPARING:
                self.join(ask(member))
        shares = {member: member.encode() for member in self.engine.members}
        for member in list(self.engine.members):
            self.sync(member, **shares)
        assert self.engine.state is RebalanceState.STABLE


def error(reply: Any) -> GroupError:
    assert isinstance(reply, JoinRefused)
    return reply.error


def test_the_first_member_leads_and_gives_itself_what_it_decides() -> None:
    group = Group()
    joined = group.replies[group.join(ask(), "a")]
    assert joined == Joined(1, "range", "a", "a", (("a", None, b"sub"),))
    assert group.replies[group.sync("a", a=b"all")] == Synced("range", b"all")
    assert (group.engine.state, group.beat("a")) == (RebalanceState.STABLE, None)


def test_a_new_member_waits_until_the_others_have_joined_again() -> None:
    group = Group()
    group.stable("a")
    waiting = group.join(ask(), "b")
    assert waiting not in group.replies
    assert group.beat("a") is GroupError.REBALANCE_IN_PROGRESS
    again = group.join(ask("a"))
    leader, follower = group.replies[again], group.replies[waiting]
    assert [row[0] for row in leader.members] == ["a", "b"]
    assert (follower.members, follower.leader, follower.generation) == ((), "a", 2)
    first = group.sync("b")
    assert first not in group.replies
    group.sync("a", a=b"1", b=b"2")
    assert group.replies[first] == Synced("range", b"2")


def test_a_new_member_may_have_to_join_with_an_id() -> None:
    group = Group()
    asked = group.join(Join("consumer", (("range", b""),), session_timeout_ms=SESSION_MS), "a")
    assert group.replies[asked] == JoinRefused(GroupError.MEMBER_ID_REQUIRED, "a")
    assert group.engine.state is RebalanceState.EMPTY
    assert group.beat("a", 0) is GroupError.UNKNOWN_MEMBER_ID
    joined = group.replies[group.join(ask("a"))]
    assert joined.member_id == joined.leader == "a"
    late = group.join(Join("consumer", (("range", b""),), session_timeout_ms=SESSION_MS), "b")
    assert error(group.replies[late]) is GroupError.MEMBER_ID_REQUIRED
    group.after(SESSION_MS)
    assert error(group.replies[group.join(ask("b"))]) is GroupError.UNKNOWN_MEMBER_ID


def test_who_does_not_join_again_in_time_is_left_out() -> None:
    group = Group()
    group.stable("a", "b")
    waiting = group.join(ask(), "c")
    for _ in range(REBALANCE_MS // 5_000):
        assert waiting not in group.replies
        group.beat("a")
        group.beat("b")
        group.after(5_000)
    assert group.replies[waiting].leader == "c"
    assert list(group.engine.members) == ["c"]
    assert group.beat("a") is GroupError.UNKNOWN_MEMBER_ID


def test_a_silent_member_is_put_out_and_the_others_join_again() -> None:
    group = Group()
    group.stable("a", "b")
    group.after(SESSION_MS - 1)
    assert group.beat("a") is None
    group.after(1)
    assert list(group.engine.members) == ["a"]
    assert group.beat("a") is GroupError.REBALANCE_IN_PROGRESS
    assert group.replies[group.join(ask("a"))].generation == group.engine.generation
    group.sync("a")
    group.after(SESSION_MS)
    assert (group.engine.state, group.engine.members) == (RebalanceState.EMPTY, {})
    assert group.engine.next_deadline() is None


def test_a_member_whose_request_waits_need_not_send_heartbeats() -> None:
    group = Group()
    group.stable("a", "b")
    waiting = group.join(ask("a"))
    for _ in range(4):
        group.after(SESSION_MS - 1_000)
        group.beat("b")
    assert waiting not in group.replies
    assert set(group.engine.members) == {"a", "b"}


def test_who_never_asks_for_its_assignment_is_put_out() -> None:
    group = Group()
    group.join(ask(), "a")
    group.join(ask(), "b")
    group.join(ask("a"))
    follower = group.sync("b")
    for _ in range(REBALANCE_MS // 5_000):
        group.beat("a")
        group.after(5_000)
    assert error(group.replies[follower]) is GroupError.REBALANCE_IN_PROGRESS
    assert list(group.engine.members) == ["b"]


def test_generations_and_strangers_are_fenced() -> None:
    group = Group()
    group.stable("a")
    old = group.engine.generation
    group.stable("a", "b")
    assert group.beat("a", old) is GroupError.ILLEGAL_GENERATION
    assert error(group.replies[group.sync("a", old)]) is GroupError.ILLEGAL_GENERATION
    assert error(group.replies[group.sync("x")]) is GroupError.UNKNOWN_MEMBER_ID
    assert error(group.replies[group.join(ask("x"))]) is GroupError.UNKNOWN_MEMBER_ID
    assert group.leave(("x", None)) == [GroupError.UNKNOWN_MEMBER_ID]
    assert group.engine.state is RebalanceState.STABLE


def test_commits_are_checked_against_the_generation() -> None:
    group = Group()
    check = group.engine.check_commit
    assert check(Caller("", -1), 0) is None
    group.stable("a")
    generation = group.engine.generation
    assert check(Caller("", -1), 0) is GroupError.UNKNOWN_MEMBER_ID
    assert check(Caller("a", generation), 0) is None
    assert check(Caller("a", generation - 1), 0) is GroupError.ILLEGAL_GENERATION
    waiting = group.join(ask(), "b")
    assert check(Caller("a", generation), 0) is None  # what it gives up is committed first
    group.join(ask("a"))
    assert waiting in group.replies
    assert check(Caller("a", generation + 1), 0) is GroupError.REBALANCE_IN_PROGRESS


def test_the_assignor_is_one_that_all_know_and_most_prefer() -> None:
    group = Group()
    group.join(ask("", "sticky", "range"), "a")
    group.join(ask("", "range", "sticky", "other"), "b")
    group.join(ask("", "range", "sticky"), "c")
    group.join(ask("a", "sticky", "range"))
    assert group.engine.protocol == "range"
    refused = group.replies[group.join(ask("", "other"), "d")]
    assert error(refused) is GroupError.INCONSISTENT_GROUP_PROTOCOL
    connect = Join("connect", (("range", b""),), asks_for_id=False, session_timeout_ms=SESSION_MS)
    assert error(group.replies[group.join(connect, "e")]) is GroupError.INCONSISTENT_GROUP_PROTOCOL
    nothing = Join("consumer", (), asks_for_id=False)
    assert error(group.replies[group.join(nothing, "f")]) is GroupError.INCONSISTENT_GROUP_PROTOCOL
    assert set(group.engine.members) == {"a", "b", "c"}


def test_a_cooperative_rebalance_is_two_generations_and_nobody_stops() -> None:
    group = Group()
    group.stable("a")
    group.stable("a", "b")
    before = group.engine.generation
    for member, data in (("a", b"owns 1"), ("b", b"owns 0")):
        group.join(ask(member, data=data))
    assert group.engine.generation == before + 1
    assert group.beat("a") is None
    group.sync("a", a=b"half", b=b"half")
    assert group.replies[group.sync("b")] == Synced("range", b"half")


def test_a_lost_reply_is_given_again() -> None:
    group = Group()
    group.stable("a", "b")
    generation = group.engine.generation
    again = group.replies[group.join(ask("b"))]
    assert (again.generation, again.members) == (generation, ())
    assert group.replies[group.sync("b")] == Synced("range", b"b")
    group.join(ask("b", data=b"another subscription"))
    assert group.engine.state is RebalanceState.PREPARING


def test_leaving_hands_over_at_once_and_answers_what_waits() -> None:
    group = Group()
    group.stable("a", "b", "c")
    waiting = group.join(ask("b", data=b"more"))
    assert group.leave(("b", None), ("a", None)) == [None, None]
    assert error(group.replies[waiting]) is GroupError.UNKNOWN_MEMBER_ID
    joined = group.replies[group.join(ask("c"))]
    assert (joined.leader, [row[0] for row in joined.members]) == ("c", ["c"])
    group.leave(("c", None))
    assert group.engine.state is RebalanceState.EMPTY


# -- static members ----------------------------------------------------------------


def static(group: Group, *instances: str) -> None:
    """A stable group of static members ``<instance>-1``."""
    for instance in instances:
        group.join(ask(instance_id=instance), f"{instance}-1")
    for instance in instances[:-1]:
        if group.engine.state is RebalanceState.PREPARING:
            group.join(ask(f"{instance}-1", instance_id=instance))
    shares = {member: member.encode() for member in group.engine.members}
    for member in group.engine.members:
        group.sync(member, **shares)
    assert group.engine.state is RebalanceState.STABLE


def test_a_static_member_comes_back_without_a_rebalance() -> None:
    group = Group()
    static(group, "x", "y")
    generation = group.engine.generation
    back = group.replies[group.join(ask(instance_id="y"), "y-2")]
    assert (back.generation, back.leader, back.member_id) == (generation, "x-1", "y-2")
    assert group.replies[group.sync("y-2")] == Synced("range", b"y-1")
    fenced = group.engine.heartbeat(Caller("y-1", generation, "y"), 0)
    assert fenced is GroupError.FENCED_INSTANCE_ID
    assert group.beat("y-1") is GroupError.UNKNOWN_MEMBER_ID
    assert group.engine.heartbeat(Caller("y-2", generation, "y"), 0) is None


@pytest.mark.parametrize("skips", [True, False])
def test_a_static_leader_that_comes_back_assigns_nothing(skips: bool) -> None:
    group = Group()
    static(group, "x", "y")
    back = group.replies[group.join(ask(instance_id="x", skips_assignment=skips), "x-2")]
    assert back.skip_assignment is skips
    assert (back.leader == "x-2") is skips
    assert group.engine.state is RebalanceState.STABLE
    assert group.replies[group.sync("x-2")] == Synced("range", b"x-1")


def test_a_static_member_with_another_subscription_rebalances() -> None:
    group = Group()
    static(group, "x", "y")
    waiting = group.join(ask(instance_id="y", data=b"more"), "y-2")
    assert waiting not in group.replies
    assert group.engine.state is RebalanceState.PREPARING


def test_a_second_process_of_an_instance_fences_the_first() -> None:
    group = Group()
    static(group, "x", "y")
    group.join(ask(), "new")
    first = group.join(ask("y-1", instance_id="y"))
    second = group.join(ask(instance_id="y"), "y-2")
    assert error(group.replies[first]) is GroupError.FENCED_INSTANCE_ID
    late = group.replies[group.join(ask("y-1", instance_id="y"))]
    assert error(late) is GroupError.FENCED_INSTANCE_ID
    group.join(ask("x-1", instance_id="x"))
    assert isinstance(group.replies[second], Joined)


def test_a_static_member_keeps_its_place_while_it_is_away() -> None:
    group = Group()
    for instance in "xy":
        group.join(ask(instance_id=instance, rebalance_timeout_ms=2_000), f"{instance}-1")
    group.join(ask("x-1", instance_id="x", rebalance_timeout_ms=2_000))
    for member in ("x-1", "y-1"):
        group.sync(member, **{"x-1": b"x", "y-1": b"y"})
    waiting = group.join(ask(rebalance_timeout_ms=2_000), "new")
    group.join(ask("x-1", instance_id="x", rebalance_timeout_ms=2_000))
    group.after(2_000)
    assert group.replies[waiting].generation == 2 + 1
    assert set(group.engine.members) == {"x-1", "y-1", "new"}


def test_a_static_member_leaves_by_its_instance() -> None:
    group = Group()
    static(group, "x", "y")
    wrong = GroupError.FENCED_INSTANCE_ID
    assert group.leave(("y-0", "y"), ("", "z")) == [wrong, GroupError.UNKNOWN_MEMBER_ID]
    assert group.leave(("", "y")) == [None]
    assert list(group.engine.members) == ["x-1"]


# -- bounds ------------------------------------------------------------------------


def test_a_group_has_a_size_and_sessions_have_bounds() -> None:
    group = Group(max_members=1)
    group.stable("a")
    full = group.replies[group.join(ask(), "b")]
    assert error(full) is GroupError.GROUP_MAX_SIZE_REACHED
    for session_ms in (0, 10_000_000):
        bad = group.replies[group.join(ask("a", session_timeout_ms=session_ms))]
        assert error(bad) is GroupError.INVALID_SESSION_TIMEOUT
    assert group.engine.state is RebalanceState.STABLE


def test_what_leaves_nothing_behind() -> None:
    group = Group()
    for number in range(50):
        group.stable(f"m{number}")
        group.leave((f"m{number}", None))
    group.after(10 * SESSION_MS)
    assert (group.engine.members, group.engine.next_deadline()) == ({}, None)
    assert group.engine.generation > 50


# -- offsets -----------------------------------------------------------------------


def test_offsets_are_those_of_the_ordered_group_and_come_back_as_committed() -> None:
    """Kafka's clients commit the next offset, we store the last processed one."""
    offsets = OrderedGroup()
    for next_offset, metadata in ((6, "five done"), (3, "went back"), (0, "from the start")):
        commit = OffsetCommit("orders", 0, next_offset - 1, metadata)
        offsets.commit("", STANDALONE, [commit], 1, rewind=True)
        stored = offsets.committed("orders", 0)
        assert stored is not None
        assert (stored.next_offset, stored.metadata) == (next_offset, metadata)
    native = OrderedGroup.restore(offsets.snapshot())
    native.commit("", STANDALONE, [OffsetCommit("orders", 0, 7)], 2)
    stored = native.committed("orders", 0)
    assert stored is not None
    assert stored.next_offset == 8


# -- an empty group that waits for more members -------------------------------------------


def test_an_empty_group_may_wait_for_further_members() -> None:  # SPEC L2
    group = Group(delay_ms=3_000)
    first = group.join(ask(), "a")
    group.after(2_000)
    second = group.join(ask(), "b")
    group.after(2_999)
    assert first not in group.replies
    group.after(1)
    assert {group.replies[first].generation, group.replies[second].generation} == {1}
    third = group.join(ask(), "c")
    for member in ("a", "b"):
        assert third not in group.replies  # a group with members waits for those alone
        group.join(ask(member))
    assert group.replies[third].generation == 2


def test_it_waits_no_longer_than_a_rebalance_may_take() -> None:
    group = Group(delay_ms=3_000)
    first = group.join(ask(), "a")
    for number in range(REBALANCE_MS // 2_000):
        group.after(2_000)
        group.join(ask(), f"m{number}")
    assert group.replies[first].generation == 1


def test_a_group_whose_members_leave_while_it_waits_is_empty() -> None:
    group = Group(delay_ms=3_000)
    group.join(ask(), "a")
    group.leave(("a", None))
    assert group.engine.is_unused
    again = group.join(ask(), "b")
    group.after(3_000)
    assert group.replies[again].member_id == "b"


# -- planned restarts -----------------------------------------------------------------------


def restarted(group: Group, after_ms: int = 0) -> Group:
    """The group after a planned restart."""
    kept = group.engine.kept()
    assert kept is not None
    found = Group()
    found.now = group.now + after_ms
    found.engine.restore(kept, found.now)
    return found


def test_a_stable_group_goes_on_after_a_planned_restart() -> None:  # SPEC O3
    group = Group()
    group.stable("a", "b")
    after = restarted(group, 5_000)
    callers = [Caller(member, group.engine.generation) for member in "ab"]
    assert [after.engine.check_commit(caller, after.now) for caller in callers] == [None, None]
    assert [after.beat("a"), after.beat("b")] == [None, None]
    assert after.replies[after.sync("b")] == Synced("range", b"b")
    assert list(after.replies) == ["sync 1"]


def test_members_that_do_not_come_back_after_it_time_out() -> None:
    group = Group()
    group.stable("a", "b")
    after = restarted(group, 60_000)
    after.after(SESSION_MS - 1)
    assert after.beat("a") is None
    after.after(1)
    assert after.beat("a") is GroupError.REBALANCE_IN_PROGRESS
    assert list(after.engine.members) == ["a"]


def test_a_rebalance_that_a_restart_cut_short_begins_again() -> None:
    group = Group()
    group.stable("a", "b")
    group.join(ask(), "c")
    group.join(ask("a"))
    after = restarted(group)
    assert list(after.engine.members) == ["a", "b"]  # nobody has told c that it is a member
    caller = Caller("b", group.engine.generation)
    assert after.engine.check_commit(caller, 0) is None  # before it joins again, as ever
    assert after.beat("b") is GroupError.REBALANCE_IN_PROGRESS
    first = after.join(ask("a"))
    assert first not in after.replies
    after.join(ask("b"))
    assert after.replies[first].generation == group.engine.generation + 1


def test_static_members_keep_their_place_over_it() -> None:
    group = Group()
    group.join(ask(instance_id="one"), "a")
    group.sync("a", a=b"all")
    after = restarted(group)
    again = after.replies[after.join(ask(instance_id="one"), "later")]
    assert (again.generation, again.member_id) == (1, "later")


def test_a_group_that_had_no_generation_is_not_kept() -> None:
    group = Group(delay_ms=3_000)
    assert group.engine.kept() is None
    group.join(ask(), "a")
    assert group.engine.kept() is None
