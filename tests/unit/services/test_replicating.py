"""When a broker ships, and what it says of it (SPEC N2, N4)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from nexo import limits
from nexo.config import Settings
from nexo.errors import NexoError, Unavailable
from nexo.replication.log_objects import FORMAT, LogObject, Mark
from nexo.replication.objects import StoreFailed, log_key
from nexo.replication.shipping import Shipper
from nexo.replication.state import FileCells
from nexo.replication.tenure import FOREVER
from nexo.server.clock import SteadyClock
from nexo.services.replicating import Replicating
from nexo.storage.disk.files import OsFiles
from nexo.storage.disk.recording import RecordingFiles
from tests.memory_objects import MemoryObjects
from tests.timing import eventually


class LateStore(MemoryObjects):
    """Refuses everything while it is away."""

    away = False

    def create(self, key: str, data: bytes) -> None:
        if self.away:
            raise StoreFailed("away")
        super().create(key, data)


@asynccontextmanager
async def shipping(
    folder: Path, store: MemoryObjects, every_ms: int = 20, log_objects: int = 0
) -> AsyncIterator[Replicating]:
    root = folder / "data"
    root.mkdir()
    files = RecordingFiles(OsFiles(), root)
    lease, shown = FileCells(folder / "lease"), FileCells(folder / "shown")
    lease.set(FOREVER, 1.0)
    shipper = Shipper("a", Mark())
    shipper.leads = True
    settings = Settings(replicate_ms=every_ms, replicate_wait_ms=10_000, replicate_keep_ms=0)
    made = Replicating(
        files,
        root,
        shipper,
        store,
        settings,
        SteadyClock(),
        lease,
        shown,
        OsFiles,
        None,
        log_objects,
    )
    made.open()
    yield made
    await made.close()


def write(replicating: Replicating, text: bytes) -> None:
    file = replicating.files.open(replicating._bases._root / "file", create=True)
    file.write_at(0, [text])
    file.close()


@pytest.mark.parametrize("put_ms", [0, 5, 40, 60, 125, 1_000])
async def test_what_nobody_waits_for_leaves_early_enough_to_be_there_in_time(
    tmp_path: Path, put_ms: float
) -> None:
    """Or twice as often as it must be there, if puts take very long."""
    async with shipping(tmp_path, MemoryObjects(), every_ms=250) as replicating:
        replicating._put_ms = put_ms
        stays_ms = replicating._stay_ms()
        assert stays_ms + 2 * put_ms <= 225 or stays_ms == 125


async def test_a_write_that_nobody_waits_for_is_shipped(tmp_path: Path) -> None:
    store = MemoryObjects()
    async with shipping(tmp_path, store) as replicating:
        write(replicating, b"one")
        await eventually(lambda: len(store.objects) == 1, 30)
        await eventually(lambda: replicating.status()["lag_ms"] == 0, 30)
        write(replicating, b"two")
        await eventually(lambda: len(store.objects) == 2, 30)
        assert replicating.status()["window_ms"] >= 10


async def test_a_mark_is_of_files_that_the_log_has_all_of(tmp_path: Path) -> None:
    """Else the next leader continues a log that lacks what its folder has (SPEC N2)."""
    async with shipping(tmp_path, MemoryObjects()) as replicating:
        write(replicating, b"one")
    marks = [replicating.mark]
    write(replicating, b"two")
    marks.append(replicating.mark)  # written after the last put was asked for
    replicating.gather()
    marks.append(replicating.mark)  # gathered, and not put
    assert [mark is not None for mark in marks] == [True, False, False]


async def test_the_lag_is_that_of_the_oldest_write_that_is_not_shipped(tmp_path: Path) -> None:
    store = LateStore()
    store.away = True
    async with shipping(tmp_path, store) as replicating:
        write(replicating, b"one")
        await eventually(lambda: replicating.status()["put_failures"] > 1, 30)
        lag_ms = replicating.status()["lag_ms"]
        write(replicating, b"two")
        assert replicating.status()["lag_ms"] >= lag_ms >= 100
        store.away = False
        await eventually(lambda: replicating.status()["lag_ms"] == 0, 30)


async def test_a_base_is_due_though_each_leader_shipped_little(tmp_path: Path) -> None:
    store = MemoryObjects()
    before = limits.LOG_OBJECTS_PER_BASE - 1
    async with shipping(tmp_path, store, log_objects=before) as replicating:
        write(replicating, b"one")
        await eventually(lambda: any(key.startswith("base/") for key in store.objects), 30)


async def test_after_its_end_a_lease_allows_nothing(tmp_path: Path) -> None:
    async with shipping(tmp_path, MemoryObjects()) as replicating:
        assert replicating.refusal() is None
        replicating._lease.set(0.0, 1.0)
        assert isinstance(replicating.refusal(), NexoError)


async def test_beyond_its_memory_a_broker_drops_what_waits_and_starts_again_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk has it all: the next start uploads what the store lacks."""
    monkeypatch.setattr(limits, "UNSHIPPED_BYTES", 1_000)
    store, said, ends = LateStore(), list[NexoError | None](), list[bool]()
    store.away = True
    async with shipping(tmp_path, store) as replicating:
        replicating.on_end = ends.append
        write(replicating, b"one")
        replicating.when_shipped(said.append)
        write(replicating, bytes(2_000))
        await eventually(lambda: bool(said), 30)
        assert isinstance(said[0], Unavailable)
        assert replicating.status()["overflowed"]
        write(replicating, bytes(2_000))
        assert replicating.status()["lag_bytes"] == 0, "nothing more is kept"
        replicating.when_shipped(said.append)
        assert isinstance(said[1], Unavailable)
        assert not ends
        store.away = False
        await eventually(lambda: ends == [False], 30)
        assert replicating.restart_wanted
    assert replicating.mark is None, "the store does not have everything"


