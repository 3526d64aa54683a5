"""What a consumer takes while it works on something else, and settles along (SPEC F1, F2, F3)."""

from __future__ import annotations

import pytest

from nexo.errors import NexoError, NotMember
from nexo.protocol import stream as wire
from nexo.protocol.ops import Op
from tests.unit.brokers.stream.desk import Consumer, Desk, Got

WAIT_MS = 1_000


@pytest.fixture
def desk() -> Desk:
    made = Desk()
    made.client().make("s")
    return made


def fill(desk: Desk, count: int) -> None:
    desk.client().publish("s", *(b"%d" % number for number in range(count)))


def asked(consumer: Consumer, limit: int, *, ahead: bool = True) -> wire.Take:
    return wire.Take("s", "g", consumer.name, limit, WAIT_MS, ahead=ahead)


def take_ahead(consumer: Consumer, limit: int = 100) -> int:
    """Ask for more; returns the number of the request."""
    return consumer.peer.send(Op.S_TAKE, wire.pack(asked(consumer, limit)))


def take_next(
    consumer: Consumer, verb: wire.Verb, ranges: list[wire.Range], begins: list[wire.Range]
) -> int:
    """Settle, and ask for two more."""
    said = wire.SettleRecords(
        "s", "g", consumer.name, consumer.generation, verb, ranges, 0, "", begins
    )
    return consumer.peer.send(Op.S_NEXT, wire.pack(wire.Next(said, asked(consumer, 2))))


def got(consumer: Consumer, number: int) -> list[Got]:
    reply = consumer.peer.replies[number]
    assert not isinstance(reply, NexoError)
    return consumer.opened(reply)


def attempts(found: list[Got]) -> list[tuple[int, int]]:
    return [(one.offset, one.attempt) for one in found]


@pytest.mark.parametrize("end", ["disconnect", "leave", "timeout"])
def test_what_was_taken_ahead_does_not_count_as_delivered(desk: Desk, end: str) -> None:
    fill(desk, 4)
    one = desk.client().join("s", "g", options={"ack_wait_ms": 5_000})
    one.take(2)
    assert [each.offset for each in got(one, take_ahead(one, 2))] == [2, 3]
    other = desk.client().join("s", "g")
    if end == "disconnect":
        one.peer.close()
        counted = [(0, 2), (1, 1)]
    elif end == "leave":
        gone = wire.GroupLeave(stream="s", group="g", consumer=one.name, unstarted=[(0, 1, 2)])
        one.peer.ask(Op.S_GROUP_LEAVE, wire.pack(gone))
        counted = [(0, 2), (1, 1)]
    else:
        desk.after(5_000)
        counted = [(0, 2), (1, 2)]
    found = [each for _ in range(4) for each in other.take()]
    assert sorted(attempts(found)) == [*counted, (2, 1), (3, 1)]


@pytest.mark.parametrize("begun_by", ["take", "start"])
def test_it_counts_once_the_consumer_works_on_it(desk: Desk, begun_by: str) -> None:
    fill(desk, 4)
    one = desk.client().join("s", "g")
    one.take(2)
    take_ahead(one, 2)
    one.settle("ack", 0, 1)
    if begun_by == "take":
        take_ahead(one, 2)
    else:
        one.settle("start")
    one.peer.close()
    assert attempts(desk.client().join("s", "g").take()) == [(2, 2), (3, 1)]


def test_who_takes_ahead_gets_no_more_than_its_part(desk: Desk) -> None:
    three = [desk.client().join("s", "g") for _ in range(3)]
    fill(desk, 210)
    one = three[0]
    assert len(one.take(100)) == 70
    waits = take_ahead(one, 100)
    assert waits not in one.peer.replies
    assert [len(each.take(100)) for each in three[1:]] == [70, 70]
    assert waits not in one.peer.replies
    three[1].peer.close()
    assert len(got(one, waits)) == 35


def test_who_takes_ahead_alone_gets_all_that_the_group_may_lend(desk: Desk) -> None:
    fill(desk, 10)
    one = desk.client().join("s", "g", options={"max_ack_pending": 5})
    assert len(one.take(3)) == 3
    assert len(got(one, take_ahead(one, 3))) == 2
    waits = take_ahead(one, 3)
    assert waits not in one.peer.replies
    one.settle("ack", 0, 1, 2)
    assert [each.offset for each in got(one, waits)] == [5, 6, 7]


def test_an_ack_and_the_next_take_are_one_request(desk: Desk) -> None:
    fill(desk, 6)
    one = desk.client().join("s", "g", reports_starts=True)
    one.take(2)
    got(one, take_ahead(one, 2))
    number = take_next(one, "ack", [(0, 0, 2)], [(0, 2, 3)])
    assert [each.offset for each in got(one, number)] == [4, 5]
    one.peer.close()
    # 2 had been begun; 3, 4 and 5 had not
    found = desk.client().join("s", "g").take()
    assert sorted(attempts(found)) == [(2, 2), (3, 1), (4, 1), (5, 1)]
    assert desk.crash().client().join("s", "g").take()[0].offset == 2


def test_what_is_not_settled_is_listed_and_the_take_goes_on(desk: Desk) -> None:
    fill(desk, 4)
    one, other = desk.client().join("s", "g"), desk.client().join("s", "g")
    other.take(1)
    number = take_next(one, "ack", [(0, 0, 1)], [])
    head, _ = wire.unpack_headed(wire.TakeReply, one.peer.replies[number])
    assert [(each.first, each.end, each.code) for each in head.refused] == [(0, 1, "NOT_OWNER")]
    one.peer.ask(Op.S_GROUP_SEEK, wire.pack(wire.GroupSeek("s", "g")))
    number = take_next(one, "ack", [(0, 1, 2)], [])
    head, _ = wire.unpack_headed(wire.TakeReply, one.peer.replies[number])
    assert [(each.first, each.end, each.code) for each in head.refused] == [(0, 0, "FENCED")]
    assert head.deliveries


def test_who_is_no_member_settles_and_takes_nothing(desk: Desk) -> None:
    fill(desk, 2)
    one = desk.client().join("s", "g")
    one.name = "stranger"
    number = take_next(one, "ack", [(0, 0, 1)], [])
    assert isinstance(one.peer.replies[number], NotMember)


def test_a_reply_waits_until_what_it_settled_is_durable(desk: Desk) -> None:
    peer = desk.client()
    peer.make("t", persistence="file_sync")
    peer.publish("t", b"a", b"b")
    one = peer.join("t", "g")
    one.take(1)
    desk.runtime.slow_disk = True
    said = wire.SettleRecords("t", "g", one.name, one.generation, "ack", [(0, 0, 1)])
    take = wire.Take("t", "g", one.name, 1, WAIT_MS)
    number = peer.send(Op.S_NEXT, wire.pack(wire.Next(said, take)))
    assert number not in peer.replies
    desk.runtime.sync()
    assert [each.offset for each in got(one, number)] == [1]
