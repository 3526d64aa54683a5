"""A bit flips in each entry of each journal, log and snapshot of a data folder (SPEC E6, Q4).

The folder was quiet, then the server was killed. Whatever flips, all brokers come up and serve
everything. ``SOAK=1`` flips in every entry after a minute of quiet; the
short form flips in some entries of every file.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import nexo
from nexo.errors import Corrupt
from nexo.services.pubsub import journal
from nexo.services.queue import open_queue
from nexo.storage.header import find_sound
from nexo.testing import Server

SOAK = bool(os.environ.get("SOAK"))
QUIET_S = 60.0 if SOAK else 1.5
PER_FILE = 1_000_000 if SOAK else 2
MODES = ("file_sync", "file_async")
TOPICS = 10
KEY_NAMES = [f"key-{n:04}" for n in range(2_500)]

Found = dict[str, set[str]]
"""What is served, by what holds it."""


@pytest.fixture(autouse=True)
def _small_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots of queues and retained messages after little; streams save when they stop."""
    monkeypatch.setattr(open_queue, "TAIL_BYTES", 1_500)
    monkeypatch.setattr(journal, "CHECKPOINT_BYTES", 1_000)


def server(folder: Path) -> Server:
    made = Server(data_dir=folder, store_snapshot_ms=1_000)
    made.start()
    return made


def write(client: nexo.Client, turn: int) -> None:
    """A few batches for every broker; a batch is an entry."""
    for mode in MODES:
        queue = client.queue(f"queue-{mode}")
        stream = client.stream(f"stream-{mode}")
        if not turn:
            queue.create(persistence=mode)
            stream.create(persistence=mode, partitions=2)
        for batch in range(turn * 4, turn * 4 + 4):
            queue.push_many([f"{batch}.{n}" + "." * 100 for n in range(3)])
            values = [f"{batch}.{n}" for n in range(3)]
            stream.publish_many(values, keys=[str(batch)] * 3)
    for topic in range(TOPICS):
        client.pubsub.publish(f"t/{topic}", f"{topic}." + "." * 100, retain=True)
    client.store.mset(dict.fromkeys(KEY_NAMES, "value"))


def quiet_folder(folder: Path) -> Path:
    """Three lives of a server, the last of which ends without a word."""
    for turn in range(3):
        running = server(folder)
        with nexo.connect(running.url) as client:
            write(client, turn)
        if turn < 2:
            running.stop()
    time.sleep(QUIET_S)  # no call tells that the flusher has marked what it synced
    running.crash()
    return folder


def entries(path: Path) -> Iterator[tuple[int, int]]:
    """Where entries begin and end; a snapshot of one state is one."""
    data, at = path.read_bytes(), 0
    if path.suffix == ".snap":
        yield 0, len(data)
        return
    while (found := find_sound(data, at, 0)) is not None:
        at = found[0] + found[1].length
        yield found[0], at


def files(folder: Path) -> list[Path]:
    kinds = (".log", ".snap", ".snapshot")
    return sorted(path for path in folder.rglob("*") if path.suffix in kinds)


def flips(folder: Path) -> Iterator[tuple[Path, int]]:
    """A byte in the middle of each entry."""
    for path in files(folder):
        found = list(entries(path))
        step = max(1, len(found) // PER_FILE)
        for first, end in found[step - 1 :: step]:
            yield path.relative_to(folder), (first + end) // 2


def served(url: str) -> Found:
    """All that clients get."""
    with nexo.connect(url) as client:
        found: Found = {"retained": set()}
        values = client.store.mget(KEY_NAMES, str)
        found["store"] = {name for name, value in zip(KEY_NAMES, values, strict=True) if value}
        with client.pubsub.subscribe("t/#") as messages:
            client.pubsub.publish("t/end", "end")
            while (message := messages.get(timeout=30)).topic != "t/end":
                found["retained"].add(message.topic)
        for mode in MODES:
            jobs = client.queue(f"queue-{mode}", str).pop(1_000)
            found[f"queue-{mode}"] = {job.value.rstrip(".") for job in jobs}
            found[f"stream-{mode}"] = set(read(client.stream(f"stream-{mode}", str)))
        return found


def read(stream: nexo.types.Stream[str]) -> Iterator[str]:
    for partition in range(2):
        offset = 0
        while True:
            try:
                found = stream.read(partition, offset)
            except Corrupt as damage:
                offset = damage.next_offset or sys.maxsize
                continue
            if not found:
                break
            yield from (record.value for record in found)
            offset = found[-1].offset + 1


def holder(path: Path) -> str:
    """What a file belongs to; the streams' journal belongs to none of them."""
    match path.parts:
        case ("queue", name, _):
            return name
        case ("stream", "streams", name, *_):
            return name.partition("~")[0]
        case ("pubsub", *_):
            return "retained"
    return path.parts[0]


@pytest.mark.slow
@pytest.mark.timeout(1_800 if SOAK else 120)
def test_whatever_flips_everything_is_served(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = quiet_folder(tmp_path / "quiet")
    before = served_by_copy(folder, tmp_path / "whole", None)
    assert {name: len(held) for name, held in before.items()} == {
        "store": len(KEY_NAMES), "retained": TOPICS,
        **{f"{kind}-{mode}": 36 for kind in ("queue", "stream") for mode in MODES},
    }  # fmt: skip
    tried: Counter[str] = Counter()
    for flip in flips(folder):
        after = served_by_copy(folder, tmp_path / "flipped", flip)
        kind = f"{holder(flip[0])}, {'snapshot' if 'snap' in flip[0].suffix else 'log'}"
        tried[kind] += 1
        assert after == before, flip
    with capsys.disabled():
        for kind in sorted(tried):
            sys.stdout.write(f"\n{kind}: {tried[kind]} flips")
        sys.stdout.write(f"\n{sum(tried.values())} flips in all; everything was served\n")
    assert {kind.rpartition(",")[0] for kind in tried} == {*before, "stream"}


def served_by_copy(folder: Path, copy: Path, flip: tuple[Path, int] | None) -> Found:
    """What a server serves of a copy of the folder in which one bit is flipped."""
    shutil.copytree(folder, copy)
    if flip is not None:
        path, at = flip
        data = bytearray((copy / path).read_bytes())
        data[at] ^= 1 << at % 8
        (copy / path).write_bytes(data)
    running = server(copy)
    try:
        return served(running.url)
    finally:
        kept = {path.relative_to(copy) for path in copy.rglob("*")}
        running.close()
        missing = [path for path in files(folder) if not is_kept(path.relative_to(folder), kept)]
        assert not missing, flip
        shutil.rmtree(copy)


def is_kept(path: Path, kept: set[Path]) -> bool:
    return path in kept or path.with_name(f"{path.name}.damaged") in kept
