"""Channels of the waiting room: under one subject, left for a while, answered with nothing."""

from __future__ import annotations

from typing import Any

import pytest

from nexo.access.login import Identity
from nexo.errors import NexoError, NotFound
from nexo.services.waiting import ELSEWHERE, Wait, WaitingRoom


class Client:
    """A connection."""

    id = 1
    name = "client"
    identity: Identity | None = None
    closed = False
    congested = False
    resends = False

    def kick(self, reason: str) -> None: ...


class Poll:
    """A wait that finds what the test lays down, and remembers its answers."""

    def __init__(
        self, room: WaitingRoom, ticket: int, *channels: Any, each: bool = False, nothing: Any = "-"
    ) -> None:
        self.found: Any = None
        self.tried = 0
        self.answers: list[Any] = []
        done = self.answers.append
        self.wait = Wait(Client(), ticket, channels, 100, self._look, done, nothing, each)
        room.add(self.wait)

    def _look(self) -> Any:
        self.tried += 1
        if isinstance(self.found, NexoError):
            raise self.found
        return self.found


def test_a_subject_wakes_all_its_channels_and_no_other() -> None:
    room = WaitingRoom()
    here = [Poll(room, 1, ("s", "a")), Poll(room, 2, ("s", "b"))]
    other = Poll(room, 3, ("t", "a"))
    for poll in (*here, other):
        poll.found = "news"
    assert room.waiting_under("s")
    room.wake_under("s")
    assert [poll.answers for poll in here] == [["news"], ["news"]]
    assert not other.answers
    assert not room.waiting_under("s")
    room.fail_under("t", NotFound("gone"))
    assert isinstance(other.answers[0], NotFound)
    assert len(room) == 0


def test_who_finds_nothing_ends_the_round_unless_each_looks_for_its_own() -> None:
    room = WaitingRoom()
    shared = [Poll(room, n, ("s", "group")) for n in (1, 2)]
    own = [Poll(room, n, ("s", ""), each=True) for n in (3, 4)]
    own[1].found = "mine"
    room.wake_under("s")
    assert [poll.tried for poll in (*shared, *own)] == [1, 0, 1, 1]
    assert own[1].answers == ["mine"]


def test_a_wait_that_goes_elsewhere_leaves_unanswered_and_may_come_back() -> None:
    room = WaitingRoom()
    poll, second = Poll(room, 1, ("s", "g")), Poll(room, 2, ("s", "g"))
    poll.found, second.found = ELSEWHERE, "news"
    room.leave(poll.wait)
    room.wake(("s", "g"))
    assert (poll.answers, second.answers, len(room)) == ([], ["news"], 0)
    poll.found = None
    assert room.back(poll.wait, None)
    assert room.answer_or_wait(poll.wait, 0)
    room.expire(100)
    assert poll.answers == ["-"]


def test_what_a_wait_went_elsewhere_for_may_fail() -> None:
    room = WaitingRoom()
    poll = away(room)
    assert not room.back(poll.wait, NotFound("gone"))
    assert isinstance(poll.answers[0], NotFound)


@pytest.mark.parametrize("end", ["cancel", "give_up", "repeat"])
def test_a_wait_that_is_elsewhere_ends_like_any_other(end: str) -> None:
    room = WaitingRoom()
    poll = away(room)
    match end:
        case "cancel":
            assert room.cancel(poll.wait.connection, 1)
        case "give_up":
            room.give_up(("s", "g"))
        case "repeat":
            poll.found = "news"
            room.answer_or_wait(poll.wait, 0)
    assert poll.answers[0] == "-"
    assert not room.back(poll.wait, None)


def test_a_wait_that_is_elsewhere_goes_with_its_connection() -> None:
    room = WaitingRoom()
    poll = away(room)
    room.drop(poll.wait.connection)
    assert not room.back(poll.wait, None)
    assert not poll.answers


def away(room: WaitingRoom) -> Poll:
    """A wait that asked for something elsewhere."""
    poll = Poll(room, 1, ("s", "g"))
    poll.found = ELSEWHERE
    room.leave(poll.wait)
    room.wake(("s", "g"))
    return poll


def test_nothing_may_be_found_out_when_it_is_needed() -> None:
    room = WaitingRoom()

    def gone() -> Any:
        raise NotFound("gone")

    late, failed = Poll(room, 1, "c", nothing=lambda: "late"), Poll(room, 2, "c", nothing=gone)
    room.give_up("c")
    assert late.answers == ["late"]
    assert isinstance(failed.answers[0], NotFound)
