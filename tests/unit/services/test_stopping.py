"""A stop that takes long says so after each queue and stream, so that it is let finish (T27)."""

from __future__ import annotations

from tests.memory_files import MemoryFiles
from tests.unit.brokers.queue.desk import Desk as QueueDesk
from tests.unit.brokers.stream.desk import Desk as StreamDesk


def test_closing_many_queues_is_progress() -> None:
    desk = QueueDesk(MemoryFiles())
    said: list[None] = []
    desk.runtime.progress = lambda: said.append(None)  # type: ignore[method-assign]
    peer = desk.client()
    for number in range(5):
        peer.create(f"q{number}")
    desk.service.close()
    assert len(said) == 5


def test_closing_many_streams_is_progress() -> None:
    desk = StreamDesk()
    said: list[None] = []
    desk.runtime.progress = lambda: said.append(None)  # type: ignore[method-assign]
    peer = desk.client()
    for number in range(5):
        peer.make(f"s{number}")
    desk.service.close()
    assert len(said) == 5
