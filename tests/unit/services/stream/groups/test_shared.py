"""Shared groups over the service: leases, acks, redelivery, seeks, crashes."""

from __future__ import annotations

from typing import Any

import pytest

from nexo import limits
from nexo.batch import Compression
from nexo.errors import Conflict, Fenced, InvalidInput, InvalidOption, NotFound, OffsetOutOfRange
from nexo.options.stream import SharedOptions
from nexo.protocol import stream as wire
from nexo.protocol.ops import Op
from tests.faulty_files import FaultyFiles
from tests.unit.brokers.stream.desk import Consumer, Desk, Got, Peer


def values(found: list[Got]) -> list[bytes | None]:
    return [got.value for got in found]


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_a_group_gets_every_record_once_and_in_order(desk: Desk) -> None:  # SPEC F1
    peer = desk.client()
    peer.make("s")
    peer.publish("s", b"a", b"b")
    peer.publish("s", b"c")
    one, two = peer.join("s", "g"), peer.join("s", "g")
    assert values(one.take(2)) == [b"a", b"b"]
    assert values(two.take()) == [b"c"]
    assert one.take() == []


def test_groups_do_not_share_work(desk: Desk) -> None:  # SPEC F1
    peer = desk.client()
    peer.make("s")
    peer.publish("s", b"a", b"b")
    assert values(peer.join("s", "one").take()) == [b"a", b"b"]
    assert values(peer.join("s", "two").take()) == [b"a", b"b"]


def test_a_large_batch_is_handed_out_in_cuts(desk: Desk) -> None:
    peer = desk.client()
    peer.make("s")
    sent = [b"%d" % i for i in range(1_000)]
    peer.publish("s", *sent)
    consumer = peer.join("s", "g")
    got = [got for _ in range(10) for got in consumer.take(100)]
    assert values(got) == sent


@pytest.mark.parametrize("kind", list(Compression))
def test_compression_is_invisible_to_consumers(desk: Desk, kind: Compression) -> None:  # SPEC G3
    peer = desk.client()
    peer.make("s")
    peer.publish("s", b"a", b"b", b"c", compression=kind)
    consumer = peer.join("s", "g")
    assert values(consumer.take(2)) == [b"a", b"b"]
    assert values(consumer.take(2)) == [b"c"]


def test_a_waiting_consumer_is_woken_by_a_publish(desk: Desk) -> None:
    peer = desk.client()
    peer.make("s")
    consumer = peer.join("s", "g")
    poll = consumer.poll()
    assert poll not in peer.replies
    peer.publish("s", b"a")
    assert values(consumer.opened(peer.replies[poll])) == [b"a"]


def test_a_poll_ends_empty_after_its_wait_or_when_cancelled(desk: Desk) -> None:
    peer = desk.client()
    peer.make("s")
    consumer = peer.join("s", "g")
    first, second = consumer.poll(wait_ms=1_000), consumer.poll(wait_ms=5_000)
    desk.after(1_000)
    assert consumer.opened(peer.replies[first]) == []
    assert second not in peer.replies
    desk.service.cancel(peer, second)
    assert consumer.opened(peer.replies[second]) == []


def test_a_long_poll_ends_at_its_limit(desk: Desk) -> None:
    peer = desk.client()
    peer.make("s")
    consumer = peer.join("s", "g")
    poll = consumer.poll(wait_ms=2 * limits.STREAM_WAIT_MS)
    desk.after(limits.STREAM_WAIT_MS - 1)
    assert poll not in peer.replies
    desk.after(1)
    assert consumer.opened(peer.replies[poll]) == []


def test_acked_records_never_come_back_and_unacked_do_after_a_crash(desk: Desk) -> None:  # SPEC F6
    peer = desk.client()
    peer.make("s")
    peer.publish("s", b"a", b"b", b"c")
    consumer = peer.join("s", "g")
    consumer.take()
    assert consumer.settle("ack", 1) == []
    again = desk.crash().client().join("s", "g")
    assert values(again.take()) == [b"a", b"c"]


