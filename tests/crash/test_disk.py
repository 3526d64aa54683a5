"""A disk that fills up, and one whose sync fails (SPEC I7; MEASURE, faults)."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import pytest

import nexo
from nexo.errors import ConnectionLost, DiskFull, NexoError, OutcomeUnknown, ReadOnly
from nexo.model import Broker
from nexo.protocol.ops import Op
from nexo.protocol.values import decode_value
from nexo.testing import Process, Server
from tests.timing import wait_until

MIB = 1024**2
WAIT_S = 20.0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 48 MiB, which only root can mount; CI may use sudo."""
    folder = tmp_path / "disk"
    folder.mkdir()
    as_root = [] if os.geteuid() == 0 else ["sudo", "-n"]
    options = f"size=48m,mode=700,uid={os.getuid()},gid={os.getgid()}"
    mount = [*as_root, "mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    if shutil.which(mount[0]) is None or subprocess.run(mount, check=False).returncode:
        pytest.skip("a small file system can only be mounted by root")
    yield folder
    subprocess.run([*as_root, "umount", "-l", str(folder)], check=True)


def fill(disk: Path, leave: int) -> Path:
    """Leave this many bytes."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while (room := shutil.disk_usage(disk).free - leave) > 0:
            file.write(b"\0" * min(room, 65_536))
    return filler


Write = Callable[[nexo.Client], object]
WRITES: dict[str, Write] = {
    "queue": lambda client: client.queue("q").push("more"),
    "queue, background sync": lambda client: client.queue("r").push("more"),
    "stream, background sync": lambda client: client.stream("s").publish("more"),
    "stream, sync first": lambda client: client.stream("t").publish("more"),
    "retained": lambda client: client.pubsub.publish("t", "more", retain=True),
}


def until_it_works(write: Write, client: nexo.Client) -> None:
    def works() -> bool:
        write(client)
        return True

    wait_until(works, what="it does not recover by itself", every_s=0.05, despite=(NexoError,))


def until_full(write: Write, client: nexo.Client) -> int:
    """How many writes were confirmed before one was rejected: space is checked at times."""
    return until_rejected(write, client, DiskFull)


def until_rejected(
    write: Write,
    client: nexo.Client,
    error: type[NexoError] | tuple[type[NexoError], ...],
    every_s: float = 0.0,
) -> int:
    """How many writes were confirmed before this error."""
    written = 0

    def rejected() -> bool:
        nonlocal written
        try:
            write(client)
        except error:
            return True
        written += 1
        return False

    wait_until(rejected, what="no write was rejected", every_s=every_s)
    return written


@pytest.mark.slow
def test_below_the_reserve_writers_are_refused_and_the_rest_goes_on(small_disk: Path) -> None:
    with served(small_disk, 16 * MIB) as process:
        with nexo.connect(process.url) as client:
            jobs, records = prepared(client)
            filler = fill(small_disk, leave=8 * MIB)
            written = {name: until_full(write, client) for name, write in WRITES.items()}
            for write in WRITES.values():
                with pytest.raises(DiskFull, match="bytes are left on disk"):
                    write(client)
            client.store.set("k", 1)
            for job in jobs.pop(10):
                job.ack()
            with records.consume("g", wait=1) as consumer:
                found = list(consumer.fetch())
                consumer.ack(*found)
            assert len(found) >= 20
            filler.unlink()
            for write in WRITES.values():
                until_it_works(write, client)
        said = process.log_file.read_text()
        for broker in ("queue", "stream", "pubsub"):
            folder = process.data_dir / broker
            assert said.count(f"{folder}: refusing writes: only ") == 1
            assert said.count(f"{folder}: there is space again") == 1
        process.kill()
        process.start()
        with nexo.connect(process.url) as client:
            assert stored(client) == expected(written, acked=10)


@pytest.mark.slow
def test_a_disk_filled_to_the_last_byte_loses_nothing_and_heals_itself(small_disk: Path) -> None:
    with served(small_disk, 0) as process:
        with nexo.connect(process.url) as client:
            _, records = prepared(client)
            filler = fill(small_disk, leave=0)
            written = {name: until_full(write, client) for name, write in WRITES.items()}
            assert [record.value for record in records.read(0, 0)][:20] == list(range(20))
            filler.unlink()
            for write in WRITES.values():
                until_it_works(write, client)
        process.kill()
        process.start()
        with nexo.connect(process.url) as client:
            assert stored(client) == expected(written)


def stored(client: nexo.Client) -> dict[str, int]:
    """How much is there of what every write adds to."""
    return {
        "queue": len(client.queue("q").pop(10_000)),
        "queue, background sync": len(client.queue("r").pop(10_000)),
        "stream, background sync": len(client.stream("s").read(0, 0, max_bytes=32 * MIB)),
        "stream, sync first": len(client.stream("t").read(0, 0, max_bytes=32 * MIB)),
    }


def expected(written: dict[str, int], acked: int = 0) -> dict[str, int]:
    """What was there at first, what was written until it was full, and one when it was not."""
    first = {"queue": 20 - acked, "stream, background sync": 20}
    return {name: first.get(name, 0) + written[name] + 1 for name in WRITES if name != "retained"}


@contextlib.contextmanager
def served(disk: Path, reserve: int) -> Iterator[Process]:
    process = Process(disk / "nexo", dashboard=False, disk_reserve_bytes=reserve)
    process.log_file = disk.parent / "server.log"
    try:
        process.start()
        yield process
    finally:
        process.close()


def prepared(client: nexo.Client) -> tuple[Any, Any]:
    """A queue and a stream with twenty items each, a stream that syncs first, a retained topic."""
    jobs, records = client.queue("q").create(), client.stream("s").create()
    client.queue("r").create(persistence="file_async")
    client.stream("t").create(persistence="file_sync")
    client.pubsub.publish("t", "kept", retain=True)
    jobs.push_many(range(20))
    records.publish_many(range(20))
    return jobs, records


# -- what was refused is not there later, either ----------------------------------------


class FullDisk:
    """No room while ``full``; half of a write may still fit."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.full = False
        self.refusals = 0
        self._pwritev = os.pwritev
        patch.setattr("nexo.storage.disk.files.os.pwritev", self._write)

    def _write(self, fd: int, parts: list[bytes], position: int) -> int:
        if not self.full:
            return self._pwritev(fd, parts, position)
        data = b"".join(parts)
        self._pwritev(fd, [data[: len(data) // 2]], position)
        self.refusals += 1
        raise OSError(errno.ENOSPC, "no space left")


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FullDisk:
    return FullDisk(monkeypatch)


REFUSED: dict[str, Write] = WRITES | {
    "jobs": lambda client: client.queue("q").push_many(range(100, 200)),
    "delayed job": lambda client: client.queue("q").push("more", delay=0.05),
    "job with a key": lambda client: client.queue("q").push("more", dedup_key="k"),
    "records": lambda client: client.stream("s").publish_many(range(100, 200)),
    "retained anew": lambda client: client.pubsub.publish("other", "more", retain=True),
    "queue created": lambda client: client.queue("more").create(),
    "stream created": lambda client: client.stream("more").create(),
}


def everything(client: nexo.Client) -> dict[str, Any]:
    """All that is stored; what is popped is given back."""
    jobs = client.queue("q").pop(1_000)
    with client.pubsub.subscribe("#") as retained:
        last = retained.get(WAIT_S)
    found = {
        "jobs": sorted(str(job.value) for job in jobs),
        "delayed": client.queue("q").info().scheduled,
        "background jobs": client.queue("r").info().waiting,
        "records": [record.value for record in client.stream("s").read(0, 0)],
        "synced": [record.value for record in client.stream("t").read(0, 0)],
        "retained": (last.topic, last.value),
        "queues": client.queues(),
        "streams": client.streams(),
    }
    jobs.release()
    return found


@pytest.mark.parametrize("after", ["in the same life", "after a stop", "after a crash"])
@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_write_changes_nothing(
    name: str, after: str, nexo_server: Server, disk: FullDisk
) -> None:  # SPEC I7
    with nexo.connect(nexo_server.url) as client:
        prepared(client)
        before = everything(client)
        disk.full = True
        for _ in range(3):
            with pytest.raises(DiskFull):
                REFUSED[name](client)
        disk.full = False
        until_it_works(lambda one: one.queue("q").push("room again"), client)
        before["jobs"] = sorted([*before["jobs"], "room again"])
        if after != "in the same life":
            {"after a stop": nexo_server.stop, "after a crash": nexo_server.crash}[after]()
            nexo_server.start()
    with nexo.connect(nexo_server.url) as client:
        assert everything(client) == before


# -- what was done and cannot be undone is told as done, once there is room ---------------


def a_job(client: nexo.Client) -> nexo.types.Job[Any]:
    return client.queue("q").pop(1)[0]


def some_records(client: nexo.Client) -> Callable[[], object]:
    consumer = client.stream("s").consume("g", wait=1)
    found = consumer.fetch()
    return lambda: consumer.ack(*found)


def replacing(client: nexo.Client) -> object:
    return client.queue("q").push("new", dedup_key="k", replace=True)


State: TypeAlias = dict[str, Any]
STANDING: dict[str, tuple[Callable[[nexo.Client], Callable[[], object]], State]] = {
    "ack": (lambda client: a_job(client).ack, {"first": (1, 1)}),
    "nack": (lambda client: partial(a_job(client).nack, "failed"), {"first": (0, 2)}),
    "replacing push": (lambda client: partial(replacing, client), {"last": ("new", 1)}),
    "stream ack": (some_records, {"lag": 0}),
}
"""Requests that take effect at once, each made ready to be sent, and what they change."""


def state(client: nexo.Client) -> State:
    """The first and last job with their attempts, and the lag of a group."""
    jobs = client.queue("q").pop(1_000)
    first, *_, last = ((job.value, job.attempt) for job in jobs)
    jobs.release()
    return {"first": first, "last": last, "lag": client.stream("s").group("g").lag()}


@contextlib.contextmanager
def asked_on_a_full_disk(
    name: str, server: Server, disk: FullDisk
) -> Iterator[tuple[Future[object], State]]:
    """A request that the disk refused to write, and what was there before."""
    with nexo.connect(f"{server.url}?while_down=fail") as client, ThreadPoolExecutor(1) as pool:
        prepared(client)
        client.queue("q").push("old", dedup_key="k")
        with client.stream("s").consume("g", wait=0) as consumer:
            consumer.fetch()
        before = state(client)
        ready = STANDING[name][0](client)
        disk.full = True
        asking = pool.submit(ready)
        wait_until(lambda: disk.refusals > 1)  # when it was asked, and when it was tried again
        assert not asking.done(), "neither refused nor confirmed"
        yield asking, before


@pytest.mark.parametrize("name", STANDING)
def test_what_stands_on_a_full_disk_is_confirmed_when_there_is_room(
    name: str, nexo_server: Server, disk: FullDisk
) -> None:  # SPEC I7, D7, F6
    with asked_on_a_full_disk(name, nexo_server, disk) as (asking, before):
        disk.full = False
        asking.result(WAIT_S)
        nexo_server.crash()
        nexo_server.start()
    with nexo.connect(nexo_server.url) as client:
        assert state(client) == before | STANDING[name][1]


@pytest.mark.parametrize("name", STANDING)
def test_what_a_full_disk_never_took_is_never_confirmed(
    name: str, nexo_server: Server, disk: FullDisk
) -> None:  # SPEC I7, D7, F6
    with asked_on_a_full_disk(name, nexo_server, disk) as (asking, before):
        nexo_server.crash()
        assert isinstance(asking.exception(WAIT_S), ConnectionLost)
        disk.full = False
        nexo_server.start()
    with nexo.connect(nexo_server.url) as client:
        assert state(client) == before


@pytest.mark.parametrize("after", ["in the same life", "after a crash", "started while full"])
def test_a_stream_is_deleted_while_the_disk_is_full(
    after: str, nexo_server: Server, disk: FullDisk
) -> None:  # SPEC I7: deletes go on; they make the room that everybody waits for
    with nexo.connect(nexo_server.url) as client:
        _, records = prepared(client)
        client.stream("unused").create()
        kept = nexo_server.data_dir / "stream" / "streams"
        assert [*kept.rglob("*.log")]
        disk.full = True
        records.delete()
        client.stream("unused").delete()
        assert client.streams() == ["t"]
        assert not [*kept.rglob("*.log")]
        assert disk.refusals
    if after != "in the same life":
        nexo_server.crash()
        disk.full = after == "started while full"
        nexo_server.start()
    disk.full = False
    with nexo.connect(nexo_server.url) as client:
        assert client.streams() == ["t"]
        until_it_works(lambda one: one.stream("s").create(), client)
        assert client.stream("s").publish("anew").offset == 0
        assert client.stream("s").groups() == []
        wait_until(lambda: not [*kept.glob("deleted.*")])
    nexo_server.crash()
    nexo_server.start()
    with nexo.connect(nexo_server.url) as client:
        assert client.streams() == ["s", "t"]
        assert [record.value for record in client.stream("s").read(0, 0)] == ["anew"]


@pytest.mark.slow
def test_deleting_makes_room_on_a_disk_without_a_byte(small_disk: Path) -> None:
    """SPEC I7, on a real file system."""
    with served(small_disk, 0) as process, nexo.connect(process.url) as client:
        _, records = prepared(client)
        records.publish_many([b"x" * MIB] * 4)
        client.queue("large").create().push_many([b"x" * 10_000] * 100)
        client.stream("indexed").create().publish_many([b"x" * 10_000] * 100)
        fill(small_disk, leave=0)
        client.queue("large").delete()
        client.stream("indexed").delete()
        records.delete()
        for write in (WRITES["queue"], WRITES["stream, sync first"]):
            until_it_works(write, client)
        process.kill()
        process.start()
        assert client.streams() == ["t"]
        assert client.queues() == ["q", "r"]


def failing(*_: object) -> None:
    raise OSError(errno.EIO, "the disk is broken")


FAILED = {
    "queue": Broker.QUEUE,
    "queue, background sync": Broker.QUEUE,
    "stream, background sync": Broker.STREAM,
    "stream, sync first": Broker.STREAM,
    "retained": Broker.PUBSUB,
}


@pytest.mark.parametrize("name", FAILED)
def test_after_a_failed_sync_nothing_is_acknowledged_any_more(
    name: str, nexo_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with nexo.connect(nexo_server.url) as client:
        prepared(client)
        client.stream("t").publish_many(range(5))
        write = WRITES[name]
        with monkeypatch.context() as patch:
            for call in ("fdatasync", "fsync"):
                patch.setattr(f"nexo.storage.disk.files.os.{call}", failing)
            until_read_only(write, client)
        for _ in range(3):  # the disk works again, but what it lost nobody knows
            with pytest.raises(ReadOnly, match="sync to disk failed"):
                write(client)
        assert "broken" in status(client, FAILED[name])["disk"]["failed"]
        client.store.set("k", 1)
        assert [record.value for record in client.stream("t").read(0, 0)][:5] == list(range(5))


def until_read_only(write: Write, client: nexo.Client) -> None:
    """A write synced in the background may be confirmed before its sync fails."""
    until_rejected(write, client, (OutcomeUnknown, ReadOnly), every_s=0.01)


def status(client: nexo.Client, broker: Broker) -> dict[str, Any]:
    payload = client.link(broker).call(Op.STATUS, bytes((broker,)))
    found: dict[str, Any] = decode_value(bytes(payload or b""))
    return found
