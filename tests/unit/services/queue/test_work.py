"""Headers of jobs, queues made by their first user, and workers that are lost at work."""

from __future__ import annotations

import pytest

from nexo import limits
from nexo.errors import InvalidInput, InvalidName, NotFound
from nexo.model.queue import RELEASE
from nexo.protocol.ops import Op
from nexo.protocol.queue import Begin, Look, PeekJobs, PopJobs, PopReply, decode, encode, split_head
from nexo.services.queue import open_queue
from tests.memory_files import MemoryFiles
from tests.unit.brokers.queue.desk import Desk, DeskPeer

TRACE = b'{"traceparent":"00-1-1-01"}'


def popped(peer: DeskPeer, name: str = "q", limit: int = 10, reports: bool = False) -> PopReply:
    reply = peer.call(Op.Q_POP, encode(PopJobs(name, limit, 0, 0, reports)))
    return decode(split_head(reply)[0], PopReply)


def test_a_wait_for_longer_than_its_limit_is_refused() -> None:
    peer = Desk(MemoryFiles()).client()
    peer.create("q")
    with pytest.raises(InvalidInput, match=f"use 0 to {limits.QUEUE_WAIT_MS}"):
        peer.call(Op.Q_POP, encode(PopJobs("q", 1, limits.QUEUE_WAIT_MS + 1, 0)))


def test_headers_travel_with_their_jobs_and_survive_a_restart() -> None:
    """U12."""
    files = MemoryFiles()
    peer = Desk(files).client()
    peer.create("q")
    peer.push_many("q", [b"\0a", b"\0b", b"\0c"], headers=[None, TRACE, None])
    peer.push_many("q", [b"\0d"])
    assert popped(peer).headers == {1: TRACE}
    again = Desk(files).client()
    rows = decode(again.call(Op.Q_PEEK, encode(PeekJobs("q"))), list[dict[str, object]])
    assert [row["headers"] for row in rows] == [None, TRACE, None, None]
    assert popped(again).headers == {1: TRACE}


def test_headers_survive_when_their_job_is_copied_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    files = MemoryFiles()
    desk = Desk(files, segment_bytes=4_096)
    peer = desk.client()
    peer.create("q")
    peer.push_many("q", [b"\0old"], headers=[TRACE])
    kept, _ = peer.pop("q", 1)
    monkeypatch.setattr(open_queue, "TAIL_BYTES", 1)
    for _ in range(40):
        peer.push_many("q", [b"\0" + bytes(1_000)])
        token, _ = peer.pop("q")
        peer.settle("q", token)
    queue = desk.service.registry.find("q")
    assert queue.values.places.is_moved(0)
    peer.settle("q", kept, RELEASE)
    assert popped(Desk(files).client()).headers == {0: TRACE}


def test_headers_must_be_one_per_job() -> None:
    peer = Desk(MemoryFiles()).client()
    peer.create("q")
    with pytest.raises(InvalidInput, match="headers has 1 items for 2 jobs"):
        peer.push_many("q", [b"\0a", b"\0b"], headers=[TRACE])
    assert peer.info("q")["waiting"] == 0


def test_the_first_push_or_pop_makes_a_queue_where_the_server_is_set_to() -> None:
    """SPEC O6; finding U8."""
    files = MemoryFiles()
    desk = Desk(files, auto_create_queues=True, queue_max_retries=9)
    peer = desk.client()
    peer.push_many("pushed", [b"\0a"])
    assert peer.pop("popped") == (0, {})
    peer.call(Op.Q_INFO, encode(Look("watched", to_use=True)))
    with pytest.raises(NotFound):
        peer.info("looked")
    with pytest.raises(InvalidName):
        peer.push_many("no such name!", [b"\0a"])
    again = Desk(files).client()
    assert again.info("pushed")["options"]["max_retries"] == 9
    assert again.info("pushed")["waiting"] == 1
    assert again.info("popped")["waiting"] == again.info("watched")["waiting"] == 0


def test_without_the_setting_the_first_user_is_told_to_create_it() -> None:
    peer = Desk(MemoryFiles()).client()
    for op, payload in (
        (Op.Q_POP, encode(PopJobs("q"))),
        (Op.Q_INFO, encode(Look("q", to_use=True))),
    ):
        with pytest.raises(NotFound, match="create it first"):
            peer.call(op, payload)


def test_what_a_lost_connection_had_begun_counts() -> None:
    """F9, SPEC D5: also after a restart."""
    files = MemoryFiles()
    desk = Desk(files)
    peer = desk.client()
    peer.create("q", max_retries=1)
    peer.push_many("q", [b"\0poison", b"\0b", b"\0c"])
    for _ in range(2):
        worker = desk.client()
        token = popped(worker, reports=True).token
        worker.call(Op.Q_BEGIN, encode(Begin("q", [(token, [0, 1])])))
        desk.service.connection_closed(worker)
        desk.runtime.end_turn()
    info = Desk(files).client().info("q")
    assert (info["dead"], info["waiting"], info["failed_total"]) == (1, 2, 1)


def test_jobs_that_begin_after_their_lease_was_lost_change_nothing() -> None:
    peer = Desk(MemoryFiles()).client()
    peer.create("q")
    peer.call(Op.Q_BEGIN, encode(Begin("q", [(99, [0, 1])])))
    with pytest.raises(InvalidInput):
        peer.call(Op.Q_BEGIN, encode(Begin("q", [(99, [0])])))


def test_a_time_limit_wakes_the_broker_by_itself() -> None:
    """U9."""
    desk = Desk(MemoryFiles())
    peer = desk.client()
    peer.create("q", time_limit_ms=1_000)
    peer.push_many("q", [b"\0a"])
    token = popped(peer, reports=True).token
    peer.call(Op.Q_BEGIN, encode(Begin("q", [(token, [0, 1])])))
    desk.pass_time(1_000)
    assert peer.info("q")["failed_total"] == 1
    assert len(peer.pop("q")[1]) == 1
