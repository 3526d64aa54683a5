"""The loop busy-polls while requests follow replies closely, and only then."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from nexo.dialects import busy_poll
from nexo.dialects.busy_poll import ENOUGH, LARGE_BYTES, SHARED, TAKEN_NS, TRUST, BusyPoll

SPAN_NS = 100_000
NEAR_NS, FAR_NS = SPAN_NS // 2, SPAN_NS * 2


class Turns:
    """An event loop that only counts who asks for another turn."""

    def __init__(self) -> None:
        self.asked: list[Callable[[], object]] = []

    def call_soon(self, callback: Callable[[], object]) -> None:
        self.asked.append(callback)

    def turn(self) -> None:
        asked, self.asked = self.asked, []
        for callback in asked:
            callback()


class Client:
    """Asks one request after the other of a loop whose clock it turns."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cores: int = 2) -> None:
        self.now_ns = 1_000_000_000
        monkeypatch.setattr(busy_poll, "monotonic_ns", lambda: self.now_ns)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
        self.loop = Turns()
        self.busy_poll = BusyPoll(self.loop.call_soon, SPAN_NS // 1000)

    def ask(self, pause_ns: int, times: int = 1, size: int = 100) -> None:
        """Each request comes so long after the last answer, and is answered at once."""
        for _ in range(times):
            self.now_ns += pause_ns
            self.loop.turn()
            self.busy_poll.heard(self.now_ns, size)
            self.busy_poll.sent(self.now_ns)

    @property
    def polls(self) -> bool:
        """Whether the loop is to turn again without anything to do."""
        return bool(self.loop.asked)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    return Client(monkeypatch)


def test_rare_requests_let_it_sleep(client: Client) -> None:
    client.ask(FAR_NS, times=100)
    assert not client.polls


def test_requests_that_follow_closely_make_it_poll(client: Client) -> None:
    client.ask(FAR_NS)
    client.ask(NEAR_NS, times=ENOUGH - 1)
    assert not client.polls
    client.ask(NEAR_NS)
    assert client.polls


def test_it_sleeps_when_the_next_one_does_not_come(client: Client) -> None:
    client.ask(NEAR_NS, times=TRUST)
    for _ in range(3):
        client.loop.turn()
        assert client.polls
    client.now_ns += SPAN_NS
    client.loop.turn()
    assert not client.polls


def test_it_does_not_poll_while_a_request_waits_for_its_answer(client: Client) -> None:
    client.ask(NEAR_NS, times=TRUST)
    client.busy_poll.heard(client.now_ns + 1, 100)
    client.loop.turn()
    assert not client.polls
    client.busy_poll.sent(client.now_ns + NEAR_NS)
    assert client.polls


def test_it_forgets_a_busy_time_after_a_few_that_came_late(client: Client) -> None:
    client.ask(NEAR_NS, times=10 * TRUST)
    client.ask(FAR_NS, times=TRUST - ENOUGH + 1)
    client.loop.turn()
    assert not client.polls


def test_batches_let_it_sleep(client: Client) -> None:
    for _ in range(100):
        client.ask(NEAR_NS, times=ENOUGH - 1)
        client.ask(NEAR_NS, size=LARGE_BYTES + 1)
        assert not client.polls


def test_nothing_is_looked_for_on_one_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(monkeypatch, cores=1)
    client.ask(NEAR_NS, times=100)
    assert not client.polls


def test_a_core_that_others_want_is_left_to_them(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.ask(NEAR_NS, ENOUGH + 1)

    def taken() -> None:
        client.now_ns += 2 * TAKEN_NS

    monkeypatch.setattr(os, "sched_yield", taken)
    client.loop.turn()
    client.loop.turn()
    client.ask(NEAR_NS, SHARED)
    polled = client.polls
    client.ask(NEAR_NS, ENOUGH + 1)
    assert (polled, client.polls) == (False, True)
