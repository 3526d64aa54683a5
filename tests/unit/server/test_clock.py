"""The clock: steady when the wall clock is set, right again after a while (finding F14)."""

from __future__ import annotations

import pytest

from nexo.server.clock import SteadyClock

SECOND = 1_000_000_000
HOUR = 3_600 * SECOND
START = 1_700_000_000 * SECOND


class Machine:
    """Its three clocks."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.wall_ns = START
        self.monotonic_ns = self.boot_ns = 5 * HOUR
        patch.setattr("nexo.server.clock.time.time_ns", lambda: self.wall_ns)
        patch.setattr("nexo.server.clock.time.monotonic_ns", lambda: self.monotonic_ns)
        patch.setattr("nexo.server.clock.time.clock_gettime_ns", lambda _clock: self.boot_ns)

    def run(self, nanoseconds: int) -> None:
        self.wall_ns += nanoseconds
        self.monotonic_ns += nanoseconds
        self.boot_ns += nanoseconds

    def suspend(self, nanoseconds: int) -> None:
        self.wall_ns += nanoseconds
        self.boot_ns += nanoseconds


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def off_ms(steady: SteadyClock, machine: Machine) -> int:
    return steady.now_ms() - machine.wall_ns // 1_000_000


def test_time_asleep_has_passed(machine: Machine) -> None:
    steady = SteadyClock()
    machine.run(10 * SECOND)
    machine.suspend(8 * HOUR)
    machine.run(SECOND)
    assert off_ms(steady, machine) == 0


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_a_clock_that_is_set_is_followed_slowly_and_never_back(machine: Machine, step: int) -> None:
    steady = SteadyClock()
    machine.wall_ns += step
    before, began = steady.now_ms(), machine.monotonic_ns
    while abs(off_ms(steady, machine)) > 1:
        machine.run(SECOND // 2)
        now = steady.now_ms()
        assert now >= before
        before = now
        assert machine.monotonic_ns - began < 30 * HOUR, "it never gets there"


def test_durations_are_off_by_little_while_it_follows(machine: Machine) -> None:
    steady = SteadyClock()
    machine.wall_ns += HOUR
    before = steady.now_ms()
    for _ in range(60):
        machine.run(SECOND)
        steady.now_ms()
    assert 60_000 <= steady.now_ms() - before <= 64_000


def test_a_clock_that_was_not_set_at_the_start_is_right_after_a_second(machine: Machine) -> None:
    machine.wall_ns = 0
    steady = SteadyClock()
    machine.run(SECOND)
    machine.wall_ns = START
    machine.run(SECOND)
    assert off_ms(steady, machine) == 0
