"""Counts of all queues together, and queues page by page."""

from __future__ import annotations

import pytest

from nexo.model.queue import QueueInfo, QueueSurvey
from nexo.protocol.ops import Op
from nexo.protocol.queue import Named, decode, encode
from nexo.protocol.server import SurveyAsk
from nexo.services.queue import totals
from tests.memory_files import MemoryFiles
from tests.unit.brokers.queue.desk import Desk, DeskPeer


def survey(peer: DeskPeer, **ask: object) -> QueueSurvey:
    return decode(peer.call(Op.Q_SURVEY, encode(SurveyAsk(**ask))), QueueSurvey)  # type: ignore[arg-type]


def test_totals_are_exact_at_once_while_queues_are_few() -> None:
    desk = Desk(MemoryFiles())
    peer = desk.client()
    for name in "abc":
        peer.create(name)
        peer.push_many(name, [b"\0x"] * 4)
    token, jobs = peer.pop("a", 3)
    peer.settle("a", token, jobs=list(jobs)[:1])
    status = desk.service.status()
    assert (status["queues"], status["waiting"], status["working"]) == (3, 9, 2)
    assert (status["pushed_total"], status["finished_total"]) == (12, 1)


def test_totals_of_many_queues_are_caught_up_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(totals, "PER_READ", 10)
    desk = Desk(MemoryFiles())
    peer = desk.client()
    for number in range(35):
        peer.create(f"q{number}")
        peer.push_many(f"q{number}", [b"\0x"])
    read = [desk.service.status()["waiting"] for _ in range(4)]
    assert read == [10, 20, 30, 35]


def test_a_deleted_queue_leaves_the_levels_but_not_the_totals() -> None:
    desk = Desk(MemoryFiles())
    peer = desk.client()
    peer.create("a")
    peer.push_many("a", [b"\0x"] * 5)
    assert desk.service.status()["waiting"] == 5
    desk.service.delete(peer, "a")
    status = desk.service.status()
    assert (status["waiting"], status["pushed_total"]) == (0, 5)
    peer.create("a")
    peer.push_many("a", [b"\0x"])
    assert desk.service.status()["pushed_total"] == 6


def test_queues_are_listed_page_by_page() -> None:
    peer = Desk(MemoryFiles()).client()
    for name in ("b", "a", "Apple", "c"):
        peer.create(name)
    first = survey(peer, limit=3)
    assert [row.name for row in first.queues] == ["b", "a", "Apple"]
    assert (first.total, first.next) == (4, 3)
    last = survey(peer, limit=3, position=first.next)
    assert ([row.name for row in last.queues], last.next) == (["c"], 0)
    named = survey(peer, by_name=True, search="A")
    assert [row.name for row in named.queues] == ["Apple", "a"]
    assert last.queues[0] == decode(peer.call(Op.Q_INFO, encode(Named("c"))), QueueInfo)
