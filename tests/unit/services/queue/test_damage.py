"""A queue with a damaged file serves the rest and says what it lost (F1)."""

from __future__ import annotations

from pathlib import Path

from nexo.protocol.frames import pack_str
from nexo.protocol.ops import Op
from tests.memory_files import MemoryFiles
from tests.unit.brokers.queue.desk import Desk, DeskPeer

FOLDER = Path("/data/queue/q")


def damaged() -> tuple[MemoryFiles, DeskPeer]:
    """A queue whose second push of three is damaged, opened again."""
    files = MemoryFiles()
    peer = Desk(files).client()
    peer.create("q", max_retries=9)
    for value in (b"\0first", b"\0second", b"\0third"):
        peer.push_many("q", [value])
    path = next(FOLDER / name for name in files.list(FOLDER) if name.endswith(".log"))
    file = files.open(path)
    content = file.read_at(0, file.size())
    file.write_at(content.index(b"second"), [b"SECOND"])
    return files, Desk(files).client()


def test_the_other_jobs_are_served_and_info_says_what_is_lost() -> None:
    _, peer = damaged()
    info = peer.info("q")
    assert (info["waiting"], info["options"]["max_retries"]) == (2, 9)
    assert len(info["losses"]) == 1
    assert "damaged" in info["losses"][0]
    assert list(peer.pop("q")[1].values()) == [b"\0first", b"\0third"]
    peer.create("sound")
    assert peer.info("sound")["losses"] == []


def test_what_a_deleted_queue_had_lost_is_no_longer_reported() -> None:
    files, _ = damaged()
    desk = Desk(files)
    assert desk.service.status()["lost"]["count"] == 1
    desk.client().call(Op.Q_DELETE, pack_str("q"))
    assert desk.service.status()["lost"]["count"] == 0
