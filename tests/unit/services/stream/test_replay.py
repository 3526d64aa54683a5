"""Shared groups go on where the log no longer does: the lake has what they need (SPEC F, I3)."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from nexo.batch import decode, entries
from nexo.errors import OffsetOutOfRange, Unavailable
from nexo.protocol import stream as wire
from nexo.protocol.ops import Op
from nexo.services.connection import Done
from nexo.services.stream import replay
from nexo.services.stream.replay import StreamPosition
from nexo.storage.header import parse
from tests.unit.brokers.stream.desk import Consumer, Desk, Got, Peer


class Portion(NamedTuple):
    entries: list[bytes]
    next_offset: int


class FakeTier:
    """Holds entries by partition; answers when the test says so."""

    def __init__(self) -> None:
        self.there = True
        self.fails: Unavailable | None = None
        self.kept: dict[int, list[bytes]] = {}
        self.ends: dict[int, int] = {}
        self.asked: list[StreamPosition] = []
        self._waiting: list[tuple[StreamPosition, Done[replay.Portion]]] = []

    def reachable(self) -> bool:
        return self.there

    def read(self, place: StreamPosition, max_bytes: int, done: Done[replay.Portion]) -> None:
        self.asked.append(place)
        self._waiting.append((place, done))

    def answer(self) -> None:
        """Answer everything asked, one entry each, and what is asked thereupon."""
        while self._waiting:
            place, done = self._waiting.pop(0)
            done(self.fails or self._portion(place))

    def _portion(self, place: StreamPosition) -> Portion:
        for entry in self.kept.get(place.partition, []):
            end = parse(entry).next_offset
            if end > place.offset:
                return Portion([entry], end)
        return Portion([], self.ends[place.partition])


class Cooled:
    """A stream of ten batches of ten, of which the log has the last one and the lake the rest."""

    def __init__(self, partitions: int = 1, step_ms: int = 0) -> None:
        self.desk = Desk(hot_ms=0, hot_messages=0)
        self._step_ms = step_ms
        self.tier = FakeTier()
        self.desk.service.core.replay.tier = self.tier
        self.peer = self.desk.client()
        self.peer.make("s", tiering=True, partitions=partitions, retention_ms=1_000)
        self.early = self.peer.join("s", "early")
        for partition in range(partitions):
            for first in range(0, 90, 10):
                self._publish(first, partition)
        self.cool()
        for partition in range(partitions):
            self._publish(90, partition)

    def _publish(self, first: int, partition: int) -> None:
        rows = range(first, first + 10)
        keys: list[bytes | None] = [b"k%d" % (i % 3) for i in rows]
        self.peer.publish("s", *(b"%d" % i for i in rows), keys=keys, partition=partition)
        self.desk.runtime.time.now += self._step_ms

    def cool(self) -> None:
        """Move all there is to the lake."""
        stream = self.desk.service.core.engine.streams.get("s")
        for index, partition in enumerate(stream.partitions()):
            kept = self.tier.kept.setdefault(index, [])
            kept += partition.log.entries(partition.start_offset)
            self.tier.ends[index] = partition.next_offset
            tiered = wire.TieredTo(stream="s", partition=index, offset=partition.next_offset)
            self.peer.ask(Op.S_TIERED, wire.pack(tiered))
        now = self.desk.runtime.time.now
        self.desk.runtime.time.now += 10_000
        self.peer.ask(Op.S_RETAIN, wire.pack(wire.StreamName(stream="s")))
        self.desk.runtime.time.now = now
        assert all(part.start_offset == part.next_offset for part in stream.partitions())

    def take(self, consumer: Consumer, limit: int = 100) -> list[Got]:
        """What one request without waiting gets, once the lake has answered."""
        poll = consumer.poll(limit, wait_ms=0)
        self.tier.answer()
        self.desk.runtime.end_turn()
        reply = consumer.peer.replies[poll]
        if isinstance(reply, Exception):
            raise reply
        return consumer.opened(reply)

    def drain(self, consumer: Consumer, limit: int = 7) -> list[Got]:
        """Everything there is, acked as it comes."""
        found: list[Got] = []
        while got := self.take(consumer, limit):
            found += got
            for partition in {each.partition for each in got}:
                offsets = [each.offset for each in got if each.partition == partition]
                assert consumer.settle("ack", *offsets, partition=partition) == []
        return found


def offsets(found: list[Got]) -> list[int]:
    return [got.offset for got in found]


@pytest.mark.parametrize("limit", [1, 7, 10, 100])
def test_a_new_group_gets_every_record_once_and_in_order_over_the_border(limit: int) -> None:
    cooled = Cooled()
    found = cooled.drain(cooled.peer.join("s", "g"), limit)
    assert [(got.offset, got.value) for got in found] == [(i, b"%d" % i) for i in range(100)]
    assert {got.attempt for got in found} == {1}
    assert cooled.peer.group("s", "g").lag == 0


def test_each_part_of_the_lake_is_read_once() -> None:
    cooled = Cooled()
    cooled.drain(cooled.peer.join("s", "g"), 3)
    assert [place.offset for place in cooled.tier.asked] == list(range(0, 90, 10))


def test_the_next_part_is_fetched_while_one_is_worked_on() -> None:
    cooled = Cooled()
    consumer = cooled.peer.join("s", "g")
    assert offsets(cooled.take(consumer, 3)) == [0, 1, 2]
    assert [place.offset for place in cooled.tier.asked] == [0, 10]
    for _ in range(3):
        assert consumer.take(3), "no need to wait for the lake"


def test_a_group_that_lags_behind_retention_loses_nothing() -> None:
    cooled = Cooled()
    assert cooled.peer.group("s", "early").lag == 100
    assert offsets(cooled.drain(cooled.early)) == list(range(100))


def test_all_partitions_are_replayed() -> None:
    cooled = Cooled(partitions=3)
    found = cooled.drain(cooled.peer.join("s", "g"), 8)
    for partition in range(3):
        part = [got.offset for got in found if got.partition == partition]
        assert part == list(range(100))


def test_what_is_deleted_in_the_lake_is_given_no_longer_than_until_the_next_check() -> None:
    cooled = Cooled()
    consumer = cooled.peer.join("s", "g")
    assert offsets(cooled.take(consumer, 3)) == [0, 1, 2]
    consumer.settle("ack", 0, 1, 2)
    del cooled.tier.kept[0][0]
    cooled.desk.after(cooled.desk.runtime.settings.retention_check_ms)
    assert offsets(cooled.take(consumer, 3))[0] == 10


def test_consumers_share_what_the_lake_gives() -> None:
    cooled = Cooled()
    one, two = cooled.peer.join("s", "g"), cooled.peer.join("s", "g")
    polls = [one.poll(4, wait_ms=0), two.poll(4, wait_ms=0)]
    cooled.tier.answer()
    assert [place.offset for place in cooled.tier.asked] == [0, 10]
    first, second = (one.opened(one.peer.replies[poll]) for poll in polls)
    assert offsets(first) == [0, 1, 2, 3]
    assert offsets(second) == [4, 5, 6, 7]


def test_every_poll_is_answered_though_one_repeats_the_ticket_of_another() -> None:
    cooled = Cooled()
    consumer = cooled.peer.join("s", "g")
    answers: list[Any] = []
    taking = cooled.desk.service.taking
    for _ in range(2):
        taking.take(cooled.peer, 7, "s", "g", consumer.name, 4, 1_000, answers.append)
    assert [len(each.deliveries) for each in answers] == [0], "the earlier one ends with nothing"
    cooled.tier.answer()
    assert [len(each.deliveries) for each in answers] == [0, 1]


def test_a_cancelled_poll_that_asked_the_lake_is_answered_at_once_and_takes_nothing() -> None:
    cooled = Cooled()
    consumer = cooled.peer.join("s", "g")
    answers: list[Any] = []
    cooled.desk.service.taking.take(
        cooled.peer, 7, "s", "g", consumer.name, 4, 1_000, answers.append
    )
    cooled.desk.service.cancel(cooled.peer, 7)
    cooled.tier.answer()
    assert [each.deliveries for each in answers] == [[]]
    assert offsets(cooled.take(consumer, 2)) == [0, 1]


def test_nacks_redeliver_and_park_what_is_in_the_lake() -> None:  # SPEC F2, F3
    cooled = Cooled()
    consumer = cooled.peer.join("s", "g", options={"max_deliveries": 2})
    assert offsets(cooled.take(consumer, 10)) == list(range(10))
    consumer.settle("ack", 0, 1, 2, 4, 5, 6, 7, 8, 9)
    consumer.settle("nack", 3)
    assert [(got.offset, got.attempt) for got in cooled.take(consumer, 1)] == [(3, 2)]
    consumer.settle("nack", 3)
    assert offsets(cooled.drain(consumer)) == list(range(10, 100))
    assert shown(cooled) == [(3, b"3")]
    ask = wire.ParkedSettle(stream="s", group="g", verb="replay")
    assert cooled.peer.call(Op.S_PARKED_SETTLE, ask, int) == 1
    assert [(got.offset, got.attempt) for got in cooled.take(consumer)] == [(3, 1)]
    assert consumer.settle("ack", 3) == []
    assert cooled.peer.group("s", "g").lag == 0


def shown(cooled: Cooled) -> list[tuple[int, bytes | None]]:
    """The parked records of group ``g``."""
    ask = wire.pack(wire.ListParked(stream="s", group="g"))
    request = cooled.peer.send(Op.S_PARKED, ask)
    cooled.tier.answer()
    head, rest = wire.unpack_headed(wire.ParkedList, cooled.peer.replies[request])
    wanted = {offset for row in head.rows for offset in range(row.first, row.end)}
    rows = [row for entry in entries(rest) for row in decode(entry).records()]
    return [(row.offset, row.value) for row in rows if row.offset in wanted]


def test_parked_records_of_many_places_are_shown() -> None:
    cooled = Cooled()
    consumer = cooled.peer.join("s", "g", options={"max_deliveries": 1})
    parked = {0, *range(8, 33), 57, 95}
    while got := cooled.take(consumer, 9):
        consumer.settle("nack", *(o for o in offsets(got) if o in parked))
        consumer.settle("ack", *(o for o in offsets(got) if o not in parked))
    assert sorted(shown(cooled)) == [(offset, b"%d" % offset) for offset in sorted(parked)]
    cooled.tier.fails = Unavailable("no catalog")
    assert (95, b"95") in shown(cooled)


def test_a_timeout_redelivers_from_the_lake() -> None:  # SPEC F2
    cooled = Cooled()
    consumer = cooled.peer.join("s", "g", options={"ack_wait_ms": 1_000})
    assert offsets(cooled.take(consumer, 5)) == list(range(5))
    cooled.desk.after(1_000)
    assert {got.attempt for got in cooled.take(consumer, 5)} == {2}


def test_keys_keep_their_order_through_the_lake() -> None:  # SPEC F8
    cooled = Cooled()
    consumer = cooled.peer.join("s", "g", options={"ordered_by": "key"})
    assert offsets(cooled.take(consumer, 10)) == [0, 1, 2]
    assert cooled.take(consumer, 10) == []
    consumer.settle("ack", 1)
    assert offsets(cooled.take(consumer, 10)) == [4]
    consumer.settle("ack", 0, 2, 4)
    rest = offsets(cooled.drain(consumer, 10))
    assert sorted(rest) == [3, *range(5, 100)]
    for key in range(3):
        assert [o for o in rest if o % 3 == key] == sorted(o for o in rest if o % 3 == key)
    assert cooled.peer.group("s", "g").lag == 0


def test_a_seek_back_into_the_lake_reaches_a_waiting_consumer() -> None:  # SPEC F4
    cooled = Cooled()
    consumer = cooled.peer.join("s", "g")
    cooled.drain(consumer)
    poll = consumer.poll(5, wait_ms=10_000)
    seek = wire.GroupSeek(stream="s", group="g", to=42)
    assert cooled.peer.call(Op.S_GROUP_SEEK, seek, int) == consumer.generation + 1
    cooled.tier.answer()
    assert offsets(consumer.opened(cooled.peer.replies[poll])) == [42, 43, 44, 45, 46]
    with pytest.raises(OffsetOutOfRange):
        cooled.peer.call(Op.S_GROUP_SEEK, wire.GroupSeek(stream="s", group="g", to=101), int)


def at_time(cooled: Cooled, time_ms: int) -> int:
    """The offset that a group starts at when it is to start at a time."""
    ask = wire.GroupJoin(stream="s", group=f"at {time_ms}".replace(" ", "-"), start_ms=time_ms)
    request = cooled.peer.send(Op.S_GROUP_JOIN, wire.pack(ask))
    cooled.tier.answer()
    cooled.desk.runtime.end_turn()
    wire.unpack(wire.GroupJoined, cooled.peer.replies[request])
    return cooled.peer.group("s", ask.group).partitions[0].floor


def test_times_are_found_in_the_lake() -> None:  # SPEC F4
    cooled = Cooled(step_ms=100)
    for n in range(10):
        assert at_time(cooled, 1_000_000 + 100 * n) == 10 * n
        assert at_time(cooled, 1_000_000 + 100 * n - 1) == 10 * n
    assert at_time(cooled, 5_000_000) == 100
    request = cooled.peer.send(
        Op.S_OFFSETS_AT, wire.pack(wire.OffsetsAt(stream="s", time_ms=1_000_350))
    )
    cooled.tier.answer()
    assert wire.unpack(list[int], cooled.peer.replies[request]) == [40]
    seek = wire.GroupSeek(stream="s", group="early", to_ms=1_000_200)
    cooled.peer.send(Op.S_GROUP_SEEK, wire.pack(seek))
    cooled.tier.answer()
    assert cooled.peer.group("s", "early").partitions[0].floor == 20


def test_a_time_in_a_lake_out_of_reach_is_an_error() -> None:
    cooled = Cooled(step_ms=100)
    cooled.tier.fails = Unavailable("no catalog")
    ask = wire.GroupJoin(stream="s", group="g", start_ms=1_000_000)
    request = cooled.peer.send(Op.S_GROUP_JOIN, wire.pack(ask))
    cooled.tier.answer()
    assert isinstance(cooled.peer.replies[request], Unavailable)
    assert "g" not in cooled.peer.describe("s").groups


def test_gaps_in_the_lake_are_stepped_over() -> None:
    cooled = Cooled()
    del cooled.tier.kept[0][2:4], cooled.tier.kept[0][-1]
    found = cooled.drain(cooled.peer.join("s", "g"))
    assert offsets(found) == [*range(20), *range(40, 80), *range(90, 100)]
    assert cooled.peer.group("s", "g").lag == 0


def test_an_unreachable_lake_is_an_error_and_nothing_is_lost() -> None:
    cooled = Cooled()
    consumer = cooled.peer.join("s", "g")
    cooled.tier.fails = Unavailable("no catalog")
    with pytest.raises(Unavailable, match="no catalog"):
        cooled.take(consumer)
    cooled.tier.fails = None
    assert offsets(cooled.drain(consumer)) == list(range(100))


def test_a_lake_that_lost_the_records_is_an_error() -> None:
    cooled = Cooled()
    cooled.tier.kept.clear()
    cooled.tier.ends[0] = 0
    with pytest.raises(Unavailable, match="offset 0"):
        cooled.take(cooled.peer.join("s", "g"))


def test_without_a_lake_groups_step_over_what_retention_took() -> None:
    cooled = Cooled()
    consumer = cooled.peer.join("s", "g")
    cooled.tier.there = False
    assert offsets(cooled.drain(consumer)) == list(range(90, 100))
    assert offsets(cooled.drain(cooled.peer.join("s", "late"))) == list(range(90, 100))
    assert cooled.tier.asked == []


def test_a_consumer_that_left_gets_nothing_and_holds_nothing() -> None:
    cooled = Cooled()
    gone = cooled.desk.client()
    consumer = gone.join("s", "g")
    poll = consumer.poll()
    gone.close()
    cooled.tier.answer()
    assert poll not in gone.replies
    assert offsets(cooled.drain(cooled.peer.join("s", "g"))) == list(range(100))


def test_a_cancelled_poll_waits_for_the_lake_and_no_longer() -> None:
    cooled = Cooled()
    consumer, other = cooled.peer.join("s", "g"), cooled.peer.join("s", "g")
    poll = consumer.poll(wait_ms=60_000)
    cooled.peer.call(Op.S_GROUP_SEEK, wire.GroupSeek(stream="s", group="g", to="end"), int)
    assert other.take() == []
    cooled.desk.service.cancel(cooled.peer, poll)
    cooled.tier.answer()
    assert consumer.opened(cooled.peer.replies[poll]) == []


def test_a_stream_deleted_meanwhile_ends_the_request() -> None:
    cooled = Cooled()
    consumer = cooled.peer.join("s", "g")
    poll = consumer.poll()
    cooled.peer.send(Op.S_DELETE, b"\0\0\0\1s")
    cooled.tier.answer()
    assert cooled.peer.replies[poll].code == "NOT_FOUND"


def test_progress_in_the_lake_survives_a_crash() -> None:  # SPEC F6
    cooled = Cooled()
    consumer = cooled.peer.join("s", "g")
    consumer_got = cooled.take(consumer, 15)
    consumer.settle("ack", *offsets(consumer_got))
    cooled.desk = cooled.desk.crash()
    cooled.desk.service.core.replay.tier = cooled.tier
    cooled.peer = cooled.desk.client()
    found = cooled.drain(cooled.peer.join("s", "g"))
    assert offsets(consumer_got + found) == list(range(100))


def test_the_existing_client_replays_too() -> None:
    cooled = Cooled()
    peer: Peer = cooled.desk.client(coded=False)
    joined = peer.ask(Op.S_JOIN, b"\0\0\0\1g\0\0\0\1s")
    member = joined[16:]
    fetch = b"\0\0\0\1s\0\0\0\1g" + member + joined[8:16] + b"\0\0\0\5" + b"\0\0\0\0"
    request = peer.send(Op.S_FETCH, fetch)
    cooled.tier.answer()
    assert int.from_bytes(peer.replies[request][:4], "big") == 5
