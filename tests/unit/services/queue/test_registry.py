"""A start with very many queues: it opens some, the others when they are needed (finding T13)."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from nexo.errors import DiskFailed
from nexo.model.queue import QueueInfo, QueueSurvey
from nexo.protocol.ops import Op
from nexo.protocol.queue import decode, encode
from nexo.protocol.server import SurveyAsk
from nexo.services.queue import registry
from nexo.services.queue.service import QueueService
from nexo.storage.disk.steady import SteadyFiles
from nexo.storage.ports import File
from tests.manual_runtime import ManualClock
from tests.memory_files import MemoryFiles
from tests.unit.brokers.queue.desk import START_MS, Desk, DeskPeer

NAMES = [f"q{number:02}" for number in range(40)]


class PassingClock(ManualClock):
    """Each look at it takes a millisecond, so that a slice ends."""

    def now_ms(self) -> int:
        self.now += 1
        return self.now


class Broken(MemoryFiles):
    """Cannot open the files of one queue while told so."""

    broken = ""

    def open(self, path: Path, *, create: bool = False) -> File:
        if self.broken and self.broken in path.parts:
            raise OSError(errno.EACCES, "Permission denied")
        return super().open(path, create=create)


def filled(files: MemoryFiles) -> None:
    peer = Desk(files).client()
    for name in NAMES:
        peer.create(name)
        peer.push_many(name, [b"\0" + name.encode()])


def restarted(files: MemoryFiles, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """A server whose clock moves, so that it has opened only some when it serves."""
    monkeypatch.setattr(registry, "OPENED_AT_START", 2)
    desk = Desk(MemoryFiles())
    desk.runtime.files = SteadyFiles(files)
    desk.runtime.clock = desk.runtime.time = PassingClock(START_MS)
    desk.service.__init__(desk.runtime)  # type: ignore[misc]
    desk.service.open()
    return desk


def value(peer: DeskPeer, name: str) -> list[bytes]:
    return list(peer.pop(name)[1].values())


def test_a_queue_that_a_start_left_closed_is_opened_when_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = MemoryFiles()
    filled(files)
    desk = restarted(files, monkeypatch)
    assert desk.service.registry.unopened > 20
    assert desk.service.status()["queues"] == len(NAMES)
    peer = desk.client()
    assert value(peer, NAMES[-1]) == [b"\0" + NAMES[-1].encode()]
    peer.create(NAMES[-2])  # it is there
    assert value(peer, NAMES[-2]) == [b"\0" + NAMES[-2].encode()]


def test_the_others_are_opened_in_the_background_and_do_what_is_due(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = MemoryFiles()
    filled(files)
    peer = Desk(files).client()
    peer.push_many(NAMES[-1], [b"\0later"], delay_ms=50)
    desk = restarted(files, monkeypatch)
    while desk.service.registry.unopened:
        assert desk.runtime.wakes, "it asks for its next slice"
        desk.pass_time(1)
    desk.pass_time(1_000)
    assert desk.service.status()["waiting"] == len(NAMES) + 1


def test_a_listing_has_those_that_are_closed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    files = MemoryFiles()
    filled(files)
    desk = restarted(files, monkeypatch)
    peer = desk.client()
    asked = peer.send(Op.Q_LIST, b"")
    assert asked not in peer.replies, "others are served meanwhile"
    while asked not in peer.replies:
        desk.pass_time(1)
    assert [info.name for info in decode(peer.replies[asked], list[QueueInfo])] == NAMES
    desk = restarted(files, monkeypatch)
    page = SurveyAsk(limit=1_000, by_name=True)
    first = decode(desk.client().call(Op.Q_SURVEY, encode(page)), QueueSurvey)
    assert first.total == len(NAMES)
    assert 2 < first.next < len(NAMES), "one page opens a few"


def test_one_that_the_disk_refuses_now_is_opened_later(monkeypatch: pytest.MonkeyPatch) -> None:
    files = Broken()
    filled(files)
    files.broken = NAMES[-1]
    desk = restarted(files, monkeypatch)
    peer = desk.client()
    for _ in range(200):
        desk.pass_time(1)
    assert desk.service.registry.unopened == 1
    with pytest.raises(DiskFailed):
        peer.info(NAMES[-1])
    files.broken = ""
    assert value(peer, NAMES[-1]) == [b"\0" + NAMES[-1].encode()]


def test_a_stop_leaves_those_that_are_closed_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    files = MemoryFiles()
    filled(files)
    restarted(files, monkeypatch).service.close()
    peer = Desk(files).client()
    assert [value(peer, name) for name in NAMES] == [[b"\0" + name.encode()] for name in NAMES]


def test_a_start_opens_the_first_ones_at_once() -> None:
    files = MemoryFiles()
    filled(files)
    service: QueueService = Desk(files).service
    assert service.registry.unopened == 0
