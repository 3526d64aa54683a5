"""A tick touches what is due, however many groups and members there are (finding F14)."""

from __future__ import annotations

import pytest

from nexo.brokers.deadlines import KeyDeadlines
from nexo.brokers.stream.groups.ordered import OrderedGroup
from nexo.brokers.stream.groups.shared import SharedGroup
from nexo.protocol import stream_ordered as ordered
from nexo.protocol.ops import Op
from tests.unit.brokers.stream.desk import Desk


def counted(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> list[object]:
    """Who a method is called on from now on."""
    calls: list[object] = []
    method = getattr(owner, name)

    def call(self: object, *args: object) -> object:
        calls.append(self)
        return method(self, *args)

    monkeypatch.setattr(owner, name, call)
    return calls


def test_a_tick_looks_at_no_shared_group_that_is_not_due(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk()
    peer = desk.client()
    peer.make("s")
    peer.publish("s", b"a")
    for number in range(50):
        wait_ms = 1_000 if number == 7 else 60_000
        peer.join("s", f"g{number}", options={"ack_wait_ms": wait_ms}).take()
    calls = counted(monkeypatch, SharedGroup, "next_deadline")
    desk.after(500)
    assert not calls
    desk.after(600)
    assert set(calls) == {desk.service.core.engine.find("s", "g7")[1]}
    assert peer.group("s", "g7").partitions[0].to_redeliver == 1


def test_a_tick_looks_at_no_ordered_group_that_is_not_due(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk()
    peer = desk.client()
    peer.make("s")
    for number in range(50):
        options = {"session_timeout_ms": 1_000 if number == 7 else 60_000}
        ask = ordered.OrderedJoin(group=f"o{number}", topics=["s"], options=options)
        peer.call(Op.S_ORDERED_JOIN, ask, ordered.Assigned)
    calls = counted(monkeypatch, OrderedGroup, "next_deadline")
    desk.after(500)
    assert not calls
    desk.after(600)
    group = desk.service.core.engine.ordered["o7"]
    assert set(calls) == {group}
    assert group.members == []


def test_a_heartbeat_in_a_large_group_looks_at_one_member(monkeypatch: pytest.MonkeyPatch) -> None:
    group = OrderedGroup()
    for number in range(200):
        group.join(f"m{number}", {"t": 4}, number)
    calls = counted(monkeypatch, OrderedGroup, "_deadline")
    group.heartbeat("m199", group.generation, 300)
    group.next_deadline()
    assert len(calls) <= 2
    assert group.next_deadline() == 30_000


def test_planned_deadlines_come_once_and_the_earliest_counts() -> None:
    deadlines: KeyDeadlines[str] = KeyDeadlines()
    for key, due_ms in (("a", 30), ("b", 20), ("a", 10), ("b", 40), ("c", 50)):
        deadlines.plan(key, due_ms)
    assert deadlines.next_ms() == 10
    assert list(deadlines.due(25)) == ["a", "b"]
    deadlines.plan("a", 30)
    assert list(deadlines.due(45)) == ["a"]
    assert (deadlines.next_ms(), len(deadlines)) == (50, 1)
