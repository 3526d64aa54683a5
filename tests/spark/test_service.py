"""The pipeline as users run it: the command, and continuously beside the brokers."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

import nexo
from nexo import cli, testing
from nexo.access.grants import parse_grant
from nexo.access.users import UsersFile
from nexo.contracts import StreamContract, sample
from nexo.errors import Unauthenticated
from nexo.lake.catalog import Lake
from nexo.lake.progress import MicroBatchResult, read_progress
from nexo.lake.settings import LakeSettings
from nexo.lake.tables import DEAD_LETTERS, offsets_of
from nexo.lake.typed import columns as typed
from nexo.lake.typed.infer import infer
from pyspark_nexo import continuous
from pyspark_nexo.continuous import Continuous
from pyspark_nexo.failures import plain_errors
from pyspark_nexo.pipeline import Pipeline
from pyspark_nexo.views import register_views
from tests.timing import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def nexo_command(*arguments: str) -> Result:
    """Runs in this process, so that it finds the suite's Spark."""
    return CliRunner().invoke(cli.main, arguments)


@pytest.mark.usefixtures("spark")
def test_the_commands_take_show_and_query_a_stream(
    client: nexo.Client, url: str, tmp_path: Path
) -> None:  # SPEC K5
    client.stream("orders").create(tiering=True).publish_many([{"n": n} for n in range(20)])
    where = ("--url", url, "--lake", str(tmp_path / "lake"))
    schema = nexo_command("pipeline", "schema", "orders", "--infer", "--json", *where)
    assert json.loads(schema.stdout) == {"column": "n", "type": "long", "field": "n"}
    run = nexo_command("pipeline", "run", "--once", "--json", *where)
    assert json.loads(run.stdout) == {"records": 20}, run.stderr
    status = nexo_command("pipeline", "status", "--json", *where)
    assert json.loads(status.stdout)["lake_offset"] == 20
    query = "select sum(n) as total, count(*) as records from orders"
    for engine in ("duckdb", "spark"):
        result = nexo_command("sql", query, "--csv", "--engine", engine, *where)
        assert result.stdout.splitlines() == ["total,records", "190,20"], result.stderr


@pytest.mark.usefixtures("spark")
def test_sql_prints_what_the_query_returned(client: nexo.Client, url: str) -> None:  # SPEC K5
    client.stream("log").create().publish_many(["a", "b", "c"], keys=["k"] * 3)
    select = (
        "select l.value, m.value from log l join log m on m.offset = l.offset + 1 order by l.offset"
    )
    joined = nexo_command("sql", select, "--csv", "--engine", "spark", "--url", url)
    assert joined.stdout.splitlines() == ["value,value", "a,b", "b,c"], joined.stderr
    spark = ("--engine", "spark", "--url", url)
    few = nexo_command("sql", select, "--limit", "1", "--json", *spark)
    assert json.loads(few.stdout) == {"value": {"base64": "YQ=="}, "value_2": {"base64": "Yg=="}}
    assert few.stderr == "only the first 1 rows are shown: --limit shows more\n"
    times = "select timestamp'2026-01-01' as a, timestamp_ntz'2026-01-01' as b"
    shown = nexo_command("sql", times, "--as-of", "2026-01-31T12:00:00.5+02:00", *spark)
    assert shown.stdout == "2026-01-01T00:00:00Z\t2026-01-01T00:00:00\n"
    both = nexo_command("sql", "select 1", "--csv", "--json", "--url", url)
    assert both.exit_code == 2


def test_sql_says_that_spark_starts_and_nothing_that_spark_says(
    client: nexo.Client, url: str
) -> None:  # SPEC K5
    client.stream("orders").create().publish_many([{"n": n} for n in range(20)])
    query = ("sql", "select count(*) from orders", "--engine", "spark")
    printed, said = on_a_terminal(*query, "--url", url)
    assert printed == b"20\n"
    assert said.startswith("starting Spark…".encode())
    assert b"query" in said
    assert b"WARN" not in said


