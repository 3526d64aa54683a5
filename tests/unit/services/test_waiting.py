"""The waiting room: every way a wait ends, and that none of them takes another along."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from nexo.access.login import Identity
from nexo.errors import NexoError, NotFound
from nexo.services.waiting import Wait, WaitingRoom


class Client:
    """A connection."""

    name = "client"
    identity: Identity | None = None
    closed = False

    def __init__(self, number: int = 1) -> None:
        self.id = number
        self.congested = False
        self.resends = False

    def kick(self, reason: str) -> None: ...


class Shelf:
    """What waits look for: things to be taken, one each."""

    def __init__(self, *things: Any) -> None:
        self.things = list(things)
        self.asked = 0

    def take(self) -> Any:
        self.asked += 1
        return self.things.pop(0) if self.things else None


@pytest.fixture
def room() -> WaitingRoom:
    return WaitingRoom()


def wait(
    room: WaitingRoom,
    ticket: int,
    attempt: Callable[[], Any],
    client: Client | None = None,
    due_ms: int = 100,
    channel: str = "c",
) -> list[Any]:
    """Have a request wait; its answers."""
    answers: list[Any] = []
    room.add(Wait(client or Client(), ticket, (channel,), due_ms, attempt, answers.append, "-"))
    return answers


def raising(_: Any = None) -> Any:
    raise RuntimeError("a bug")


def test_who_waits_longest_is_answered_first(room: WaitingRoom) -> None:
    shelf = Shelf()
    first, second = wait(room, 1, shelf.take), wait(room, 2, shelf.take)
    shelf.things = ["one"]
    room.wake("c")
    assert (first, second) == (["one"], [])


def test_news_cost_one_look_however_many_wait(room: WaitingRoom) -> None:
    shelf = Shelf()
    for ticket in range(1_000):
        wait(room, ticket, shelf.take)
    room.wake("c")
    assert shelf.asked == 1


def test_a_deadline_answers_with_nothing_and_in_order(room: WaitingRoom) -> None:
    late, soon = wait(room, 1, Shelf().take, due_ms=20), wait(room, 2, Shelf().take, due_ms=10)
    assert room.next_due_ms() == 10
    room.expire(10)
    assert (late, soon) == ([], ["-"])
    room.expire(20)
    assert late == ["-"]
    assert room.next_due_ms() is None


def test_a_cancel_answers_one(room: WaitingRoom) -> None:
    client = Client()
    first, second = wait(room, 1, Shelf().take, client), wait(room, 2, Shelf().take, client)
    assert room.cancel(client, 1)
    assert not room.cancel(client, 1)
    assert (first, second) == (["-"], [])


def test_the_end_of_a_connection_ends_its_waits_unanswered(room: WaitingRoom) -> None:
    gone, stays = Client(1), Client(2)
    first, second = wait(room, 1, Shelf("a").take, gone), wait(room, 1, Shelf("b").take, stays)
    room.drop(gone)
    room.wake("c")
    assert (first, second) == ([], ["b"])


def test_a_ticket_used_again_ends_the_wait_before_it(room: WaitingRoom) -> None:
    first = wait(room, 1, Shelf().take, channel="old")
    second = wait(room, 1, Shelf("news").take)
    assert first == ["-"]
    assert not room.waiting_on("old")
    room.wake("c")
    assert second == ["news"]
    assert len(room) == 0


def test_an_answer_that_raises_takes_no_other_along(room: WaitingRoom) -> None:
    """F14: one raising callback must not lose the others' replies."""
    shelf = Shelf("one", "two")
    room.add(Wait(Client(), 1, ("c",), 100, shelf.take, raising))
    answers = wait(room, 2, shelf.take)
    room.wake("c")
    assert answers == ["two"]
    room.add(Wait(Client(), 1, ("c",), 100, shelf.take, raising))
    answers = wait(room, 2, shelf.take)
    room.fail("c", NotFound("gone"))
    assert isinstance(answers[0], NotFound)


def test_a_look_that_raises_is_answered_and_takes_no_other_along(room: WaitingRoom) -> None:
    broken = wait(room, 1, raising)
    answers = wait(room, 2, Shelf("news").take)
    room.wake("c")
    assert answers == ["news"]
    assert isinstance(broken[0], NexoError)


def test_a_client_that_does_not_read_gets_nothing_until_it_does(room: WaitingRoom) -> None:
    """G6: long polls of a slow reader must not pile up replies."""
    slow, quick, shelf = Client(1), Client(2), Shelf("one", "two")
    held = [wait(room, ticket, shelf.take, slow) for ticket in (1, 2)]
    served = wait(room, 1, shelf.take, quick)
    slow.congested = True
    room.pause(slow)
    late = wait(room, 3, shelf.take, slow)
    room.wake("c")
    assert served == ["one"]
    assert held == [[], []]
    slow.congested = False
    room.resume(slow)
    assert held == [["two"], []]
    shelf.things = ["three", "four"]
    room.wake("c")
    assert held[1] == ["three"]
    assert late == ["four"]


def test_a_paused_wait_still_has_its_deadline_and_can_be_cancelled(room: WaitingRoom) -> None:
    slow = Client()
    first, second = wait(room, 1, Shelf().take, slow), wait(room, 2, Shelf().take, slow)
    room.pause(slow)
    assert not room.waiting_on("c")
    room.cancel(slow, 1)
    room.expire(100)
    assert (first, second) == (["-"], ["-"])
