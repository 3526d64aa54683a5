"""What is written in one turn of the loop is bounded, also for very many readers (finding T14)."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from nexo.dialects.nexo.state import FLUSHED_BYTES, NexoState
from nexo.server.loop import LoopTurn


class Waiting:
    """A session with so many bytes to write."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.flushed = self.postpones = 0

    def flush(self) -> int:
        self.flushed += 1
        return self.size

    def postponed(self) -> None:
        self.postpones += 1


class Loop:
    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def turn(self) -> None:
        callbacks, self.soon = self.soon, []
        for callback in callbacks:
            callback()


def flushing(*sizes: int) -> tuple[Loop, NexoState, list[Waiting]]:
    loop = Loop()
    turn = LoopTurn(cast(Any, loop))
    host = cast(Any, SimpleNamespace(loop=loop, turn=turn, services={}, guard=None, busy_poll=None))
    state, sessions = NexoState(cast(Any, None), host), [Waiting(size) for size in sizes]
    for session in sessions:
        state.touched(cast(Any, session))
    return loop, state, sessions


def flushed(sessions: list[Waiting]) -> list[int]:
    return [session.flushed for session in sessions]


def test_large_writes_are_spread_over_turns_in_their_order() -> None:
    loop, _, sessions = flushing(*[FLUSHED_BYTES + 1] * 3)
    loop.turn()
    assert flushed(sessions) == [1, 0, 0]
    assert [session.postpones for session in sessions] == [0, 1, 1]
    loop.turn()
    assert flushed(sessions) == [1, 1, 0]
    loop.turn()
    assert flushed(sessions) == [1, 1, 1]
    assert not loop.soon


def test_small_writes_of_many_leave_in_one_turn() -> None:
    loop, _, sessions = flushing(*[100] * 1_000)
    loop.turn()
    assert flushed(sessions) == [1] * 1_000
    assert not loop.soon


def test_those_who_have_waited_are_flushed_before_those_who_come() -> None:
    loop, state, sessions = flushing(*[FLUSHED_BYTES + 1] * 2)
    loop.turn()
    late = Waiting(1)
    state.touched(cast(Any, late))
    assert len(loop.soon) == 1
    loop.turn()
    assert (flushed(sessions), late.flushed) == ([1, 1], 0)
    loop.turn()
    assert late.flushed == 1