def test_a_nacked_record_comes_back_at_once_with_a_higher_count(desk: Desk) -> None:  # SPEC F2
    peer = desk.client()
    peer.make("s")
    peer.publish("s", b"a")
    consumer = peer.join("s", "g")
    consumer.take()
    consumer.settle("nack", 0)
    assert consumer.take() == [Got(0, 0, b"a", 2)]


def test_a_lease_that_runs_out_wakes_another_consumer(desk: Desk) -> None:  # SPEC F2
    peer = desk.client()
    peer.make("s")
    peer.publish("s", b"a")
    lazy, busy = peer.join("s", "g"), peer.join("s", "g")
    lazy.take()
    poll = busy.poll(wait_ms=60_000)
    desk.after(30_000)
    assert busy.opened(peer.replies[poll]) == [Got(0, 0, b"a", 2)]
    assert [refused.code for refused in lazy.settle("ack", 0)] == ["NOT_OWNER"]


def test_a_closed_connection_releases_its_records_at_once(desk: Desk) -> None:  # SPEC F2
    one, two = desk.client(), desk.client()
    one.make("s")
    one.publish("s", b"a")
    one.join("s", "g").take()
    waiting = two.join("s", "g")
    poll = waiting.poll()
    one.close()
    assert values(waiting.opened(two.replies[poll])) == [b"a"]


def test_a_fetch_and_an_ack_say_what_is_begun(desk: Desk) -> None:  # SPEC F3
    watcher, peer = desk.client(), desk.client()
    peer.make("s")
    peer.publish("s", b"a", b"b", b"c", b"d")
    worker = peer.join("s", "g", reports_starts=True)
    worker.take(begins=1)
    worker.settle("ack", 0, begins=[(0, 1, 2)])
    peer.close()
    again = watcher.join("s", "g").take()
    assert [(got.value, got.attempt) for got in again] == [(b"b", 2), (b"c", 1), (b"d", 1)]
    watcher.join("s", "other", reports_starts=True).take(begins=3)
    desk.after(60_000)
    late = watcher.join("s", "other")
    assert [got.attempt for got in late.take() + late.take() + late.take()] == [2, 2, 2, 1]


def test_a_bad_beginning_refuses_the_ack_too(desk: Desk) -> None:  # SPEC F2
    peer = desk.client()
    peer.make("s")
    peer.publish("s", b"a", b"b")
    worker = peer.join("s", "g", reports_starts=True)
    worker.take(1)
    with pytest.raises(InvalidInput):
        worker.settle("ack", 0, begins=[(7, 1, 2)])
    assert desk.service.core.engine.find("s", "g")[1].floor(0) == 0
    assert worker.settle("ack", 0) == []


def test_a_lease_is_renewed_while_an_ack_waits_for_room_on_the_disk() -> None:  # SPEC I7, F2
    files = FaultyFiles()
    desk = Desk(files)
    peer = desk.client()
    peer.make("s")
    peer.publish("s", b"a", b"b")
    worker = peer.join("s", "g")
    worker.take()
    files.fill()
    with pytest.raises(KeyError):  # no reply yet
        worker.settle("ack", 0)
    files.fill()
    assert worker.settle("extend", 1) == []
    desk.after(2_000)
    assert [each.floor for each in peer.group("s", "g").partitions] == [1]


def test_a_seek_fences_late_acks_and_running_consumers_go_on(desk: Desk) -> None:  # SPEC F4
    peer = desk.client()
    peer.make("s")
    peer.publish("s", b"a", b"b")
    consumer = peer.join("s", "g")
    consumer.take()
    peer.call(Op.S_GROUP_SEEK, wire.GroupSeek(stream="s", group="g", to="beginning"), int)
    with pytest.raises(Fenced):
        consumer.settle("ack", 0)
    assert values(consumer.take()) == [b"a", b"b"]
    assert consumer.settle("ack", 0) == []


def test_a_seek_by_time_goes_to_the_first_record_not_older(desk: Desk) -> None:  # SPEC F4
    peer = desk.client()
    peer.make("s")
    for value in (b"a", b"b", b"c"):
        peer.publish("s", value)
        desk.after(1_000)
    consumer = peer.join("s", "g", start_ms=1_000_001)
    assert values(consumer.take()) == [b"b", b"c"]


