"""Batches staged by tasks and published by one transaction: each counts once (F8, H1, I4).

Every test repeats a batch with its rows in another order and cut into other tasks, as after a
shuffle. A process that dies is an error at a labelled point, after which nothing of it runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import nexo
from nexo import testing
from nexo.access.grants import parse_grant
from nexo.access.users import UsersFile
from nexo.batch.partitions import partition_of
from nexo.errors import ConfigError, Conflict, Corrupt, Forbidden, InvalidOption
from nexo.lake.writing.staging import StagingPlace, staging_at, staging_here
from nexo.protocol.values import ValueType
from pyspark_nexo.options import LEDGER
from pyspark_nexo.options import parse as parse_options
from pyspark_nexo.publishing.once import LedgerMark, StagedFile, publish_once
from pyspark_nexo.sink import BatchSink, Sink, StreamSink, TaskWritten, _place
from tests.timing import wait_until

ROWS = [f"r{n}" for n in range(40)]
POINTS = ["before the publishing", "published", "before the commit", "committed"]


class Died(BaseException):
    """The process is gone."""


def dying(point: str) -> Callable[[str], None]:
    def probe(reached: str) -> None:
        if reached == point:
            raise Died

    return probe


@pytest.fixture
def place(tmp_path: Path) -> StagingPlace:
    found = staging_at(str(tmp_path / "staging"))
    found.prepare()
    return found


@pytest.fixture
def log(client: nexo.Client) -> Any:
    return client.stream("log").create(partitions=3)


def sink_of(url: str, place: StagingPlace) -> Sink:
    return Sink("log", url, 3, ValueType.TEXT, place, LEDGER)


def staged(sink: Sink, *tasks: list[str]) -> list[StagedFile]:
    """What tasks with these rows leave; half of the rows have keys."""
    found = []
    for rows in tasks:
        keys = [row if len(row) % 2 else None for row in rows]
        batch = pa.RecordBatch.from_pydict({"value": rows, "key": keys})
        written: TaskWritten = sink.write(iter([batch]))
        assert written.file is not None
        found.append(written.file)
    return found


def batch(number: int, query: str = "q") -> LedgerMark:
    return LedgerMark(LEDGER, query, number)


def stored(log: Any) -> list[str]:
    return sorted(record.value for p in range(3) for record in log.read(p))


def published(sink: Sink, files: list[StagedFile], mark: LedgerMark | None) -> bool:
    assert sink.place is not None
    return publish_once(sink.url, sink.place, files, mark, sink.probe)


def test_a_batch_in_another_order_is_published_once(
    url: str, place: StagingPlace, log: Any
) -> None:
    sink = sink_of(url, place)
    assert published(sink, staged(sink, ROWS[:25], ROWS[25:]), batch(0))
    assert not published(sink, staged(sink, ROWS[::-1]), batch(0))
    assert stored(log) == sorted(ROWS)
    assert published(sink, staged(sink, ["next"]), batch(1))
    assert not published(sink, staged(sink, ROWS), batch(0))
    assert published(sink, staged(sink, ["other"]), batch(0, "another query"))
    assert stored(log) == sorted([*ROWS, "next", "other"])


@pytest.mark.parametrize("point", POINTS)
def test_a_batch_that_is_repeated_after_any_death_is_published_once(
    url: str, place: StagingPlace, log: Any, point: str
) -> None:
    sink = sink_of(url, place)
    with pytest.raises(Died):
        published(replace(sink, probe=dying(point)), staged(sink, ROWS), batch(0))
    assert stored(log) == (sorted(ROWS) if point == "committed" else [])
    again = staged(sink, ROWS[::-1][:7], ROWS[::-1][7:])
    assert published(sink, again, batch(0)) == (point != "committed")
    assert stored(log) == sorted(ROWS)


@pytest.mark.parametrize("point", ["before the staging", "staged"])
def test_a_task_that_dies_leaves_nothing_but_what_the_sweep_takes(
    url: str, place: StagingPlace, log: Any, point: str
) -> None:
    sink = sink_of(url, place)
    with pytest.raises(Died):
        staged(replace(sink, probe=dying(point)), ROWS)
    assert published(sink, staged(sink, ROWS[::-1]), batch(0))
    assert stored(log) == sorted(ROWS)
    place.sweep(grace_s=-1)
    assert place.files() == []


@pytest.mark.parametrize("point", POINTS[:3])
def test_of_two_drivers_with_one_checkpoint_one_publishes(
    url: str, place: StagingPlace, log: Any, point: str
) -> None:
    sink = sink_of(url, place)
    other: list[None] = []

    def probe(reached: str) -> None:
        if reached == point and not other:
            other.append(None)
            assert published(sink, staged(sink, ROWS[::-1]), batch(0))

    assert not published(replace(sink, probe=probe), staged(sink, ROWS), batch(0))
    assert stored(log) == sorted(ROWS)


def test_rows_follow_their_keys_when_partitions_are_added_meanwhile(
    url: str, place: StagingPlace, log: Any
) -> None:  # SPEC E1
    sink = sink_of(url, place)
    keys = [f"k{n}" for n in range(40)]
    rows = {"value": ROWS, "key": keys, "partition": [None] * 39 + [1]}
    schema = pa.schema([("value", "string"), ("key", "string"), ("partition", "int32")])
    written = sink.write(iter([pa.RecordBatch.from_pydict(rows, schema)]))
    assert written.file is not None
    log.update(partitions=5)
    assert published(sink, [written.file], batch(0))
    found = {p: [(row.key, row.value) for row in log.read(p)] for p in range(5)}
    assert (keys[39], ROWS[39]) in found[1]
    assert sorted(value for some in found.values() for _, value in some) == sorted(ROWS)
    for partition, some in found.items():
        homes = {partition_of(key.encode(), 5) for key, value in some if value != ROWS[39]}
        assert homes <= {partition}


def test_a_staged_file_that_is_gone_or_cut_publishes_nothing(
    url: str, place: StagingPlace, log: Any
) -> None:
    sink = sink_of(url, place)
    first, second = staged(sink, ROWS[:20], ROWS[20:])
    cut = Path(place.files()[0])
    whole = {path: Path(path).read_bytes() for path in place.files()}
    cut.write_bytes(whole[str(cut)][:-5])
    with pytest.raises(Corrupt, match="cut short"):
        published(sink, [first, second], batch(0))
    cut.unlink()
    with pytest.raises(Conflict, match="does not share"):
        published(sink, [first, second], batch(0))
    assert stored(log) == []
    cut.write_bytes(whole[str(cut)])
    assert published(sink, [first, second], batch(0))
    assert stored(log) == sorted(ROWS)


def test_an_executor_without_the_staging_place_says_what_to_set(url: str, log: Any) -> None:
    sink = sink_of(url, StagingPlace("file:///nowhere/to/be/found"))
    with pytest.raises(ConfigError, match=r"option\('staging'"):
        staged(sink, ROWS)


def test_nothing_stays_staged_after_the_commit_and_old_files_are_swept(
    url: str, place: StagingPlace, log: Any
) -> None:
    sink = BatchSink("log", url, 3, ValueType.TEXT, place, LEDGER)
    lost = staged(sink, ROWS)  # of an attempt that Spark does not count
    batch = pa.RecordBatch.from_pydict({"value": ROWS})
    sink.commit([sink.write(iter([batch])), sink.write(iter([batch.slice(0, 0)]))])
    assert lost
    assert place.files() == []
    assert stored(log) == sorted(ROWS)
    other = replace(sink, name="of one that died")
    staged(other, ROWS)
    assert place.sweep() == 0
    assert place.sweep(grace_s=-1) == 1
    assert place.files() == []
    other.abort([None])
    assert stored(log) == sorted(ROWS)


def test_a_batch_without_rows_is_nothing(url: str, place: StagingPlace, log: Any) -> None:
    sink = StreamSink("log", url, 3, ValueType.TEXT, place, LEDGER)
    empty = pa.RecordBatch.from_pydict({"value": pa.array([], "string")})
    sink.commit([sink.write(iter([empty]))], 0)
    assert stored(log) == []
    assert place.files() == []


def test_a_user_who_may_not_write_the_ledger_is_told(tmp_path: Path, place: StagingPlace) -> None:
    (tmp_path / "nexo").mkdir()
    users = UsersFile(tmp_path / "nexo" / "users.json")
    users.add("spark", "secret word", [parse_grant("stream:*:log*")])
    with testing.server(data_dir=tmp_path / "nexo", auth=True) as url:
        sink = sink_of(url.replace("://", "://spark:secret%20word@"), place)
        with nexo.connect(sink.url) as client:
            client.stream("log").create(partitions=3)
        files = staged(sink, ROWS)
        with pytest.raises(Forbidden, match="at-least-once"):
            published(sink, files, batch(0))
        assert published(sink, files, LedgerMark("log-ledger", "q", 0))


def test_a_broker_killed_within_the_transaction_has_the_batch_once(
    served: testing.Process, place: StagingPlace
) -> None:
    with nexo.connect(served.url) as client:
        log = client.stream("log").create(partitions=3)
        sink = sink_of(served.url, place)
        for number, point in enumerate(POINTS[:3]):
            killed: list[str] = []

            def probe(reached: str, point: str = point, killed: list[str] = killed) -> None:
                if reached == point and not killed:
                    killed.append(reached)
                    served.kill()
                    served.start()

            files = staged(sink, [f"{number} {row}" for row in ROWS])
            assert published(replace(sink, probe=probe), files, batch(number))
            assert killed
        wait_until(lambda: len(stored(log)) >= 120, 60, "the records are not visible")
        assert stored(log) == sorted(f"{number} {row}" for number in range(3) for row in ROWS)


def test_options_of_sinks_are_checked(url: str) -> None:
    with pytest.raises(InvalidOption, match="delivery"):
        parse_options({"stream": "log", "delivery": "perhaps"}, writing=True)
    with pytest.raises(InvalidOption, match="staging is an option of writing"):
        parse_options({"stream": "log", "staging": "/x"})
    with pytest.raises(ConfigError, match="whole path"):
        _place(parse_options({"stream": "log", "staging": "x", "url": url}, writing=True))
    once = parse_options({"stream": "log", "url": url, "delivery": "at-least-once"}, writing=True)
    assert _place(once) is None


def test_the_place_on_this_machine_is_its_users_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    found = Path(staging_here().location.removeprefix("file://"))
    found.chmod(0o777)
    with pytest.raises(ConfigError, match="this user's alone"):
        staging_here()
