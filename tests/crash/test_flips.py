"""A bit flips in a data folder that has been quiet, and nothing is lost (findings F1, F2, Q4).

Every byte of every journal and snapshot in turn, with the machine started again in between:
recover, look, write, recover again. Where several bytes are wrong, everything else is served.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nexo.errors import Corrupt
from nexo.model.queue import NACK
from nexo.protocol.ops import Op
from nexo.protocol.queue import PeekJobs, encode
from nexo.services.queue import open_queue
from nexo.storage.disk.flusher import Flusher
from tests.faulty_files import FaultyFiles
from tests.unit.brokers.pubsub.desk import Desk as PubSubDesk
from tests.unit.brokers.queue.desk import START_MS
from tests.unit.brokers.queue.desk import Desk as QueueDesk
from tests.unit.brokers.stream.desk import Desk as StreamDesk

STEP = 5
"""Every so many bytes; the bit changes too, so that all kinds of fields are met."""


def quiet(flusher: Flusher) -> None:
    """A minute passes."""
    for _ in range(3):
        flusher.sync()
        flusher.settle()
    flusher.sync()


def files_of(files: FaultyFiles, folder: Path) -> Iterator[Path]:
    for name in files.list(folder):
        path = folder / name
        try:
            files.size(path)
        except FileNotFoundError:
            yield from files_of(files, path)
        else:
            yield path


def flips(
    files: FaultyFiles, folder: Path, *suffixes: str, bits: int = 1
) -> Iterator[tuple[str, FaultyFiles]]:
    """Each file with a bit flipped, or one in each second byte, found by a machine that was
    started again."""
    for path in files_of(files, folder):
        if not path.name.endswith(suffixes):
            continue
        for at in range(path.name.endswith(".log") * 64, files.size(path), STEP):
            after = files.crash_keeping(lambda _path, _sector: True)
            file = after.open(path)
            for place in range(at, min(at + 2 * bits, files.size(path)), 2):
                byte = file.read_at(place, 1)[0] ^ (1 << at % 8)
                file.write_at(place, [bytes([byte])])
            after.sync_all(folder)
            yield f"{path.name}, byte {at}", after


def nothing_removed(before: FaultyFiles, after: FaultyFiles, folder: Path) -> bool:
    return set(files_of(before, folder)) <= {
        path.with_name(path.name.removesuffix(".damaged")) for path in files_of(after, folder)
    }


# -- queues ---------------------------------------------------------------------


@pytest.mark.parametrize("bits", [1, 3])
@pytest.mark.parametrize("persistence", ["file_sync", "file_async"])
def test_a_queue_loses_the_damaged_entry_alone(persistence: str, bits: int) -> None:
    files = FaultyFiles()
    desk = QueueDesk(files)
    peer = desk.client()
    peer.create("q", persistence=persistence, max_retries=7)
    pushed = [[b"\x01%d-%d" % (turn, n) for n in range(3)] for turn in range(4)]
    for values in pushed:
        peer.push_many("q", values)
    quiet(desk.runtime.flusher)
    everything = {value for values in pushed for value in values}
    folder = desk.runtime.folder
    for where, after in flips(files, folder, ".log", bits=bits):
        again = QueueDesk(after, START_MS + 60_000)
        peer = again.client()
        found = set(peer.pop("q")[1].values())
        lost = everything - found
        assert lost in [set(), *map(set, pushed if bits > 1 else [])], where
        assert peer.info("q")["options"]["max_retries"] == 7, where
        assert nothing_removed(files, after, folder), where
        if lost:
            assert again.service.status()["lost"]["count"] == 1, where
        peer.push_many("q", [b"\x01more"])
        quiet(again.runtime.flusher)
        third = QueueDesk(after.restart(), START_MS + 120_000).client()
        assert set(third.pop("q")[1].values()) == {*found, b"\x01more"}, where


def test_jobs_whose_push_is_lost_leave_nothing_behind() -> None:
    """Failed, dead, revived and finished jobs of a lost entry: nobody knows them any more."""
    files = FaultyFiles()
    desk = QueueDesk(files)
    peer = desk.client()
    peer.create("q", max_retries=0)
    peer.push_many("q", [b"\x01a", b"\x01b"], dedup_keys=["a", "b"])
    peer.push_many("q", [b"\x01c", b"\x01d"])
    token, jobs = peer.pop("q", 3)
    peer.settle("q", token, NACK, [next(iter(jobs))])
    peer.settle("q", token, jobs=list(jobs)[1:])
    quiet(desk.runtime.flusher)
    for where, after in flips(files, desk.runtime.folder, ".log", bits=3):
        peer = QueueDesk(after, START_MS + 60_000).client()
        info = peer.info("q")
        assert info["dead"] <= 1, where
        assert len(peer.call(Op.Q_DLQ_LIST, encode(PeekJobs("q")))) > 0
        assert info["waiting"] == len(peer.pop("q")[1]), where
        peer.push_many("q", [b"\x01a"], dedup_keys=["a"])


def test_a_queue_with_one_damaged_snapshot_has_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    for rounds in (1, 4):
        monkeypatch.setattr(open_queue, "TAIL_BYTES", 100 if rounds == 4 else 900)
        files = FaultyFiles()
        desk = QueueDesk(files)
        peer = desk.client()
        peer.create("q")
        everything = [b"\x01%d" % n + b"." * 300 for n in range(rounds * 4)]
        for value in everything:
            peer.push_many("q", [value])
        quiet(desk.runtime.flusher)
        names = files.list(desk.runtime.folder / "q")
        assert sum(name.endswith(".snap") for name in names) == min(rounds, 2)
        monkeypatch.setattr(open_queue, "TAIL_BYTES", 1 << 30)
        for where, after in flips(files, desk.runtime.folder, ".snap"):
            again = QueueDesk(after, START_MS + 60_000)
            assert list(again.client().pop("q")[1].values()) == everything, where
            assert again.service.status()["lost"]["count"] == 0
            assert nothing_removed(files, after, desk.runtime.folder)


# -- retained messages ------------------------------------------------------------


def retained(desk: PubSubDesk) -> dict[str, bytes]:
    client = desk.client()
    client.subscribe("#")
    return dict(client.received)


@pytest.mark.parametrize("bits", [1, 3])
def test_retained_messages_lose_the_damaged_entry_alone(bits: int) -> None:
    files = FaultyFiles()
    desk = PubSubDesk(files)
    flusher = Flusher(files, desk.runtime.folder)
    everything = {f"t/{n}": b"\x01%d" % n for n in range(6)}
    for topic, value in everything.items():
        desk.client().publish(topic, value, retain=True)
    quiet(flusher)
    for where, after in flips(files, desk.runtime.folder, ".log", bits=bits):
        again = PubSubDesk(after)
        found = retained(again)
        assert len(found) >= (6 if bits == 1 else 5), where
        assert found.items() <= everything.items(), where
        again.client().publish("t/more", b"\x01more", retain=True)
        assert retained(PubSubDesk(after.restart())) == found | {"t/more": b"\x01more"}, where


# -- streams ----------------------------------------------------------------------


def publish_and_consume(files: FaultyFiles) -> StreamDesk:
    desk = StreamDesk(files)
    peer = desk.client()
    for number in range(3):
        peer.make(f"s{number}", partitions=number + 1)
        peer.publish(f"s{number}", b"%d" % number)
    return desk


def check_streams(where: str, after: FaultyFiles) -> None:
    peer = StreamDesk(after).client()
    for number in range(3):
        assert peer.read(f"s{number}") == [b"%d" % number], where
        assert len(peer.describe(f"s{number}").partitions) == number + 1, where
    peer.make("more")
    peer.publish("s0", b"more")
    again = StreamDesk(after.restart()).client()
    assert again.read("s0") == [b"0", b"more"], where
    again.publish("more", b"1")


@pytest.mark.parametrize("restarts", [0, 1, 2], ids=["journal", "first snapshot", "snapshots"])
def test_streams_are_all_there_whatever_flips_in_their_journal(restarts: int) -> None:
    files = FaultyFiles()
    desk = publish_and_consume(files)
    for _ in range(restarts):
        desk.service.close()
        desk = StreamDesk(files)
    flusher = Flusher(files, desk.runtime.folder)
    desk.service.core.journal._unsettle()  # the flusher came late
    quiet(flusher)
    count = 0
    for where, after in flips(files, desk.runtime.folder / "journal", ".log", ".snap", bits=3):
        check_streams(where, after)
        count += 1
    assert count > 100


def publish_batches(desk: StreamDesk) -> list[bytes]:
    """Three batches of ten, and single records between them; returns all values."""
    peer = desk.client()
    peer.make("s")
    everything = []
    for turn in range(3):
        values = [b"value %d of %d" % (n, turn) for n in range(10)]
        peer.publish("s", *values, keys=[b"key %d" % n for n in range(10)])
        peer.publish("s", b"alone %d" % turn)
        everything += [*values, b"alone %d" % turn]
    return everything


@pytest.mark.parametrize("ended", ["quiet", "closed"])
def test_a_flip_in_a_batch_costs_nothing_and_one_in_a_single_record_that_record(
    ended: str,
) -> None:  # SPEC Q4
    files = FaultyFiles()
    desk = StreamDesk(files)
    flusher = Flusher(files, desk.runtime.folder)
    everything = publish_batches(desk)
    if ended == "closed":
        desk.service.close()
    quiet(flusher)
    folder, lost = desk.runtime.folder / "streams", 0
    for where, after in flips(files, folder, ".log", ".sums"):
        rows = found_in(StreamDesk(after))
        missing = [value for value in everything if value not in rows]
        assert rows == [value for value in everything if value in rows], where
        assert len(missing) <= 1, where
        assert all(value.startswith(b"alone") for value in missing), where
        lost += len(missing)
    assert 0 < lost < 60


def found_in(desk: StreamDesk) -> list[bytes]:
    """All values that readers get."""
    peer, offset = desk.client(), 0
    found: list[bytes] = []
    while offset < peer.describe("s").partitions[0].next_offset:
        try:
            rows = peer.rows("s", offset)
        except Corrupt as error:
            offset = error.next_offset or 1 << 60
            continue
        found += [row.value or b"" for row in rows]
        if not rows:  # offsets that may have been seen before are not used again
            break
        offset = rows[-1].offset + 1
    return found


Opening = Callable[[FaultyFiles], object]


@pytest.mark.parametrize(
    ("desk", "folder"),
    [(QueueDesk, "/data/queue/q"), (PubSubDesk, "/pubsub"), (StreamDesk, "/stream/journal")],
)
def test_a_broker_comes_up_whatever_is_in_its_only_snapshot(desk: Opening, folder: str) -> None:
    """Finding F2: no restart loop."""
    files = FaultyFiles()
    for parent in reversed([Path(folder), *Path(folder).parents]):
        files.plant(parent, None)
    files.plant(Path(folder) / f"{3:020}.snap", b"?")
    desk(files)
    assert f"{3:020}.snap.damaged" in files.list(Path(folder))


@pytest.mark.parametrize("ended", ["killed", "closed"])
def test_a_damaged_last_record_of_zeros_is_reported_and_its_offset_not_used_again(
    ended: str,
) -> None:
    """Sectors of zeros look like a write that power loss cut, but no power was lost."""
    files = FaultyFiles()
    desk = StreamDesk(files)
    peer = desk.client()
    peer.make("s")
    for value in (b"first", bytes(4_000)):
        peer.publish("s", value)
    if ended == "closed":
        desk.service.close()
    files.sync_all(desk.runtime.folder)
    after = files.restart() if ended == "killed" else files.crash_keeping(lambda *_: True)
    (path,) = (p for p in files_of(after, Path("/stream/streams")) if p.name.endswith(".log"))
    file = after.open(path)
    at = file.read_at(0, file.size()).rindex(b"NX") + 100
    file.write_at(at, [b"?"])
    peer = StreamDesk(after).client()
    assert peer.publish("s", b"third") == [(0, 2, 1)]
    with pytest.raises(Corrupt):
        peer.read("s", offset=1)
