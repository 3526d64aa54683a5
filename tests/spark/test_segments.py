"""A server's files give what its broker gives, while it runs and when it is stopped."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

import nexo
from nexo import testing
from nexo.client.stream_records import Outgoing
from nexo.config import Settings
from nexo.errors import InvalidOption, NotFound
from nexo.model import Persistence
from nexo.server.processes.folders import FolderLock
from pyspark_nexo.reading.origins import BrokerOrigin, RecordOrigin
from pyspark_nexo.reading.segments import open_files

Rows: TypeAlias = list[tuple[int, int, int, bytes | None, bytes | None]]


def rows(origin: RecordOrigin) -> Rows:
    """Everything that readers may see."""
    return [
        (partition, record.offset, record.timestamp_ms, record.key, record.value)
        for partition, part in enumerate(origin.describe().partitions)
        for batch in origin.read(partition, part.start_offset, part.stable_offset)
        for record in batch.records()
        if part.start_offset <= record.offset < part.stable_offset
    ]


def fill(client: nexo.Client, persistence: Persistence) -> None:
    log = client.stream("log").create(partitions=2, cleanup="compact", persistence=persistence)
    for n in range(5):
        log.publish_many([b"%d" % i for i in range(500)], keys=[f"k{i}" for i in range(500)])
        with client.transaction() as kept:
            kept.publish("log", b"kept", key=f"t{n}")
        with suppress(ZeroDivisionError), client.transaction() as dropped:
            dropped.publish("log", b"dropped", key=f"t{n}")
            raise ZeroDivisionError
    log.publish_many([b"last"] * 10)


@pytest.mark.parametrize("persistence", Persistence)
def test_files_give_what_the_broker_gives(tmp_path: Path, persistence: Persistence) -> None:
    folder, settings = tmp_path / "data", dict[str, Any](dashboard=False)
    if persistence == Persistence.REPLICATED:
        settings["replicate"] = f"file://{tmp_path / 'copy'}"
    with testing.process(folder, **settings) as server, nexo.connect(server.url) as client:
        fill(client, persistence)
        asked = BrokerOrigin(server.url, "log")
        whole = rows(asked)
        assert len(whole) == 5 * 501 + 10
        assert rows(open_files(folder, "log")) == whole
        client.stream("log").compact()
        thinned = rows(asked)
        assert len(thinned) < len(whole)
        assert rows(open_files(folder, "log")) == thinned
        times = {stamp for _, _, stamp, _, _ in thinned}
        moments = [0, *sorted(times)[::3], max(times) + 1]
        found = [asked.offsets_at(moment) for moment in moments]
        files = open_files(folder, "log")
        assert [files.offsets_at(moment) for moment in moments] == found
    stopped = open_files(folder, "log")
    assert rows(stopped) == thinned
    assert [stopped.offsets_at(moment) for moment in moments] == found


def test_an_open_transaction_hides_what_follows_only_while_it_may_commit(tmp_path: Path) -> None:
    with testing.process(tmp_path, dashboard=False) as server, nexo.connect(server.url) as client:
        log = client.stream("log").create()
        log.publish(b"before")
        with client.transaction() as open_one:
            open_one.publish("log", b"undecided")
            log.publish(b"behind")
            assert [row[-1] for row in rows(open_files(tmp_path, "log"))] == [b"before"]
        decided = [b"before", b"undecided", b"behind"]
        assert [row[-1] for row in rows(open_files(tmp_path, "log"))] == decided
        open_two = client.transaction().__enter__()
        open_two.publish("log", b"never")
        log.publish(b"after")
        server.kill()
    FolderLock(Settings(data_dir=tmp_path), wait_s=100).close()  # until its last process has ended
    assert [row[-1] for row in rows(open_files(tmp_path, "log"))] == [*decided, b"after"]


@pytest.mark.parametrize("commits", [False, True])
def test_the_rest_of_a_transaction_shares_its_fate(tmp_path: Path, commits: bool) -> None:
    """The front of the log has moved into its batch."""
    expected, at = [b"tx", b"tx", b"after"] if commits else [b"after"], TopicPartition("log", 0, 2)
    with testing.process(tmp_path, dashboard=False) as server, nexo.connect(server.url) as client:
        log = client.stream("log").create()
        with suppress(ZeroDivisionError), client.transaction() as tx:
            four = Outgoing()
            for _ in range(4):
                four.add(0, b"tx", None, b"")
            tx.publish_batch("log", 0, four)
            assert commits or 1 / 0
        log.publish(b"after")
        bootstrap = server.url.removeprefix("nexo://")
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        assert admin.delete_records([at])[at].result(20).low_watermark == 2
        assert [row[-1] for row in rows(BrokerOrigin(server.url, "log"))] == expected
        assert [row[-1] for row in rows(open_files(tmp_path, "log"))] == expected
        server.terminate()
    assert [row[-1] for row in rows(open_files(tmp_path, "log"))] == expected


def test_reading_files_changes_none(tmp_path: Path) -> None:
    with testing.process(tmp_path, dashboard=False) as server, nexo.connect(server.url) as client:
        fill(client, Persistence.FILE_ASYNC)
        server.kill()
    for segment in (tmp_path / "stream").rglob("*.log"):
        with segment.open("ab") as file:
            file.write(b"torn")  # what a server would cut off

    def files() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    before = files()
    assert rows(open_files(tmp_path, "log"))
    assert files() == before


def test_folders_and_streams_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="no server has streams there"):
        open_files(tmp_path, "log")
    with testing.process(tmp_path, dashboard=False):
        pass
    with pytest.raises(NotFound, match="'log' not found"):
        open_files(tmp_path, "log")
