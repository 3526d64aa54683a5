"""Shared groups whose consumers keep what they are given (SPEC J2)."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexo.brokers.stream.groups.claims import Claims
from nexo.brokers.stream.groups.flight import DeliveredRange
from nexo.brokers.stream.groups.records import SharedRecord, SharedSnapshot
from nexo.brokers.stream.groups.shared import SharedGroup
from nexo.errors import Conflict, InvalidOption, NotMember
from nexo.options.stream import SharedOptions

NOW = 1_000_000


def group(start: int = 0) -> SharedGroup:
    return SharedGroup([start], SharedOptions(release="claim"))


def claims(shared: SharedGroup) -> Claims:
    assert shared.claims is not None
    return shared.claims


def take(
    shared: SharedGroup, consumer: str, limit: int, end: int = 100, now_ms: int = NOW
) -> list[tuple[int, int, int]]:
    return ranges(claims(shared).deliver(consumer, limit, end, now_ms))


def claim(
    shared: SharedGroup, consumer: str, min_idle_ms: int, limit: int, now_ms: int
) -> list[DeliveredRange]:
    """Deliver old messages again, as a claim does."""
    stale = claims(shared).stale(min_idle_ms, limit, now_ms)
    return claims(shared).take_over(consumer, stale, now_ms)


def ranges(got: list[DeliveredRange]) -> list[tuple[int, int, int]]:
    return [(d.first, d.end, d.attempt) for d in got]


def held(shared: SharedGroup) -> list[tuple[str, int, int, int, int]]:
    """Every message that is held: consumer, offset, attempt, since."""
    return sorted(
        (lease.member.name, offset, offset + 1, lease.attempt, lease.since_ms)
        for offset, lease in claims(shared).held_from(0)
    )


def reborn(snapshot: SharedSnapshot, records: list[SharedRecord]) -> SharedGroup:
    """The group after a crash, from bytes."""
    raw = msgspec.msgpack.encode(snapshot)
    again = SharedGroup.restore(msgspec.msgpack.decode(raw, type=SharedSnapshot))
    for record in records:
        again.apply(msgspec.msgpack.decode(msgspec.msgpack.encode(record), type=SharedRecord))
    return again


def seen(shared: SharedGroup, end: int = 100) -> object:
    """Everything an observer can tell about the group."""
    each = claims(shared)
    return (
        held(shared),
        shared.floor(0),
        shared.status([end]),
        each.unread(end),
        each.trimmed_unread,
        {name: keeper.held for name, keeper in each.members.items()},
    )


class TestDelivering:
    def test_each_message_goes_to_one_consumer(self) -> None:
        shared = group()
        assert take(shared, "a", 4) == [(0, 4, 1)]
        assert take(shared, "b", 4, end=6) == [(4, 6, 1)]
        assert take(shared, "a", 4, end=6) == []

    def test_what_is_held_never_expires(self) -> None:
        shared = group()
        take(shared, "a", 4)
        assert shared.next_deadline() is None
        assert shared.expire(NOW * 1_000) == 0
        assert take(shared, "b", 10, end=4, now_ms=NOW * 1_000) == []

    def test_a_consumer_holds_no_more_than_it_may(self) -> None:  # SPEC J3
        shared = group()
        assert ranges(claims(shared).deliver("a", 10, 100, NOW, max_held=3)) == [(0, 3, 1)]
        assert claims(shared).deliver("a", 10, 100, NOW, max_held=3) == []
        claims(shared).ack([(0, 1, 2)])
        assert ranges(claims(shared).deliver("a", 10, 100, NOW, max_held=3)) == [(3, 4, 1)]


class TestClaiming:
    def test_old_messages_go_to_the_claimer(self) -> None:
        shared = group()
        take(shared, "a", 4)
        assert claim(shared, "b", 100, 10, NOW + 99) == []
        assert ranges(claim(shared, "b", 100, 3, NOW + 100)) == [(0, 3, 2)]
        assert held(shared) == [
            ("a", 3, 4, 1, NOW), *[("b", n, n + 1, 2, NOW + 100) for n in range(3)],
        ]  # fmt: skip

    def test_a_claimed_message_is_young_again(self) -> None:
        shared = group()
        take(shared, "a", 2)
        claim(shared, "b", 100, 10, NOW + 100)
        assert claim(shared, "c", 100, 10, NOW + 150) == []

    def test_claims_go_by_offset_and_take_ones_own(self) -> None:
        shared = group()
        take(shared, "a", 2)
        take(shared, "b", 2)
        claim(shared, "b", 0, 1, NOW + 1)
        assert ranges(claim(shared, "b", 0, 10, NOW + 2)) == [
            (0, 1, 3), (1, 2, 2), (2, 4, 2),
        ]  # fmt: skip

    def test_a_claimer_without_luck_is_a_consumer_all_the_same(self) -> None:
        shared = group()
        claim(shared, "b", 0, 1, NOW)
        assert list(shared.members) == ["b"]


class TestFinishing:
    def test_acks_move_the_floor_over_what_is_contiguous(self) -> None:
        shared = group()
        take(shared, "a", 4)
        assert claims(shared).ack([(0, 2, 3)]) == 1
        assert shared.floor(0) == 0
        assert claims(shared).ack([(0, 0, 4)]) == 3
        assert shared.floor(0) == 4
        assert claims(shared).ack([(0, 0, 4)]) == 0

    def test_a_dismissed_consumer_takes_what_it_held_along(self) -> None:
        shared = group()
        take(shared, "a", 3)
        take(shared, "b", 1)
        assert claims(shared).dismiss("a") == 3
        assert claims(shared).dismiss("a") == 0
        assert held(shared) == [("b", 3, 4, 1, NOW)]
        assert take(shared, "b", 10, end=5) == [(4, 5, 1)]

    def test_trimming_counts_what_was_not_delivered(self) -> None:  # SPEC J3
        shared = group()
        take(shared, "a", 3)
        claims(shared).trim((0, 0, 5))
        assert claims(shared).trimmed_unread == 2
        assert held(shared) == []
        claims(shared).trim((0, 0, 5))
        assert claims(shared).trimmed_unread == 2
        assert take(shared, "a", 10, end=6) == [(5, 6, 1)]

    def test_skipped_messages_are_held_no_longer(self) -> None:
        shared = group()
        take(shared, "a", 3)
        shared.skip([(0, 1, 2), (0, 4, 5)])
        assert [each[1] for each in held(shared)] == [0, 2]
        assert take(shared, "a", 10, end=6) == [(3, 4, 1), (5, 6, 1)]


class TestKinds:
    def test_members_with_leases_are_refused(self) -> None:
        shared = group()
        with pytest.raises(Conflict, match="xstreams"):
            shared.join("a")
        take(shared, "a", 1)
        with pytest.raises(NotMember):
            shared.ack("a", 1, [(0, 0, 1)])

    def test_the_kind_is_fixed(self) -> None:
        shared = group()
        with pytest.raises(InvalidOption, match="release"):
            shared.tune(SharedOptions(), NOW)
        with pytest.raises(InvalidOption, match="release"):
            SharedOptions(release="claim", ordered_by="key")
        assert SharedGroup([0]).claims is None

    def test_tuning_lets_nobody_lose_what_it_holds(self) -> None:
        shared = group()
        take(shared, "a", 1)
        shared.tune(SharedOptions(release="claim", ack_wait_ms=1), NOW)
        assert shared.expire(NOW + 10) == 0

    def test_a_seek_starts_anew(self) -> None:
        shared = group()
        snapshot = shared.snapshot()
        take(shared, "a", 5)
        shared.seek({0: 2})
        assert held(shared) == []
        assert held(reborn(snapshot, shared.drain())) == []
        assert take(shared, "a", 5, end=4) == [(2, 4, 1)]


class TestSurviving:
    def test_a_snapshot_of_claims_out_of_order_is_restored_exactly(self) -> None:
        shared = group()
        take(shared, "a", 4)
        claim(shared, "b", 0, 2, NOW + 5)
        claims(shared).ack([(0, 3, 4)])
        again = reborn(shared.snapshot(), [])
        assert seen(again) == seen(shared)
        assert claims(again).position == claims(shared).position == 4
        assert ranges(claim(again, "c", 5, 1, NOW + 5)) == [(2, 3, 2)]

    def test_consumers_survive_without_messages(self) -> None:
        shared = group()
        snapshot = shared.snapshot()
        take(shared, "a", 1, end=0)
        assert list(reborn(snapshot, shared.drain()).members) == ["a"]
        assert list(reborn(shared.snapshot(), []).members) == ["a"]


step = st.one_of(
    st.tuples(st.just("take"), st.sampled_from("abc"), st.integers(1, 5)),
    st.tuples(st.just("claim"), st.sampled_from("abc"), st.integers(1, 5)),
    st.tuples(st.just("ack"), st.integers(0, 30), st.integers(1, 5)),
    st.tuples(st.just("dismiss"), st.sampled_from("abc"), st.just(0)),
    st.tuples(st.just("trim"), st.integers(1, 30), st.just(0)),
    st.tuples(st.just("skip"), st.integers(0, 30), st.integers(1, 3)),
)


class Model:
    """The same rules, message by message."""

    def __init__(self) -> None:
        self.cursor = 0
        self.done: set[int] = set()
        self.held: dict[int, tuple[str, int, int]] = {}
        self.trimmed_unread = 0

    def do(self, verb: str, what: str | int, count: int, end: int, now_ms: int) -> None:
        match verb, what:
            case "take", str(name):
                for _ in range(count):
                    fresh = [n for n in range(self.cursor, end) if n not in self.done]
                    if fresh:
                        self.cursor = fresh[0] + 1
                        self.held[fresh[0]] = name, 1, now_ms
            case "claim", str(name):
                old = [n for n, each in sorted(self.held.items()) if each[2] <= now_ms - 3]
                for n in old[:count]:
                    self.held[n] = name, self.held[n][1] + 1, now_ms
            case "ack", int(first):
                self._end(n for n in range(first, first + count) if n in self.held)
            case "dismiss", str(name):
                self._end([n for n, each in self.held.items() if each[0] == name])
            case "trim", int(stop):
                fresh = [n for n in range(self.cursor, stop) if n not in self.done]
                self.trimmed_unread += len(fresh)
                self._end(range(stop))
            case "skip", int(first):
                self._end(range(first, first + count))

    def _end(self, gone: object) -> None:
        for n in list(gone):  # type: ignore[call-overload]
            self.held.pop(n, None)
            self.done.add(n)


@given(st.lists(step, max_size=40), st.integers(0, 40))
def test_the_group_does_as_a_per_message_model_and_survives_a_crash_anywhere(
    steps: list[tuple[str, str | int, int]], crash_at: int
) -> None:
    shared, model = group(), Model()
    snapshot, records = shared.snapshot(), shared.drain()
    for number, (verb, drawn, count) in enumerate(steps):
        now_ms, end = NOW + number, number + 3
        what = min(int(drawn), end - 1) if verb in ("trim", "skip") else drawn
        model.do(verb, what, count, end, now_ms)
        do(shared, verb, what, count, end, now_ms)
        records += shared.drain()
        if number == crash_at:
            shared = reborn(snapshot, records)
            snapshot, records = shared.snapshot(), []
        assert held(shared) == sorted(
            (name, n, n + 1, attempt, since) for n, (name, attempt, since) in model.held.items()
        )
        assert claims(shared).trimmed_unread == model.trimmed_unread
        fresh = [n for n in range(model.cursor, end) if n not in model.done]
        assert claims(shared).unread(end) == len(fresh)
    assert seen(reborn(snapshot, records)) == seen(shared)
    assert seen(reborn(shared.snapshot(), [])) == seen(shared)


def do(shared: SharedGroup, verb: str, what: str | int, count: int, end: int, now_ms: int) -> None:
    match verb, what:
        case "take", str(name):
            claims(shared).deliver(name, count, end, now_ms)
        case "claim", str(name):
            claim(shared, name, 3, count, now_ms)
        case "ack", int(first):
            claims(shared).ack([(0, first, first + count)])
        case "dismiss", str(name):
            claims(shared).dismiss(name)
        case "trim", int(stop):
            if stop > 0:
                claims(shared).trim((0, 0, stop))
        case "skip", int(first):
            shared.skip([(0, first, first + count)])
