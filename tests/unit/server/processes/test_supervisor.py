"""Connections that wait for a broker's process."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from nexo import limits
from nexo.config import Settings
from nexo.model import Broker
from nexo.server.entrance.gate import Arrival
from nexo.server.processes.process_kinds import BrokerProcess
from nexo.server.processes.starting import execute


async def test_one_timer_serves_all_connections_that_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SPEC A2: while a process restarts, the supervisor does not spin."""
    process = BrokerProcess(Broker.QUEUE, Settings(), tmp_path, (), execute)
    timers: list[Callable[[], None]] = []

    def note(_delay_s: float, callback: Callable[[], None]) -> None:
        timers.append(callback)

    monkeypatch.setattr(asyncio.get_running_loop(), "call_later", note)
    pairs = [socket.socketpair() for _ in range(10)]
    for ours, _ in pairs:
        process.hand_over(Arrival(ours, "nexo", False))
    assert len(timers) == 1
    timers.pop()()
    assert len(timers) == 1
    for pair in pairs:
        for end in pair:
            end.close()


async def test_a_broker_that_hangs_holds_a_bounded_number_of_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SPEC A2: its clients reconnect for ever; the other brokers need descriptors too."""
    monkeypatch.setattr(limits, "WAITING_FOR_BROKER", 3)
    process = BrokerProcess(Broker.QUEUE, Settings(), tmp_path, (), execute)
    pairs = [socket.socketpair() for _ in range(5)]
    for ours, _ in pairs:
        process.hand_over(Arrival(ours, "nexo", False))
    assert [ours.fileno() == -1 for ours, _ in pairs] == [True, True, False, False, False]
    for pair in pairs:
        for end in pair:
            end.close()
