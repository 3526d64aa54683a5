"""What a Kafka client is promised is what a stream promises: durability, bounds (SPEC L4)."""

from __future__ import annotations

from typing import Any

import pytest

from nexo.dialects.kafka.format.apis import ApiKey
from nexo.errors import DiskFull
from tests.crash.test_stream_power_loss import SyncingDesk
from tests.faulty_files import FaultyFiles
from tests.kafka.session import Line
from tests.kafka.test_batches import kafka_batch
from tests.unit.brokers.stream.desk import Desk

ONE = kafka_batch([(1_000, b"k", b"one", [])])
OUT_OF_RANGE, STORAGE = 1, 56


def slow(persistence: str) -> tuple[Desk, Line]:
    """A topic on a disk that syncs when the test says so."""
    desk = Desk()
    desk.client().make("t", persistence=persistence)
    desk.runtime.slow_disk = True
    return desk, Line(desk)


def row(answer: dict[str, Any]) -> dict[str, Any]:
    """The answer of the only partition."""
    found: dict[str, Any] = answer["topics"][0]["partitions"][0]
    return found


@pytest.mark.parametrize("acks", [1, -1])
def test_an_answer_waits_for_the_disk_if_the_stream_does(acks: int) -> None:
    desk, line = slow("file_sync")
    line.produce("t", ONE, acks)
    assert line.answers() == {}
    assert desk.client().read("t") == []
    desk.runtime.sync()
    assert (row(line.answers()[0])["error"], row(line.answers()[0])["base_offset"]) == (0, 0)
    assert desk.client().read("t") == [b"one"]


@pytest.mark.parametrize("acks", [1, -1])
def test_an_answer_waits_for_no_disk_if_the_stream_does_not(acks: int) -> None:
    _, line = slow("file_async")
    for offset in (0, 1):
        line.produce("t", ONE, acks)
        assert row(line.answers()[offset])["base_offset"] == offset


@pytest.mark.parametrize("persistence", ["file_sync", "file_async"])
def test_without_acknowledgement_there_is_no_answer_and_the_same_record(persistence: str) -> None:
    desk, line = slow(persistence)
    line.produce("t", ONE, 0)
    desk.runtime.sync()
    assert line.answers() == {}
    assert desk.client().read("t") == [b"one"]


def test_an_error_without_an_answer_ends_the_connection() -> None:
    desk, line = slow("file_async")
    line.produce("t", ONE, 0)
    assert not line.is_closed()
    line.produce("t", ONE[:-1], 0)
    assert line.is_closed()
    assert line.answers() == {}
    assert desk.client().read("t") == [b"one"]


def test_other_acknowledgements_are_refused() -> None:
    desk, line = slow("file_async")
    line.produce("t", ONE, 3)
    assert row(line.answers()[0])["error"] == 21
    assert desk.client().read("t") == []


@pytest.mark.parametrize("seed", range(6))
def test_what_was_acknowledged_survives_a_loss_of_power(seed: int) -> None:
    files = FaultyFiles()
    desk = SyncingDesk(files)
    desk.client().make("t", persistence="file_sync")
    line = Line(desk)
    for _ in range(3):
        line.produce("t", ONE, -1)
    assert [row(one)["base_offset"] for one in line.answers().values()] == [0, 1, 2]
    after = SyncingDesk(files.crash(seed)).client()
    assert after.read("t") == [b"one"] * 3


def test_a_disk_that_fails_is_reported() -> None:
    desk, line = slow("file_sync")
    line.produce("t", ONE, -1)
    desk.runtime.sync(DiskFull("no room"))
    assert row(line.answers()[0])["error"] == STORAGE
    desk.runtime.refuses = DiskFull("no room")
    line.produce("t", ONE, -1)
    assert row(line.answers()[1])["error"] == STORAGE


def test_what_was_dropped_is_out_of_range_and_offsets_go_on() -> None:
    desk = Desk()
    desk.client().make("t")
    line = Line(desk)
    for _ in range(3):
        line.produce("t", ONE, -1)
    dropped = {"name": "t", "partitions": [{"partition": 0, "offset": 2}]}
    found = line.ask(ApiKey.DELETE_RECORDS, 1, {"topics": [dropped], "timeout_ms": 0})
    assert (row(found)["error"], row(found)["low"]) == (0, 2)
    assert [fetched(line, offset)[0] for offset in (0, 1, 4)] == [OUT_OF_RANGE] * 3
    assert fetched(line, 2) == (0, 2)
    assert fetched(line, 3) == (0, 2)
    line.produce("t", ONE, -1)
    stored = row(list(line.answers().values())[-1])
    assert (stored["base_offset"], stored["log_start"]) == (3, 2)


def fetched(line: Line, offset: int) -> tuple[int, int]:
    """The error of a fetch, and where the log begins."""
    part = {"partition": 0, "offset": offset, "max_bytes": 1_000}
    message = {
        "replica_id": -1, "max_wait_ms": 0, "min_bytes": 0, "max_bytes": 1_000, "isolation": 1,
        "topics": [{"name": "t", "partitions": [part]}],
    }  # fmt: skip
    found = row(line.ask(ApiKey.FETCH, 11, message))
    return found["error"], found["log_start"]