async def test_nothing_is_served_before_the_store_has_what_recovery_wrote(tmp_path: Path) -> None:
    """The offsets that a stream skips: the next leader would skip as far and repeat those after."""
    store = LateStore()
    store.away = True
    async with shipping(tmp_path, store, every_ms=60_000) as replicating:
        write(replicating, b"skipped")
        began = asyncio.create_task(replicating.began())
        await eventually(lambda: replicating.status()["put_failures"] > 1, 30)
        assert not began.done()
        store.away = False
        await asyncio.wait_for(began, 30)
        assert len(store.objects) == 1


async def test_after_a_lapse_nothing_is_acknowledged_before_the_log_was_looked_at(
    tmp_path: Path,
) -> None:
    """Alone or not, and in every mode: the supervisor's proof counts once the log agrees."""
    store = MemoryObjects()
    async with shipping(tmp_path, store) as replicating:
        replicating._lease.set(FOREVER, 2.0)
        assert isinstance(replicating.refusal(), Unavailable)
        await eventually(lambda: replicating.refusal() is None, 30)


async def test_after_a_lapse_a_leader_whose_log_is_claimed_is_over(tmp_path: Path) -> None:
    store, ends = MemoryObjects(), list[bool]()
    async with shipping(tmp_path, store) as replicating:
        replicating.on_end = ends.append
        claim = LogObject(2, "two/term/b", [])
        store.create(log_key(0), FORMAT.pack(claim, 0))
        replicating._lease.set(FOREVER, 2.0)
        await eventually(lambda: replicating.refusal() is None or bool(ends), 30)
        assert ends == [True]
        assert "does not lead any more" in str(replicating.refusal())


async def test_what_was_put_is_not_acknowledged_once_the_lease_has_ended(tmp_path: Path) -> None:
    store, said = LateStore(), list[NexoError | None]()
    store.away = True
    async with shipping(tmp_path, store) as replicating:
        write(replicating, b"one")
        replicating.when_shipped(said.append)
        replicating._lease.set(0.0, 1.0)
        store.away = False
        await eventually(lambda: bool(said), 30)
        assert isinstance(said[0], Unavailable)


@pytest.mark.parametrize("lost", ["all", "the last object", "the beginning", "contents"])
async def test_a_bucket_that_lost_what_was_put_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """What is `replicated` is not acknowledged then, and the next start uploads all (T6)."""
    monkeypatch.setattr(limits, "BUCKET_LOOK_S", 0.01)
    store, ends, notes = MemoryObjects(), list[bool](), list[Mark]()
    before = limits.LOG_OBJECTS_PER_BASE - 1 if lost == "contents" else 0
    async with shipping(tmp_path, store, log_objects=before) as replicating:
        replicating.on_end, replicating.bucket.note = ends.append, notes.append
        write(replicating, b"one")
        await eventually(lambda: bool(notes) and notes[-1].number >= 1, 30)
        if lost == "contents":
            await eventually(lambda: bool(store.list("base/")), 30)
        assert not ends
        match lost:
            case "all":
                store.objects.clear()
            case "the last object":
                write(replicating, b"two")
                await eventually(lambda: len(store.objects) == 2, 30)
                del store.objects[log_key(1)]
            case "the beginning":
                write(replicating, b"two")
                await eventually(lambda: len(store.objects) == 2, 30)
                del store.objects[log_key(0)]
            case _:
                for key in store.list("file/"):
                    del store.objects[key]
        await eventually(lambda: ends == [False], 30)
        assert replicating.restart_wanted
        said = list[NexoError | None]()
        replicating.when_shipped(said.append)
        assert isinstance(said[0], Unavailable)
