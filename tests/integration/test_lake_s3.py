"""A lake on S3's API: taken, asked in SQL, replayed and maintained (SPEC I2, I3, I10)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("duckdb")
pytest.importorskip("pyiceberg")

from click.testing import CliRunner

import nexo
from nexo import cli, testing
from nexo.config.keywords import ServerSettings
from nexo.lake.catalog import Lake
from nexo.lake.maintenance.upkeep import Plan, Rounds
from nexo.lake.reading.ranges import file_ranges
from nexo.lake.settings import LakeSettings
from tests.s3_server import S3Server

from .tiering import take

CATALOG = "store"
ROUNDS, RECORDS = 9, 20
"""Enough small files to be merged."""


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    server = S3Server()
    yield server
    server.close()


@dataclass(frozen=True)
class Filled:
    """A server whose stream ``log`` is in a bucket, but for its last record."""

    url: str
    lake: Lake
    log: nexo.types.Stream[Any]
    values: list[object]

    def command(self, *arguments: str) -> list[dict[str, object]]:
        """What a command prints; it asks the server for its lake."""
        done = CliRunner().invoke(cli.main, [*arguments, "--json", "--url", self.url])
        assert done.exit_code == 0, done.output
        return [json.loads(line) for line in done.stdout.splitlines()]

    def check(self) -> None:
        """Readers and SQL see every record once."""
        found: list[object] = []
        while records := self.log.read(0, len(found)):
            found += [record.value for record in records]
        assert found == self.values
        query = "select count(*) as n, count(distinct offset) as d, max(offset) as last from log"
        count = len(self.values)
        assert self.command("sql", query) == [{"n": count, "d": count, "last": count - 1}]


@pytest.fixture
def filled(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Filled]:
    s3.configure_lake(monkeypatch, CATALOG, tmp_path / "catalog.db")
    options: ServerSettings = {
        "hot_ms": 0,
        "hot_messages": 0,
        "segment_bytes": 4096,
        "lake_catalog": CATALOG,
    }
    lake = Lake(LakeSettings(tmp_path / "nexo" / "lake", CATALOG))
    with testing.server(data_dir=tmp_path / "nexo", **options) as url, nexo.connect(url) as client:
        log = client.stream("log").create(tiering=True, retention={"max_bytes": 1})
        values: list[object] = [{"n": n, "pad": "x" * 80} for n in range(ROUNDS * RECORDS)]
        for first in range(0, len(values), RECORDS):
            log.publish_many(values[first : first + RECORDS])
            take(url, lake, "log")
        log.apply_retention()
        values.append({"n": len(values)})
        log.publish(values[-1])
        yield Filled(url, lake, log, values)


def test_a_lake_in_a_bucket_is_replayed_asked_and_maintained(filled: Filled) -> None:
    (part,) = filled.log.info().partitions
    assert (part.start_offset, part.hot_offset) == (0, ROUNDS * RECORDS)
    filled.check()
    (status,) = filled.command("pipeline", "status")
    assert (status["lake_offset"], status["behind"]) == (ROUNDS * RECORDS, 1)
    paths = {each.path for each in file_ranges(filled.lake.get("log"))}
    assert len(paths) == ROUNDS
    assert all(path.startswith("s3://") for path in paths)

    (done,) = filled.command("pipeline", "maintain", "--grace", "0s", "--snapshots", "1")
    assert (done["merged_files"], done["merged_into"], done["waiting_files"]) == (ROUNDS, 1, 0)
    assert int(str(done["deleted_files"])) > ROUNDS
    table = filled.lake.get("log")
    (merged,) = (each.file for each in file_ranges(table))
    for path in (*paths, str(merged.file_path)):
        assert table.io.new_input(path).exists() == (path == merged.file_path)
    filled.check()


def test_the_maintenance_process_finds_a_catalog_by_its_name(filled: Filled) -> None:
    said: list[dict[str, object]] = []
    waits = iter([False, True])
    where = filled.lake.settings
    plan = Plan(str(where.folder), where.catalog, where.namespace, every_s=0)
    Rounds(plan, lambda _: next(waits), said.append).run()
    assert len(file_ranges(filled.lake.get("log"))) == 1, said
    filled.check()