def test_a_pipeline_shows_how_far_it_is_within_a_batch(
    client: nexo.Client, url: str, tmp_path: Path
) -> None:  # SPEC K5
    client.stream("orders").create(tiering=True).publish_many([{"n": n} for n in range(20)])
    lake = str(tmp_path / "lake")
    printed, said = on_a_terminal("pipeline", "run", "--once", "--url", url, "--lake", lake)
    assert printed == b"took 20 records\n"
    assert re.search(rb"taking .*\d+%", said)
    assert b"orders: 20 records in 1 files, " in said


def on_a_terminal(*arguments: str) -> tuple[bytes, bytes]:
    """What a command printed and what it said to who waits for it."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "nexo", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs) as running:
        os.close(theirs)
        said = b""
        with suppress(OSError):  # the end of a terminal
            while part := os.read(ours, 65_536):
                said += part
        assert running.stdout is not None
        printed = running.stdout.read()
    os.close(ours)
    return printed, said


@pytest.mark.usefixtures("spark")
def test_bad_commands_give_one_line(url: str) -> None:
    for arguments, text in (
        (("pipeline", "schema", "nowhere"), "error[NOT_FOUND]: stream 'nowhere' not found"),
        (
            ("pipeline", "maintain", "--catalog", "nowhere"),
            "error[CONFIG]: cannot open the catalog",
        ),
        (
            ("sql", "selec", "--engine", "spark"),
            "error[INVALID]: Spark failed: [PARSE_SYNTAX_ERROR]",
        ),
        (
            ("sql", "select * from nope", "--engine", "spark"),
            "error[INVALID]: Spark failed: [TABLE_OR_VIEW_NOT_FOUND]",
        ),
    ):
        done = nexo_command(*arguments, "--url", url)
        assert done.exit_code == 1
        assert done.stderr.startswith(text)
        assert len(done.stderr.splitlines()) == 1


def test_records_become_visible_while_it_runs_and_it_survives_a_broker_restart(
    pipeline: Pipeline,
    lake: Lake,
    nexo_server: testing.Server,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(continuous, "RESCAN_S", 0.2)
    pipeline.url = f"{nexo_server.url}?while_down=fail"
    stop, seen, notes = threading.Event(), threading.Semaphore(0), list[str]()

    def report(progress: MicroBatchResult) -> None:
        if progress.rows:
            seen.release()

    service = Continuous(pipeline, 0.2)
    thread = threading.Thread(target=service.run, args=(stop, report, notes.append))
    thread.start()
    try:
        with nexo.connect(nexo_server.url) as client:
            client.stream("log").create(tiering=True).publish_many([b"x"] * 10)
            assert seen.acquire(timeout=30)
        nexo_server.crash()
        nexo_server.start()
        with nexo.connect(nexo_server.url) as client:
            client.stream("log").publish(b"after")
            assert seen.acquire(timeout=30)
            assert read_progress(lake.settings.folder)[0].running
    finally:
        stop.set()
        thread.join()
    assert offsets_of(lake.get("log").properties) == {0: 11}
    (told,) = read_progress(lake.settings.folder)
    (stream,) = told.streams
    assert (told.running, told.every_ms, told.error) == (False, 200, "")
    assert (stream.records, stream.taken, stream.batches, stream.behind) == (11, 11, 2, 0)
    assert stream.fresh_ms is not None


def test_a_compacted_stream_has_a_view_of_its_newest_records(
    pipeline: Pipeline, lake: Lake, client: nexo.Client, url: str
) -> None:
    users = client.stream("users").create(tiering=True, cleanup="compact", partitions=2)
    for n in range(20):
        users.publish({"n": n}, key=f"u{n % 5}")
    users.tombstone("u0")
    pipeline.run_once()
    assert [progress.rows for progress in pipeline.compact(["users"])] == [4]
    assert pipeline.compact(["users"]) == []
    register_views(pipeline.spark, lake, url)
    rows = pipeline.spark.sql("select cast(key as string) from users_latest").collect()
    assert sorted(row[0] for row in rows) == ["u1", "u2", "u3", "u4"]


def test_values_a_schema_refuses_are_dead_letters(
    pipeline: Pipeline, lake: Lake, client: nexo.Client, url: str
) -> None:
    events = client.stream("events").create(tiering=True)
    events.publish_many([{"id": 1}, {"id": "two"}, {"id": 3}])
    assert infer(sample(url, "events")) == {"id": "json"}
    typed.set_schema(StreamContract(lake, url, "events").table(), {"id": "int"})
    pipeline.run_once()
    typed.rename(typed.set_schema(lake.get("events"), {"id": "long"}), "id", "number")
    events.publish({"id": 9_000_000_000})
    pipeline.run_once()
    register_views(pipeline.spark, lake, url)
    spark = pipeline.spark
    numbers = spark.sql("select number from events order by offset").collect()
    assert [row[0] for row in numbers] == [1, None, 3, 9_000_000_000]
    letters = spark.sql("select offset, cast(value as string), reason from events_dead_letters")
    (letter,) = letters.collect()
    assert (letter[0], letter[1]) == (1, '{"id":"two"}')
    assert "id" in letter[2]
    assert lake.get("events", DEAD_LETTERS).scan().to_arrow().num_rows == 1
    (told,) = read_progress(lake.settings.folder)
    assert [stream.dead_letters for stream in told.streams] == [1]
    status = nexo_command(
        "pipeline", "status", "--json", "--url", url, "--lake", str(lake.settings.folder)
    )
    assert json.loads(status.stdout)["dead_letters"] == 1
    assert "ended, took 4 records" in status.stderr


def test_the_server_runs_the_pipeline_beside_its_brokers(tmp_path: Path) -> None:
    with testing.process(tmp_path / "nexo", pipeline=True) as served:
        with nexo.connect(served.url) as client:
            log = client.stream("log").create(tiering=True)
            log.publish_many([b"x"] * 10)
            wait_until(
                lambda: log.info().partitions[0].tiered_offset == 10,
                400,
                what=f"nothing was taken: see {served.log_file}",
                every_s=0.1,
            )
        assert served.terminate() == 0
    assert offsets_of(Lake(LakeSettings(tmp_path / "nexo" / "lake")).get("log").properties) == {
        0: 10
    }


def test_a_pipeline_whose_jvm_was_killed_ends_and_says_so(
    client: nexo.Client, url: str, tmp_path: Path
) -> None:
    """SPEC I4: retrying would never help; whoever runs it starts it again."""
    log = client.stream("log").create(tiering=True)
    log.publish(b"taken")
    said = tmp_path / "stderr"
    command = [sys.executable, "-m", "nexo", "pipeline", "run", "--master", "local[1]"]
    with said.open("wb") as stderr:
        running = subprocess.Popen(
            [*command, "--url", url, "--lake", str(tmp_path / "lake")], stderr=stderr
        )

    def taken() -> bool:
        assert running.poll() is None, said.read_text()
        return log.info().partitions[0].tiered_offset == 1

    wait_until(taken, 400, every_s=0.1)
    below = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
    for child in below:
        os.kill(int(child), signal.SIGKILL)
    log.publish(b"not any more")
    assert running.wait() == 1
    assert said.read_text().splitlines()[-1].startswith("error[UNAVAILABLE]: Spark has ended")


def test_a_wrong_password_ends_it_rather_than_lock_the_user_out(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:  # SPEC A10
    users = UsersFile(tmp_path / "nexo" / "users.json")
    users.add("lake", "the right password", [parse_grant("*:*:*")])
    server = testing.Server(data_dir=tmp_path / "nexo", auth=True)
    server.start()
    try:
        wrong = server.url.replace("://", "://lake:wrong@")
        service = Continuous(Pipeline(spark, lake, wrong), 0.1)
        with pytest.raises(Unauthenticated):
            service.run(threading.Event(), lambda _: None, pytest.fail)
        with pytest.raises(Unauthenticated), plain_errors():
            spark.read.format("nexo").options(url=wrong, stream="log").load().count()
    finally:
        server.close()
