"""Shared groups: per-message ack over ranges (SPEC F)."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from nexo.brokers.stream.groups.flight import DeliveredRange
from nexo.brokers.stream.groups.records import Acked, Counted, RecordsParked
from nexo.brokers.stream.groups.shared import SharedGroup
from nexo.errors import (
    Fenced,
    InvalidInput,
    InvalidOption,
    NotMember,
    NotOwner,
    NotPending,
)
from nexo.options.described import merged
from nexo.options.stream import SharedOptions

NOW = 1_000_000


def group(partitions: int = 1, **options: int) -> SharedGroup:
    made = SharedGroup([0] * partitions, SharedOptions(**options))  # type: ignore[arg-type]
    made.join("a")
    made.join("b")
    return made


def ranges(got: list[DeliveredRange]) -> list[tuple[int, int, int]]:
    return [(d.partition, d.first, d.end) for d in got]


def take(
    shared: SharedGroup, consumer: str, limit: int, end: int = 100, now_ms: int = NOW
) -> list[tuple[int, int, int]]:
    return ranges(shared.deliver(consumer, limit, [end], now_ms))


def attempts(got: list[DeliveredRange]) -> list[tuple[int, int, int]]:
    return [(d.first, d.end, d.attempt) for d in got]


class TestDelivery:
    def test_each_message_goes_to_one_consumer(self) -> None:  # SPEC F1
        shared = group()
        assert take(shared, "a", 10) == [(0, 0, 10)]
        assert take(shared, "b", 10) == [(0, 10, 20)]

    def test_a_hundred_consumers_share_one_partition(self) -> None:  # SPEC F1
        shared = group()
        seen = []
        for number in range(100):
            shared.join(f"c{number}")
            seen += take(shared, f"c{number}", 1)
        assert seen == [(0, n, n + 1) for n in range(100)]

    def test_nothing_beyond_the_stable_end_is_delivered(self) -> None:
        shared = group()
        assert take(shared, "a", 10, end=3) == [(0, 0, 3)]
        assert take(shared, "a", 10, end=3) == []

    def test_partitions_take_turns(self) -> None:
        shared = group(partitions=3)
        turns = [shared.deliver("a", 5, [100, 100, 100], NOW)[0].partition for _ in range(6)]
        assert turns == [0, 1, 2, 0, 1, 2]

    def test_a_stranger_gets_nothing(self) -> None:
        with pytest.raises(NotMember, match=r"^NOT_MEMBER$"):
            group().deliver("stranger", 1, [1], NOW)

    def test_no_more_than_max_ack_pending_are_out(self) -> None:  # SPEC F7
        shared = group(max_ack_pending=5)
        assert take(shared, "a", 10) == [(0, 0, 5)]
        assert take(shared, "b", 10) == []
        shared.ack("a", 1, [(0, 1, 3)])
        assert take(shared, "b", 10) == [(0, 5, 7)]

    def test_failed_messages_fit_even_when_the_window_is_full(self) -> None:  # SPEC F7
        shared = group(max_ack_pending=5)
        take(shared, "a", 5)
        shared.nack("a", 1, [(0, 0, 5)], NOW)
        assert take(shared, "b", 10) == [(0, 0, 5)]


class TestAck:
    def test_the_floor_moves_only_over_contiguous_acks(self) -> None:  # SPEC F2
        shared = group()
        take(shared, "a", 10)
        shared.ack("a", 1, [(0, 5, 10)])
        assert shared.floor(0) == 0
        shared.ack("a", 1, [(0, 1, 5)])
        assert shared.floor(0) == 0
        shared.ack("a", 1, [(0, 0, 1)])
        assert shared.floor(0) == 10

    def test_a_call_logs_one_record_however_many_messages(self) -> None:
        shared = group()
        take(shared, "a", 100)
        shared.ack("a", 1, [(0, 0, 40), (0, 50, 100)])
        assert shared.drain() == [Acked([(0, 0, 40), (0, 50, 100)])]
        assert shared.drain() == []

    def test_what_another_holds_is_refused_and_the_rest_acked(self) -> None:
        shared = group()
        take(shared, "a", 5)
        take(shared, "b", 5)
        (refusal,) = shared.ack("a", 1, [(0, 0, 10)])
        assert (refusal.first, refusal.end) == (5, 10)
        assert isinstance(refusal.error, NotOwner)
        assert refusal.error.message == "NOT_OWNER"
        assert shared.floor(0) == 5

    def test_an_ack_of_the_undelivered_is_refused_with_its_sequence(self) -> None:
        (refusal,) = group().ack("a", 1, [(0, 41, 42)])
        assert isinstance(refusal.error, NotPending)
        assert refusal.error.message == "seq 42 not pending"

    @pytest.mark.parametrize("bad", [(1, 0, 1), (-1, 0, 1), (0, 3, 3), (0, -1, 2)])
    def test_a_bad_range_changes_nothing(self, bad: tuple[int, int, int]) -> None:
        shared = group()
        take(shared, "a", 10)
        with pytest.raises(InvalidInput):
            shared.ack("a", 1, [(0, 0, 10), bad])
        assert shared.floor(0) == 0
        assert shared.drain() == []


class TestRedelivery:
    def test_a_nack_redelivers_at_once_and_says_how_often(self) -> None:  # SPEC F2
        shared = group()
        take(shared, "a", 3)
        shared.nack("a", 1, [(0, 1, 2)], NOW)
        got = shared.deliver("b", 2, [100], NOW)
        assert attempts(got) == [(1, 2, 2), (3, 4, 1)]

    def test_a_delayed_nack_redelivers_when_it_is_due(self) -> None:  # SPEC F2
        shared = group(ack_wait_ms=60_000)
        take(shared, "a", 1)
        shared.nack("a", 1, [(0, 0, 1)], NOW, delay_ms=500)
        assert shared.next_deadline() == NOW + 500
        assert take(shared, "a", 1, end=1, now_ms=NOW + 499) == []
        assert shared.expire(NOW + 500) == 1
        assert take(shared, "a", 1, end=1, now_ms=NOW + 500) == [(0, 0, 1)]

    def test_a_timeout_redelivers_after_ack_wait(self) -> None:  # SPEC F2
        shared = group(ack_wait_ms=1_000)
        take(shared, "a", 2)
        assert shared.next_deadline() == NOW + 1_000
        assert shared.expire(NOW + 999) == 0
        assert shared.expire(NOW + 1_000) == 2
        assert attempts(shared.deliver("b", 9, [2], NOW + 1_000)) == [(0, 2, 2)]

    def test_a_late_ack_of_an_expired_lease_harms_nobody(self) -> None:  # SPEC F2
        shared = group(ack_wait_ms=1_000)
        take(shared, "a", 1)
        take(shared, "b", 1, end=1, now_ms=NOW + 1_000)
        (refusal,) = shared.ack("a", 1, [(0, 0, 1)])
        assert isinstance(refusal.error, NotOwner)
        assert shared.ack("b", 1, [(0, 0, 1)]) == []

    def test_extending_keeps_messages_from_timing_out(self) -> None:
        shared = group(ack_wait_ms=1_000)
        take(shared, "a", 2)
        take(shared, "b", 2)
        shared.extend("a", 1, NOW + 900)
        assert shared.expire(NOW + 1_000) == 2
        holders = [shared.record(0, offset).consumer for offset in range(4)]
        assert holders == ["a", "a", None, None]

    def test_a_disconnect_releases_at_once(self) -> None:  # SPEC F2
        shared = group()
        take(shared, "a", 10)
        assert shared.leave("a", NOW) == 10
        assert take(shared, "b", 10)[-1][2] == 10
        assert shared.leave("a", NOW) == 0

    def test_a_rejoined_consumer_does_not_hold_what_it_lost(self) -> None:
        shared = group()
        take(shared, "a", 1)
        shared.leave("a", NOW)
        shared.join("a")
        (refusal,) = shared.ack("a", 1, [(0, 0, 1)])
        assert isinstance(refusal.error, NotPending)


class TestWhatCountsAsDelivered:  # SPEC F3
    def test_reported_starts_are_believed_on_a_disconnect(self) -> None:
        shared = group()
        shared.join("r", reports_starts=True)
        take(shared, "r", 10)
        shared.start("r", 1, [(0, 0, 3)])
        shared.leave("r", NOW)
        assert attempts(shared.deliver("b", 10, [10], NOW)) == [(0, 3, 2), (3, 10, 1)]

    def test_reported_starts_are_believed_on_a_timeout(self) -> None:
        shared = group(ack_wait_ms=10)
        shared.join("r", reports_starts=True)
        take(shared, "r", 4)
        shared.start("r", 1, [(0, 0, 1)])
        assert attempts(shared.deliver("b", 9, [4], NOW + 10)) == [(0, 1, 2), (1, 4, 1)]

    def test_a_parting_consumer_says_what_it_never_began(self) -> None:
        shared = group()
        take(shared, "a", 10)
        shared.leave("a", NOW, unstarted=[(0, 2, 10)])
        assert attempts(shared.deliver("b", 10, [10], NOW)) == [(0, 2, 2), (2, 10, 1)]

    def test_what_was_to_begin_and_never_did_does_not_count(self) -> None:
        shared = group()
        shared.join("r", reports_starts=True)
        take(shared, "r", 4)
        shared.start("r", 1, [(0, 0, 1)])
        shared.leave("r", NOW, unstarted=[(0, 0, 4)])
        assert attempts(shared.deliver("b", 9, [4], NOW)) == [(0, 4, 1)]

    def test_of_a_silent_consumer_the_message_it_was_at_counts(self) -> None:
        shared = group()
        take(shared, "a", 10)
        shared.ack("a", 1, [(0, 0, 4)])
        shared.leave("a", NOW)
        assert attempts(shared.deliver("b", 10, [10], NOW)) == [(4, 5, 2), (5, 10, 1)]

    def test_a_release_counts_nothing(self) -> None:
        shared = group()
        take(shared, "a", 5)
        assert shared.release("a", 1, [(0, 0, 5)]) == []
        assert attempts(shared.deliver("a", 5, [5], NOW)) == [(0, 5, 1)]
        assert shared.drain() == []


class TestParking:  # SPEC F3
    def parked(self) -> SharedGroup:
        shared = group(max_deliveries=2)
        for _ in range(2):
            take(shared, "a", 1, end=1)
            shared.nack("a", 1, [(0, 0, 1)], NOW, reason="boom")
        return shared

    def test_the_last_failed_delivery_parks_and_blocks_nobody(self) -> None:
        shared = self.parked()
        (entry,) = shared.parked()
        assert (entry.first, entry.end, entry.attempts) == (0, 1, 2)
        assert entry.reason == "boom"
        assert shared.floor(0) == 1
        assert take(shared, "b", 5) == [(0, 1, 6)]

    def test_a_page_counts_messages_and_begins_with_the_newest(self) -> None:
        shared = group(partitions=2, max_deliveries=1)
        shared.deliver("a", 20, [10, 10], NOW)
        shared.nack("a", 1, [(0, 0, 5), (0, 8, 9)], NOW)
        shared.nack("a", 1, [(1, 3, 5)], NOW + 10)

        def page(limit: int, offset: int = 0) -> list[tuple[int, int, int]]:
            return [(row.partition, row.first, row.end) for row in shared.parked(limit, offset)]

        assert page(100) == [(1, 3, 5), (0, 8, 9), (0, 0, 5)]
        assert page(1) == [(1, 4, 5)]
        assert page(3, 1) == [(1, 3, 4), (0, 8, 9), (0, 4, 5)]
        assert page(2, 4) == [(0, 2, 4)]
        assert page(9, 8) == []

    def test_the_records_say_what_failed_and_what_was_parked(self) -> None:
        records = self.parked().drain()
        assert records == [Counted([(0, 0, 1, 1)]), RecordsParked([(0, 0, 1, 2)], NOW, "boom")]

    def test_a_replayed_message_starts_from_its_first_delivery(self) -> None:
        shared = self.parked()
        assert shared.replay([(0, 0, 1)]) == 1
        assert attempts(shared.deliver("a", 1, [1], NOW)) == [(0, 1, 1)]
        assert shared.parked() == []
        shared.ack("a", 1, [(0, 0, 1)])
        assert shared.floor(0) == 1

    def test_a_discarded_message_is_gone(self) -> None:
        shared = self.parked()
        assert shared.discard() == 1
        assert shared.replay() == 0
        assert take(shared, "a", 1, end=1) == []

    def test_no_limit_never_parks(self) -> None:
        shared = group(max_deliveries=0)
        for _ in range(50):
            take(shared, "a", 1, end=1)
            shared.nack("a", 1, [(0, 0, 1)], NOW)
        assert shared.parked() == []


class TestSeek:  # SPEC F4
    def test_late_acks_from_before_are_fenced(self) -> None:
        shared = group()
        take(shared, "a", 10)
        assert shared.seek({0: 0}) == 2
        with pytest.raises(Fenced, match=r"^FENCED$"):
            shared.ack("a", 1, [(0, 0, 10)])

    def test_running_consumers_continue_from_the_new_position(self) -> None:
        shared = group()
        take(shared, "a", 10)
        shared.seek({0: 50})
        (delivery,) = shared.deliver("a", 5, [100], NOW)
        assert (delivery.first, delivery.end, delivery.generation) == (50, 55, 2)

    def test_the_messages_of_other_partitions_are_delivered_again(self) -> None:
        shared = group(partitions=2)
        shared.deliver("a", 20, [10, 10], NOW)
        shared.seek({0: 10})
        assert ranges(shared.deliver("b", 20, [10, 10], NOW)) == [(1, 0, 10)]

    def test_back_to_the_beginning_everything_is_new_again(self) -> None:
        shared = group()
        take(shared, "a", 10, end=10)
        shared.ack("a", 1, [(0, 0, 10)])
        shared.seek({0: 0})
        assert attempts(shared.deliver("a", 99, [10], NOW)) == [(0, 10, 1)]

    def test_what_is_read_again_is_no_longer_parked(self) -> None:
        shared = group(max_deliveries=1)
        take(shared, "a", 4)
        shared.nack("a", 1, [(0, 0, 4)], NOW)
        shared.seek({0: 2})
        assert [(p.first, p.end) for p in shared.parked()] == [(0, 2)]


class TestGaps:
    def test_the_floor_passes_over_skipped_offsets(self) -> None:
        shared = group()
        take(shared, "a", 10)
        shared.skip([(0, 3, 5)])
        shared.ack("a", 1, [(0, 0, 3), (0, 5, 10)])
        assert shared.floor(0) == 10

    def test_offsets_skipped_ahead_are_never_delivered(self) -> None:
        shared = group()
        shared.skip([(0, 0, 5), (0, 8, 20)])
        assert take(shared, "a", 9, end=25) == [(0, 5, 8), (0, 20, 25)]

    def test_skipping_what_is_finished_logs_nothing(self) -> None:
        shared = group()
        take(shared, "a", 10)
        shared.ack("a", 1, [(0, 0, 10)])
        shared.drain()
        shared.skip([(0, 0, 10)])
        assert shared.drain() == []

    def test_a_forgotten_message_is_no_longer_parked(self) -> None:
        shared = group(max_deliveries=1)
        take(shared, "a", 2)
        shared.nack("a", 1, [(0, 0, 2)], NOW)
        shared.skip([(0, 0, 1)])
        assert [(p.first, p.end) for p in shared.parked()] == [(1, 2)]


class TestRecovery:  # SPEC F6
    def test_all_but_the_leases_survives(self) -> None:
        shared = group(max_deliveries=2)
        take(shared, "a", 6)
        shared.nack("a", 1, [(0, 0, 2)], NOW)
        take(shared, "a", 1)
        shared.nack("a", 1, [(0, 0, 1)], NOW)
        shared.ack("a", 1, [(0, 4, 5)])
        again = SharedGroup.restore(shared.snapshot())
        again.join("b")
        got = again.deliver("b", 99, [6], NOW)
        assert attempts(got) == [(1, 2, 2), (2, 4, 1), (5, 6, 1)]
        assert [(p.first, p.end) for p in again.parked()] == [(0, 1)]

    def test_options_can_change_and_a_shorter_wait_holds_at_once(self) -> None:
        shared = group()
        take(shared, "a", 1)
        shared.tune(SharedOptions(ack_wait_ms=100), NOW)
        assert shared.next_deadline() == NOW + 100
        assert SharedGroup.restore(shared.snapshot()).options.ack_wait_ms == 100


class TestOptions:
    @pytest.mark.parametrize("name", ["ack_wait_ms", "max_ack_pending"])
    def test_an_option_out_of_range_is_named(self, name: str) -> None:
        with pytest.raises(InvalidOption, match=name):
            merged({name: 0}, SharedOptions(), "group")

    def test_key_order_cannot_be_switched_on_later(self) -> None:
        with pytest.raises(InvalidOption, match="ordered_by"):
            group().tune(SharedOptions(ordered_by="key"), NOW)


class TestKeyOrder:  # SPEC F8
    KEYS = (b"x", b"y", b"x", b"x", None, b"y")

    def keys_of(self, partition: int, first: int, end: int) -> Mapping[int, bytes | None]:
        return {offset: self.KEYS[offset] for offset in range(first, end)}

    def keyed(self, max_deliveries: int = 5) -> SharedGroup:
        options = SharedOptions(ordered_by="key", max_deliveries=max_deliveries)
        shared = SharedGroup([0], options)
        shared.join("a")
        shared.join("b")
        return shared

    def take(self, shared: SharedGroup, consumer: str) -> list[tuple[int, int, int]]:
        return ranges(shared.deliver(consumer, 10, [6], NOW, self.keys_of))

    def test_different_keys_go_in_parallel_one_of_each(self) -> None:
        shared = self.keyed()
        assert self.take(shared, "a") == [(0, 0, 2), (0, 4, 5)]
        assert self.take(shared, "b") == []

    def test_an_ack_lets_the_next_of_its_key_go(self) -> None:
        shared = self.keyed()
        self.take(shared, "a")
        shared.ack("a", 1, [(0, 0, 1)])
        assert self.take(shared, "b") == [(0, 2, 3)]
        shared.ack("b", 1, [(0, 2, 3)])
        assert self.take(shared, "b") == [(0, 3, 4)]

    def test_a_failing_key_stops_only_itself(self) -> None:
        shared = self.keyed()
        self.take(shared, "a")
        shared.nack("a", 1, [(0, 0, 1)], NOW, delay_ms=1_000)
        shared.ack("a", 1, [(0, 1, 2)])
        assert self.take(shared, "b") == [(0, 5, 6)]

    def test_a_parked_message_lets_its_key_go_on(self) -> None:
        shared = self.keyed(max_deliveries=1)
        self.take(shared, "a")
        shared.nack("a", 1, [(0, 0, 1)], NOW)
        assert self.take(shared, "b") == [(0, 2, 3)]

    def test_offsets_without_a_record_are_skipped(self) -> None:
        shared = self.keyed()

        def sparse(partition: int, first: int, end: int) -> Mapping[int, bytes | None]:
            return {offset: b"k" for offset in range(first, end) if offset >= 3}

        assert ranges(shared.deliver("a", 10, [6], NOW, sparse)) == [(0, 3, 4)]
        assert shared.floor(0) == 3

    def test_skipping_a_whole_key_revives_none_of_it(self) -> None:
        shared = self.keyed()
        self.take(shared, "a")
        shared.skip([(0, 0, 6)])
        assert shared.floor(0) == 6
        assert self.take(shared, "b") == []


def test_a_group_says_what_became_of_each_message() -> None:
    group = SharedGroup([0], SharedOptions(max_deliveries=2))
    group.join("a")
    (delivery,) = group.deliver("a", 4, [9], 1_000)
    assert (delivery.first, delivery.end) == (0, 4)
    group.ack("a", group.generation, [(0, 1, 2)])
    group.nack("a", group.generation, [(0, 2, 3)], 1_000)
    group.nack("a", group.generation, [(0, 3, 4)], 1_000, delay_ms=50)
    found = [group.record(0, offset) for offset in range(5)]
    assert [each.state for each in found] == [
        "in_flight", "finished", "waiting", "delayed", "unread",
    ]  # fmt: skip
    assert (found[0].consumer, found[0].attempts) == ("a", 1)
    assert found[0].until_ms == delivery.expires_ms
    assert (found[2].attempts, found[3].until_ms) == (1, 1_050)
    group.deliver("a", 1, [9], 1_000)
    group.nack("a", group.generation, [(0, 2, 3)], 1_000, reason="no")
    parked = group.record(0, 2)
    assert (parked.state, parked.attempts, parked.reason) == ("parked", 2, "no")
