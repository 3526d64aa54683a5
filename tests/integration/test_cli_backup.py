"""``nexo backup`` and ``nexo restore``: consistent while running, whole or refused (SPEC K5)."""

from __future__ import annotations

import errno
import json
import os
import tarfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import nexo
from nexo import testing
from nexo.cli import main, output
from nexo.client._sync.stream.stream import Stream
from nexo.client.stream_records import Record
from nexo.config import load
from nexo.server.processes.folders import FolderInUse, FolderLock
from tests.timing import wait_until


def run(*args: str) -> Result:
    result = CliRunner().invoke(main, [*args])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    return result


class Load:
    """Publishes and pushes from threads, and knows what was acknowledged."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._stop = threading.Event()
        self.busy = threading.Event()
        self.published = self.pushed = 0
        self._threads = [threading.Thread(target=work) for work in (self._publish, self._push)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        assert self.busy.wait(30)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _publish(self) -> None:
        with nexo.connect(self._url) as client:
            while not self._stop.is_set():
                client.stream("s").publish_many(range(self.published, self.published + 50))
                self.published += 50
                if self.published >= 500 and self.pushed:
                    self.busy.set()

    def _push(self) -> None:
        with nexo.connect(self._url) as client:
            while not self._stop.is_set():
                client.queue("q").push(self.pushed)
                self.pushed += 1


def test_what_was_acknowledged_before_a_backup_under_load_is_restored(
    served: testing.Process, tmp_path: Path
) -> None:
    archive, target = tmp_path / "nexo.tar", tmp_path / "restored"
    with nexo.connect(served.url) as client:
        client.stream("s").create()
        client.queue("q").create()
        client.pubsub.publish("t", "kept", retain=True)
    with Load(served.url) as load:
        published, pushed = load.published, load.pushed
        saved = run("backup", str(archive), "--url", served.url, "--json")
        assert json.loads(saved.output)["files"] > 3
    assert "restored" in run("restore", str(archive), "--data-dir", str(target)).output
    with testing.server(data_dir=target) as url, nexo.connect(url) as client:
        values = [record.value for record in _all(client.stream("s"))]
        assert values == list(range(len(values)))
        assert published <= len(values) <= load.published
        jobs = client.queue("q").pop(10_000)
        assert [job.value for job in jobs] == list(range(len(jobs)))
        assert pushed <= len(jobs) <= load.pushed
        with client.pubsub.subscribe("t") as subscription:
            assert next(subscription).value == "kept"
        client.stream("s").publish("goes on")


def _all(stream: Stream[Any]) -> list[Record[Any]]:
    found: list[Record[Any]] = []
    offset = 0
    while page := stream.read(0, offset):
        found += page
        offset = page[-1].offset + 1
    return found


def test_a_group_goes_on_where_it_was(served: testing.Process, tmp_path: Path) -> None:
    with nexo.connect(served.url) as client:
        stream = client.stream("s").create()
        stream.publish_many(range(10))
        with stream.consume("g", batch=4) as consumer:
            consumer.fetch().ack()
    served.restart()  # twice: the journal's front is gone then, and snapshots are needed
    with nexo.connect(served.url) as client:
        client.stream("t").create()
    served.restart()
    with nexo.connect(served.url) as client:
        stream = client.stream("s")
        run("backup", str(tmp_path / "b.tar.gz"), "--url", served.url)
        stream.publish("later")
        stream.seek("g", "beginning")
    run("restore", str(tmp_path / "b.tar.gz"), "--data-dir", str(tmp_path / "new"))
    with testing.server(data_dir=tmp_path / "new") as url, nexo.connect(url) as client:
        assert client.stream("s").group("g").lag() == 6
        assert client.stream("s").info().partitions[0].next_offset == 10


def test_nothing_of_a_backup_stays_on_the_server(
    nexo_server: testing.Server, tmp_path: Path
) -> None:
    with nexo.connect(nexo_server.url) as client:
        client.stream("s").create().publish("x")
    assert run("backup", str(tmp_path / "b.tar"), "--url", nexo_server.url).exit_code == 0
    assert list(nexo_server.data_dir.rglob(".backup*")) == []
    assert (tmp_path / "b.tar").stat().st_mode & 0o077 == 0  # finding G15: others read nothing
    assert [path.name for path in tmp_path.iterdir() if "b.tar" in path.name] == ["b.tar"]
    again = run("backup", str(tmp_path / "b.tar"), "--url", nexo_server.url)
    assert "ALREADY_EXISTS" in again.output


@pytest.mark.parametrize("place", ["nodir/b.tar", "file/b.tar", "x" * 300])
def test_a_backup_that_cannot_be_written_is_told_with_its_path(
    nexo_server: testing.Server, tmp_path: Path, place: str
) -> None:  # SPEC K5
    (tmp_path / "file").touch()
    refused = run("backup", str(tmp_path / place), "--url", nexo_server.url)
    assert refused.exit_code == 1
    assert f"error[INVALID]: {tmp_path / place} cannot be written: " in refused.output


def test_the_progress_of_a_backup_moves_within_large_files(
    nexo_server: testing.Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # SPEC K5
    steps: list[float] = []
    monkeypatch.setattr(output.ProgressTask, "advance", lambda _, done=1: steps.append(done))
    with nexo.connect(nexo_server.url) as client:
        client.stream("large").create().publish(bytes(2 * 1024**2))
    done = run("backup", str(tmp_path / "all.tar"), "--url", nexo_server.url, "--json")
    assert sum(steps) == json.loads(done.output)["size_bytes"]
    assert max(steps) <= 1024**2


@pytest.fixture
def archive(nexo_server: testing.Server, tmp_path: Path) -> Path:
    with nexo.connect(nexo_server.url) as client:
        client.stream("s").create().publish("x" * 50_000)
    run("backup", str(tmp_path / "b.tar"), "--url", nexo_server.url)
    return tmp_path / "b.tar"


def test_restore_refuses_a_folder_with_data(archive: Path, tmp_path: Path) -> None:
    (tmp_path / "new" / "queue").mkdir(parents=True)
    (tmp_path / "new" / "queue" / "mine").touch()
    refused = run("restore", str(archive), "--data-dir", str(tmp_path / "new"))
    assert refused.exit_code == 1
    assert "not empty" in refused.output
    assert [path.name for path in (tmp_path / "new").rglob("*")] == ["queue", "mine"]


@pytest.mark.parametrize("kept", [0.0, 0.2, 0.5, 0.8])
def test_an_archive_that_is_cut_short_restores_nothing(
    archive: Path, tmp_path: Path, kept: float
) -> None:
    data = archive.read_bytes()
    archive.write_bytes(data[: int(len(data) * kept)])
    refused = run("restore", str(archive), "--data-dir", str(tmp_path / "new"))
    assert refused.exit_code == 1
    assert refused.output.startswith("error[")
    assert not (tmp_path / "new").exists()


def test_a_flipped_byte_restores_nothing(archive: Path, tmp_path: Path) -> None:
    data = archive.read_bytes()
    at = data.index(b"x" * 1_000)
    archive.write_bytes(data[:at] + b"y" + data[at + 1 :])
    refused = run("restore", str(archive), "--data-dir", str(tmp_path / "new"))
    assert "error[CORRUPT]: the backup is damaged: stream/streams/" in refused.output
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("place", ["a record", "a name", "the checksums"])
def test_what_can_be_read_of_a_damaged_archive_is_restored_if_asked(
    nexo_server: testing.Server, tmp_path: Path, place: str
) -> None:  # SPEC Q4, FINDINGS T24
    with nexo.connect(nexo_server.url) as client:
        client.stream("s").create(partitions=1).publish_many([b"x" * 500, b"y" * 500])
        client.queue("q").create().push_many(["a", "b"])
    wait_until(lambda: list(nexo_server.data_dir.rglob("*.sums")))
    archive = tmp_path / "b.tar"
    run("backup", str(archive), "--url", nexo_server.url)
    data = bytearray(archive.read_bytes())
    found = {"a record": b"x" * 400, "a name": b"stream/streams/", "the checksums": b"checksums"}
    data[data.index(found[place]) + 8] ^= 1
    archive.write_bytes(data)
    done = run("restore", str(archive), "--data-dir", str(tmp_path / "new"), "--damaged", "--json")
    assert done.exit_code == 1
    damage = json.loads(done.stdout)["damage"]
    assert len(damage) == 1
    assert damage[0].startswith("what comes after" if place == "the checksums" else "stream/")
    with testing.server(data_dir=tmp_path / "new") as url, nexo.connect(url) as client:
        assert [job.value for job in client.queue("q").pop(10)] == ["a", "b"]
        if place != "a name":
            assert [record.value for record in _all(client.stream("s"))] == [b"x" * 500, b"y" * 500]


@pytest.mark.parametrize("moved", range(4))
def test_a_restore_that_fails_at_the_end_leaves_what_was_there(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moved: int
) -> None:
    target, elsewhere = tmp_path / "deep" / "new", tmp_path / "other" / "disk"
    (tmp_path / "deep").mkdir()
    (tmp_path / "streams").mkdir(mode=0o750)
    monkeypatch.setenv("QUEUE_ROOT_PERSISTENCE_PATH", str(elsewhere))
    monkeypatch.setenv("STREAM_ROOT_PERSISTENCE_PATH", str(tmp_path / "streams"))
    before = sorted((path, path.stat().st_mode) for path in tmp_path.rglob("*"))
    with monkeypatch.context() as failing:
        failing.setattr(Path, "rename", _failing_after(moved))
        refused = run("restore", str(archive), "--data-dir", str(target))
    assert "Input/output error" in refused.output
    assert sorted((path, path.stat().st_mode) for path in tmp_path.rglob("*")) == before
    assert "restored" in run("restore", str(archive), "--data-dir", str(target)).output
    assert (tmp_path / "streams").stat().st_mode & 0o777 == 0o750


def _failing_after(moved: int) -> Callable[[Path, Path], Path]:
    rename, calls = Path.rename, count()

    def checked(path: Path, target: Path) -> Path:
        if next(calls) < moved:
            return rename(path, target)
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    return checked


def test_a_server_that_waited_for_a_restore_that_failed_holds_a_file_that_others_see(
    tmp_path: Path,
) -> None:
    settings = load(flags={"data_dir": tmp_path / "new"})
    restoring = FolderLock(settings)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(FolderLock, settings, 60)
        wait_until(lambda: _opened(tmp_path / "new" / "nexo.lock"))
        restoring.undo()
        served = waiting.result(60)
    with pytest.raises(FolderInUse):
        FolderLock(settings, 0)
    served.close()


def _opened(file: Path) -> bool:
    """Whether this process has it open twice."""
    links = (os.path.realpath(path) for path in Path("/proc/self/fd").iterdir())
    return sum(link == str(file) for link in links) > 1


def test_a_foreign_archive_cannot_write_outside(tmp_path: Path) -> None:
    evil = tmp_path / "evil.tar"
    (tmp_path / "note").write_text("hi")
    with tarfile.open(evil, "w") as archive:
        archive.add(tmp_path / "note", "stream/../../escaped")
    refused = run("restore", str(evil), "--data-dir", str(tmp_path / "new"))
    assert "no backup of Nexo" in refused.output
    assert not (tmp_path / "escaped").exists()
    assert not (tmp_path / "new").exists()
