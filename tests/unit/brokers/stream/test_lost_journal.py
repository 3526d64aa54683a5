"""Streams whose journal is damaged beyond repair are served as far as their logs go (F2)."""

from __future__ import annotations

from pathlib import Path

from nexo.protocol import stream as wire
from nexo.protocol.frames import pack_str
from nexo.protocol.ops import Op
from tests.memory_files import MemoryFiles
from tests.unit.brokers.stream.desk import Desk

JOURNAL = Path("/stream/journal")


def damaged() -> MemoryFiles:
    """Two streams, and no snapshot that can be read."""
    files = MemoryFiles()
    desk = Desk(files)
    desk.client().make("orders/eu", partitions=3)
    desk.client().make("unused")
    for partition in range(3):
        desk.client().publish("orders/eu", b"a", b"b", partition=partition)
    desk.service.close()
    Desk(files).service.close()
    for name in files.list(JOURNAL):
        if name.endswith(".snap"):
            file = files.open(JOURNAL / name)
            file.write_at(0, [bytes(64)])
            file.close()
    return files


def test_the_records_are_there_under_the_streams_name() -> None:
    desk = Desk(damaged())
    assert desk.service.status()["lost"]["count"]
    for partition in range(3):
        assert desk.client().read("orders/eu", partition=partition) == [b"a", b"b"]
    assert desk.client().publish("orders/eu", b"c", partition=1) == [(1, 2, 1)]
    again = Desk(desk.files)
    assert again.client().read("orders/eu", partition=1) == [b"a", b"b", b"c"]


def test_partitions_are_there_though_it_is_lost_that_they_were_added() -> None:  # SPEC E1
    files = MemoryFiles()
    desk = Desk(files)
    peer = desk.client()
    peer.make("s")
    desk.service.close()
    again = Desk(files)
    grown = wire.Make(stream="s", options={"partitions": 3})
    again.client().ask(Op.S_UPDATE, wire.pack(grown))
    again.client().publish("s", b"a", partition=2)
    for name in files.list(JOURNAL):
        if not name.endswith(".snap"):
            path = JOURNAL / name
            file = files.open(path)
            size = file.size()
            raw = bytes(file.read_at(0, size))
            for at in range(0, size, 64):
                if b"\xa4grow" in raw[at : at + 512]:
                    file.write_at(at, [bytes(min(64, size - at))])
            file.close()
    lost = Desk(files)
    assert lost.service.status()["lost"]["count"]
    assert lost.client().read("s", partition=2) == [b"a"]
    assert lost.crash().client().publish("s", b"b", partition=2) == [(2, 1, 1)]


def test_no_new_stream_takes_over_the_folder_of_another() -> None:
    """Also where nothing was lost: numbers are never used again."""
    desk = Desk()
    peer = desk.client()
    peer.make("s")
    peer.publish("s", b"old")
    desk.files.make_folder(Path("/stream/streams/s~2"))
    desk.files.open(Path("/stream/streams/s~2/0"), create=True).write_at(0, [b"left over"])
    desk.service.close()
    again = Desk(desk.files)
    again.client().ask(Op.S_DELETE, pack_str("s"))
    again.client().make("s")
    again.client().publish("s", b"new")
    assert again.client().read("s") == [b"new"]
    assert again.service.core.engine.streams.get("s").id == 3
