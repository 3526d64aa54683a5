"""A look over all streams and groups, page by page."""

from __future__ import annotations

from nexo.brokers.stream.status import OPENS
from nexo.model.stream import GroupSeen, StreamSeen, StreamSurvey
from nexo.protocol import stream as wire
from nexo.protocol import stream_ordered as ordered
from nexo.protocol.ops import Op
from nexo.protocol.server import SurveyAsk
from tests.unit.brokers.stream.desk import Desk, Peer


def pages(peer: Peer, limit: int) -> list[StreamSurvey]:
    """One whole round."""
    found: list[StreamSurvey] = []
    while not found or found[-1].next:
        position = found[-1].next if found else 0
        ask = SurveyAsk(position=position, limit=limit)
        found.append(peer.call(Op.S_SURVEY, ask, StreamSurvey))
    return found


def groups(found: list[StreamSurvey]) -> list[GroupSeen]:
    return [group for page in found for group in page.groups]


def test_a_round_shows_every_stream_and_group_once() -> None:
    peer = Desk().client()
    for number in range(250):
        peer.make(f"s{number}")
        peer.join(f"s{number}", "g")
    found = pages(peer, 100)
    assert len(found) > 2
    assert all(len(page.streams) <= 100 for page in found)
    assert [stream.name for page in found for stream in page.streams] == [
        f"s{number}" for number in range(250)
    ]
    assert len({group.stream for group in groups(found)}) == 250


def test_a_shared_group_is_shown_with_its_lag() -> None:
    peer = Desk().client()
    peer.make("s", partitions=2)
    consumer = peer.join("s", "g")
    peer.publish("s", *[b"x"] * 10)
    taken = consumer.take(4)
    consumer.settle("ack", taken[0].offset, partition=taken[0].partition)
    (page,) = pages(peer, 100)
    assert page.streams == [StreamSeen("s", 2, 10, page.streams[0].bytes, 10, 1)]
    assert page.groups == [GroupSeen("s", "g", "shared", 9, 3, 0, 1, 1)]


def test_an_ordered_group_is_shown_per_topic() -> None:
    peer = Desk().client()
    for name, records in (("a", 5), ("b", 3), ("unread", 7)):
        peer.make(name)
        peer.publish(name, *[b"x"] * records)
    join = ordered.OrderedJoin(group="g", topics=["a", "b"], member="m")
    joined = peer.call(Op.S_ORDERED_JOIN, join, ordered.Assigned)
    offsets = [("a", 0, 1, "")]
    commit = ordered.Commit(group="g", member="m", generation=joined.generation, offsets=offsets)
    peer.ask(Op.S_COMMIT, wire.pack(commit))
    assert set(groups(pages(peer, 1))) == {
        GroupSeen("a", "g", "ordered", 3, 0, 0, 1, 2),
        GroupSeen("b", "g", "ordered", 3, 0, 0, 1, 0),
    }


def test_a_page_opens_only_a_few_logs() -> None:  # SPEC E1
    desk = Desk()
    peer = desk.client()
    for number in range(4 * OPENS):
        peer.make(f"s{number}")
        peer.publish(f"s{number}", b"x")
        peer.join(f"s{number}", "g")
    again = desk.crash()
    streams = again.service.core.engine.streams
    peer = again.client()
    ask = SurveyAsk(limit=1_000)
    first = peer.call(Op.S_SURVEY, ask, StreamSurvey)
    assert (len(first.groups), first.next) == (OPENS, OPENS)
    assert sum(1 for stream in streams for _ in stream.opened()) == OPENS
    assert len(groups(pages(peer, 1_000))) == 4 * OPENS


def test_an_empty_broker_has_one_empty_page() -> None:
    assert pages(Desk().client(), 100) == [StreamSurvey(streams=[], groups=[], next=0)]
