"""What a crash can leave of a stream's files: recover, write, recover again (SPEC E2, E6)."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path

import pytest

from nexo.protocol import stream as wire
from nexo.protocol import stream_ordered as ordered
from nexo.protocol.ops import Op
from nexo.storage.header import parse
from nexo.storage.ports import File
from tests.memory_files import MemoryFiles
from tests.unit.brokers.stream.desk import Desk, Peer

ACKNOWLEDGED = [b"value %d" % n for n in range(6)]
"""Published in pairs; the first pair is acked by the group."""
SETTINGS = {"segment_bytes": 64 * 1024}


@pytest.fixture
def files() -> MemoryFiles:
    """A stream with three batches, and a group that has finished the first."""
    files = MemoryFiles()
    peer = Desk(files).client()
    peer.make("s")
    for at in range(0, len(ACKNOWLEDGED), 2):
        peer.publish("s", *ACKNOWLEDGED[at : at + 2])
    consumer = peer.join("s", "g")
    consumer.take(2)
    consumer.settle("ack", 0, 1)
    return files


def segment(files: MemoryFiles, suffix: str = ".log", at: int = -1) -> File:
    return files.open(paths(files, suffix)[at])


def paths(files: MemoryFiles, suffix: str) -> list[Path]:
    folder = Path("/stream/streams/s~1/0")
    return [folder / name for name in files.list(folder) if name.endswith(suffix)]


def values(peer: Peer, first: int = 0) -> list[bytes | None]:
    """Everything from ``first`` on, reply by reply."""
    end = peer.describe("s").partitions[0].next_offset
    found: list[bytes | None] = []
    while first + len(found) < end:
        found += peer.read("s", first + len(found))
    return found


def check(files: MemoryFiles) -> None:
    """All that was acknowledged is there, and what is written now gets the offsets behind it."""
    stored = list(ACKNOWLEDGED)
    for round_ in range(3):
        peer = Desk(files).client()
        assert values(peer) == stored
        got = peer.join("s", "g").take(1_000)
        assert [one.offset for one in got] == list(range(2, len(stored)))
        fresh = b"written after restart %d" % round_
        assert peer.publish("s", fresh) == [(0, len(stored), 1)]
        stored.append(fresh)


def torn(files: MemoryFiles) -> Iterator[MemoryFiles]:
    """The files with a fourth batch that was cut at every byte before anybody was told of it."""
    whole = segment(files).size()
    Desk(files).client().publish("s", b"never acknowledged", b"this one neither")
    for size in range(whole, segment(files).size()):
        cut = deepcopy(files)
        segment(cut).truncate(size)
        yield cut


def test_a_tail_torn_at_any_byte_is_cut_off(files: MemoryFiles) -> None:
    count = 0
    for cut in torn(files):
        check(cut)
        count += 1
    assert count > 100


def test_a_tail_of_zeros_from_any_byte_on_is_cut_off(files: MemoryFiles) -> None:
    for cut in torn(files):
        lost = segment(files).read_at(segment(cut).size(), 1 << 20)
        if any(lost):  # else the zeros make the batch whole again
            file = segment(cut)
            file.write_at(file.size(), [bytes(8 - file.size() % 8 + 512)])
            cut.boot_id = "after the power was lost"
            check_after_power_loss(cut)


def check_after_power_loss(files: MemoryFiles) -> None:
    """All that was acknowledged is there, and no offset is used twice."""
    peer = Desk(files).client()
    assert peer.read("s") == ACKNOWLEDGED
    got = peer.join("s", "g").take(1_000)
    assert [one.offset for one in got] == list(range(2, len(ACKNOWLEDGED)))
    ((_, offset, _),) = peer.publish("s", b"later")
    assert offset >= len(ACKNOWLEDGED)
    again = Desk(files).client()
    assert again.read("s") == [*ACKNOWLEDGED, b"later"]
    assert again.read("s", offset) == [b"later"]


def test_an_empty_last_segment_is_gone_on_with(files: MemoryFiles) -> None:
    folder = Path("/stream/streams/s~1/0")
    files.open(folder / f"{len(ACKNOWLEDGED):020}.log", create=True)
    check(files)


@pytest.mark.parametrize("size", range(64))
def test_a_last_segment_with_part_of_its_header_is_gone_on_with(
    files: MemoryFiles, size: int
) -> None:
    folder = Path("/stream/streams/s~1/0")
    file = files.open(folder / f"{len(ACKNOWLEDGED):020}.log", create=True)
    file.write_at(0, [segment(files, at=0).read_at(0, size)])
    check(files)


@pytest.mark.parametrize("damage", ["deleted", "emptied", "scribbled"])
def test_an_index_is_made_anew(damage: str) -> None:
    files = MemoryFiles()
    desk = Desk(files, **SETTINGS)
    peer = desk.client()
    peer.make("s")
    stored = [b"%06d" % n * 200 for n in range(400)]
    for value in stored:
        peer.publish("s", value)
    desk.restart()
    indexes = paths(files, ".idx")
    assert len(indexes) > 1
    for path in indexes:
        spoil(files, path, damage)
    for round_ in range(2):
        peer = Desk(files, **SETTINGS).client()
        assert values(peer, 100) == stored[100:]
        fresh = b"written after restart %d" % round_
        assert peer.publish("s", fresh) == [(0, len(stored), 1)]
        stored.append(fresh)


def spoil(files: MemoryFiles, path: Path, how: str) -> None:
    if how == "deleted":
        files.remove(path)
    elif how == "emptied":
        files.open(path).truncate(0)
    else:
        files.open(path).write_at(20, [b"scribble"])


# -- acknowledged records of ``file_async`` that a power loss took --------------------------


def without_tail(files: MemoryFiles, entries: int) -> Desk:
    """The service after a power loss that left only the first entries of the stream."""
    file = segment(files)
    position = 64
    for _ in range(entries):
        position += parse(file.read_at(position, 64)).length
    file.truncate(position)
    return Desk(files)


def test_offsets_a_group_knows_are_not_used_again(files: MemoryFiles) -> None:  # SPEC E2
    consumer = Desk(files).client().join("s", "g")
    consumer.take()
    consumer.settle("ack", 4)  # out of order: the floor stays at 2
    peer = without_tail(files, 1).client()
    for round_ in range(2):
        fresh = b"fresh %d" % round_
        assert peer.publish("s", fresh) == [(0, 5 + round_, 1)]
        got = peer.join("s", "g").take()
        assert [one.value for one in got] == [b"fresh %d" % n for n in range(round_ + 1)]
        assert peer.read("s", 2) == [one.value for one in got]
        peer = Desk(files).client()
    assert peer.read("s") == [*ACKNOWLEDGED[:2], b"fresh 0", b"fresh 1"]


def test_offsets_an_ordered_group_committed_are_not_used_again(files: MemoryFiles) -> None:
    commit = ordered.Commit(group="o", offsets=[("s", 0, 5, "")])
    Desk(files).client().ask(Op.S_COMMIT, wire.pack(commit))
    peer = without_tail(files, 2).client()
    assert peer.publish("s", b"fresh") == [(0, 6, 1)]
    assert peer.read("s", 4) == [b"fresh"]


def test_offsets_the_lake_holds_are_not_used_again(files: MemoryFiles) -> None:
    tiered = wire.TieredTo(stream="s", partition=0, offset=6)
    Desk(files).client().ask(Op.S_TIERED, wire.pack(tiered))
    assert without_tail(files, 0).client().publish("s", b"fresh") == [(0, 6, 1)]


def test_a_log_that_jumped_can_be_compacted(files: MemoryFiles) -> None:
    consumer = Desk(files).client().join("s", "g")
    consumer.take()
    consumer.settle("ack", 2, 3, 4, 5)
    peer = without_tail(files, 1).client()
    peer.ask(Op.S_UPDATE, wire.pack(wire.Make(stream="s", options={"cleanup": "compact"})))
    peer.publish("s", b"old", keys=[b"k"])
    peer.publish("s", b"new", keys=[b"k"])
    peer.ask(Op.S_COMPACT, wire.pack(wire.StreamName(stream="s")))
    assert peer.read("s") == [*ACKNOWLEDGED[:2], b"new"]
    again = Desk(files).client()
    assert again.read("s") == [*ACKNOWLEDGED[:2], b"new"]
    assert again.publish("s", b"next") == [(0, 8, 1)]