def test_after_too_many_deliveries_a_record_is_parked_and_blocks_nobody(desk: Desk) -> None:
    peer = desk.client()  # SPEC F3
    peer.make("s")
    peer.publish("s", b"bad", b"good")
    consumer = peer.join("s", "g", options={"max_deliveries": 2})
    for _ in range(2):
        consumer.take(1)
        consumer.settle("nack", 0)
    assert values(consumer.take()) == [b"good"]
    parked, _ = wire.unpack_headed(
        wire.ParkedList, peer.ask(Op.S_PARKED, wire.pack(wire.ListParked(stream="s", group="g")))
    )
    assert [(row.first, row.attempts) for row in parked.rows] == [(0, 2)]
    replay = wire.ParkedSettle(stream="s", group="g", verb="replay")
    assert peer.call(Op.S_PARKED_SETTLE, replay, int) == 1
    assert consumer.take() == [Got(0, 0, b"bad", 1)]


def test_what_does_not_fit_a_reply_goes_to_the_next(desk: Desk) -> None:
    peer = desk.client()
    peer.make("s")
    for i in range(10):
        peer.publish("s", b"%d" % i * 1_000)
    one, two = peer.join("s", "g"), peer.join("s", "g")
    first = one.take(max_bytes=3_000)
    assert 0 < len(first) < 4
    second = two.take()
    assert values(second)[0] == b"%d" % len(first) * 1_000
    assert peer.group("s", "g").partitions[0].in_flight == len(first) + len(second)


def test_few_records_are_shared_among_all_members(desk: Desk) -> None:  # SPEC F1
    """Not all to whoever asks first."""
    peer = desk.client()
    peer.make("s")
    members = [peer.join("s", "g") for _ in range(3)]
    peer.publish("s", *(b"x" for _ in range(210)))
    assert [len(member.take(100)) for member in members] == [70, 70, 70]


def test_who_is_busy_leaves_the_rest_to_who_is_not(desk: Desk) -> None:
    peer = desk.client()
    peer.make("s")
    busy, idle = peer.join("s", "g"), peer.join("s", "g")
    peer.publish("s", *(b"x" for _ in range(200)))
    busy.take(100)
    idle.take(100)
    idle.settle("ack", *range(100, 200))
    peer.publish("s", *(b"x" for _ in range(20)))
    assert len(idle.take(100)) == 20


def test_many_records_are_taken_in_whole_batches(desk: Desk) -> None:
    peer = desk.client()
    peer.make("s")
    members = [peer.join("s", "g") for _ in range(3)]
    peer.publish("s", *(b"x" for _ in range(500)))
    assert [len(member.take(100)) for member in members] == [100, 100, 100]


def test_a_reply_is_bounded_whatever_is_asked_for(desk: Desk) -> None:
    peer = desk.client()
    peer.make("s")
    for _ in range(20):
        peer.publish("s", b"x" * 1024**2)
    consumer = peer.join("s", "g")
    assert 1 < len(consumer.take(max_bytes=1 << 53)) <= 16
    assert len(consumer.take(max_bytes=-1)) == 1


def test_unacked_records_are_bounded(desk: Desk) -> None:  # SPEC F7
    peer = desk.client()
    peer.make("s")
    peer.publish("s", *[b"x"] * 20)
    consumer = peer.join("s", "g", options={"max_ack_pending": 5})
    assert len(consumer.take()) == 5
    assert consumer.take() == []
    consumer.settle("ack", 0, 1)
    assert [got.offset for got in consumer.take()] == [5, 6]


def test_keys_are_worked_on_one_at_a_time(desk: Desk) -> None:  # SPEC F8
    peer = desk.client()
    peer.make("s")
    peer.publish("s", b"a1", b"a2", b"b1", keys=[b"a", b"a", b"b"])
    one, two = (peer.join("s", "g", options={"ordered_by": "key"}) for _ in range(2))
    assert values(one.take()) == [b"a1", b"b1"]
    assert two.take() == []
    one.settle("ack", 0)
    assert values(two.take()) == [b"a2"]


