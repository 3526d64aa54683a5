"""The end of a turn of the loop: services, syncs, replies; at once for a lone client (A3, D7)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from nexo.server.loop import LoopTurn


class Loop:
    """Its turns pass when the test says so."""

    def __init__(self) -> None:
        self.asked: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.asked.append(callback)

    def turn(self) -> None:
        asked, self.asked = self.asked, []
        for callback in asked:
            callback()


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def turn(loop: Loop) -> LoopTurn:
    return LoopTurn(cast("asyncio.AbstractEventLoop", loop))


def test_services_come_before_syncs_and_syncs_before_replies(loop: Loop, turn: LoopTurn) -> None:
    done: list[str] = []

    def service() -> None:
        done.append("service")
        turn.sync(sync)

    def sync() -> None:
        done.append("sync")
        turn.reply(lambda: done.append("late reply"))

    turn.reply(lambda: done.append("reply"))
    turn.soon(service)
    assert len(loop.asked) == 1
    loop.turn()
    assert done == ["service", "sync", "reply", "late reply"]
    assert not loop.asked


def test_work_that_asks_for_itself_again_does_not_keep_sockets_waiting(
    loop: Loop, turn: LoopTurn
) -> None:
    runs: list[int] = []

    def again() -> None:
        runs.append(len(runs))
        turn.soon(again)

    turn.soon(again)
    loop.turn()
    assert len(runs) == 2
    assert len(loop.asked) == 1


def test_a_step_that_fails_stops_no_other(loop: Loop, turn: LoopTurn) -> None:
    done: list[str] = []

    def fail() -> None:
        raise ZeroDivisionError("a mistake in the code")

    turn.soon(fail)
    turn.soon(lambda: done.append("other"))
    turn.reply(lambda: done.append("reply"))
    loop.turn()
    assert done == ["other", "reply"]


def test_the_turn_of_a_lone_reader_ends_with_its_read(loop: Loop, turn: LoopTurn) -> None:
    """Others who read in between end it: then there is more to gather."""
    done: list[str] = []
    a, b = object(), object()

    def read(reader: object, what: str) -> None:
        turn.reading = True
        turn.soon(lambda: done.append(what))
        turn.reading = False
        turn.read(reader)

    read(a, "first")
    assert not done
    loop.turn()
    read(a, "alone")
    assert done == ["first", "alone"]
    assert not loop.asked
    read(b, "other")
    read(a, "both")
    assert done == ["first", "alone"]
    assert len(loop.asked) == 1
    loop.turn()
    assert done == ["first", "alone", "other", "both"]


def test_it_says_whether_there_is_something_to_do(loop: Loop, turn: LoopTurn) -> None:
    said = [turn.asked]
    turn.soon(lambda: None)
    said.append(turn.asked)
    loop.turn()
    said.append(turn.asked)
    assert said == [False, True, False]


def test_what_was_abandoned_is_not_done(loop: Loop, turn: LoopTurn) -> None:
    done: list[str] = []
    turn.soon(lambda: done.append("service"))
    turn.reply(lambda: done.append("reply"))
    turn.abandon()
    loop.turn()
    assert not done
