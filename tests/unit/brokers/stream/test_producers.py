"""Names of producers are bounded in length and number, and forgotten after a time (G12)."""

from __future__ import annotations

import pytest

from nexo.brokers.stream.groups.limits import MAX_NAME
from nexo.brokers.stream.producers import NAME_MS, ProducerNames, ProducerSession
from nexo.errors import InvalidInput
from nexo.protocol.frames import pack_str
from nexo.protocol.ops import Op
from nexo.protocol.stream import unpack
from nexo.protocol.stream_publishing import ProducerStart
from tests.unit.brokers.stream.desk import Desk, Peer


def start(peer: Peer, name: str) -> ProducerStart:
    return unpack(ProducerStart, peer.ask(Op.S_PRODUCER, pack_str(name)))


def test_a_long_name_is_refused() -> None:
    peer = Desk().client()
    with pytest.raises(InvalidInput, match="256 characters"):
        start(peer, "n" * (MAX_NAME + 1))
    assert start(peer, "n" * MAX_NAME).epoch == 0


def test_a_name_keeps_its_id_over_restarts_and_snapshots() -> None:
    desk = Desk()
    first = start(desk.client(), "a")
    assert start(desk.client(), "a") == ProducerStart(first.producer, 1)
    killed = Desk(desk.files)
    assert start(killed.client(), "a") == ProducerStart(first.producer, 2)
    killed.service.close()
    assert start(Desk(desk.files).client(), "a") == ProducerStart(first.producer, 3)


def test_a_name_that_was_not_used_for_long_gets_a_new_id() -> None:
    desk = Desk()
    first = start(desk.client(), "a")
    desk.runtime.time.now += NAME_MS
    again = start(desk.client(), "a")
    assert again.epoch == 0
    assert again.producer > first.producer


def test_of_too_many_names_the_one_started_longest_ago_is_forgotten() -> None:
    names = ProducerNames(limit=2)
    for number, name in enumerate(["a", "b", "a", "c"]):
        names.started(name, ProducerSession(number, 0), now_ms=number)
    assert list(names.state()) == ["a", "c"]


def test_producers_without_a_name_are_not_kept() -> None:
    names = ProducerNames()
    names.started("", ProducerSession(1, 0), now_ms=0)
    assert len(names) == 0
    assert names.next_id == 2