def test_lag_counts_what_is_not_finished(desk: Desk) -> None:
    peer = desk.client()
    peer.make("s", partitions=2)
    peer.publish("s", b"a", b"b", partition=0)
    peer.publish("s", b"c", partition=1)
    consumer = peer.join("s", "g")
    assert len(consumer.take()) == 3
    consumer.settle("ack", 0, partition=1)
    info = peer.group("s", "g")
    assert (info.lag, [each.lag for each in info.partitions]) == (2, [2, 0])
    assert info.consumers == [consumer.name]


def test_unknown_groups_and_options_are_named(desk: Desk) -> None:
    peer = desk.client()
    peer.make("s")
    with pytest.raises(NotFound, match="'nobody'"):
        peer.group("s", "nobody")
    with pytest.raises(InvalidOption, match="ack_wait"):
        peer.join("s", "g", options={"ack_wait": 3})
    assert peer.describe("s").groups == []


def test_a_new_group_can_start_at_the_end(desk: Desk) -> None:  # SPEC F1
    peer = desk.client()
    peer.make("s")
    peer.publish("s", b"old")
    consumer: Consumer = peer.join("s", "g", start="end")
    peer.publish("s", b"new")
    assert values(consumer.take()) == [b"new"]


@pytest.mark.parametrize("to", [-1, 4, {0: 99}, {1: 0}])
def test_a_seek_outside_the_log_is_refused_and_changes_nothing(desk: Desk, to: Any) -> None:
    peer = desk.client()
    peer.make("s")
    peer.publish("s", b"a", b"b", b"c")
    consumer = peer.join("s", "g")
    consumer.take(2)
    consumer.settle("ack", 0, 1)
    with pytest.raises((OffsetOutOfRange, InvalidInput)):
        peer.call(Op.S_GROUP_SEEK, wire.GroupSeek(stream="s", group="g", to=to), int)
    with pytest.raises((OffsetOutOfRange, InvalidInput)):
        peer.join("s", "new", start=to)
    assert [group.name for group in groups(peer)] == ["g"]
    assert groups(peer)[0].partitions[0].floor == 2
    assert groups(peer)[0].generation == 1


def groups(peer: Peer) -> list[wire.GroupInfo]:
    return peer.call(Op.S_GROUPS, wire.GroupsAsk(stream="s"), list[wire.GroupInfo])


def test_limits_and_waits_out_of_bounds_are_refused(desk: Desk) -> None:
    peer = desk.client()
    peer.make("s")
    consumer = peer.join("s", "g")
    for limit in (0, -1, 1 << 40):
        with pytest.raises(InvalidInput, match="limit"):
            consumer.take(limit)
        with pytest.raises(InvalidInput, match="limit"):
            peer.ask(Op.S_PARKED, wire.pack(wire.ListParked(stream="s", group="g", limit=limit)))
        with pytest.raises(InvalidInput, match="limit"):
            peer.ask(Op.S_LIST, wire.pack(wire.ListAsk(limit=limit)))
    assert isinstance(peer.replies[consumer.poll(wait_ms=-1)], InvalidInput)
    with pytest.raises(InvalidInput, match="wait_ms"):
        peer.ask(Op.S_READ, wire.pack(wire.Read("s", 0, 0, 1 << 20, -1)))
    with pytest.raises(InvalidInput, match="delay_ms"):
        consumer.settle("nack", 0, delay_ms=-1)


def test_a_group_for_claims_is_not_made_or_changed_by_a_consumer_that_joins(desk: Desk) -> None:
    peer = desk.client()
    peer.make("s")
    with pytest.raises(Conflict, match="xstreams"):
        peer.join("s", "g", options={"release": "claim"})
    assert peer.describe("s").groups == []
    stream = desk.service.core.engine.streams.get("s")
    desk.service.core.engine.make_group(stream, "g", {0: 0}, SharedOptions(release="claim"))
    with pytest.raises(Conflict, match="xstreams"):
        peer.join("s", "g", options={"max_deliveries": 9})
    assert peer.group("s", "g").options["max_deliveries"] == 5
