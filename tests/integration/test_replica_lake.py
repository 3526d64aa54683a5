"""The lake after a takeover: each record once, with its files in an object store (SPEC I4, N5)."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias
from uuid import uuid4

import pytest

pytest.importorskip("pyiceberg")

from pyiceberg.catalog.sql import SqlCatalog

from nexo import Client
from nexo.lake.catalog import Lake
from nexo.lake.folder.catalog import close_with
from nexo.lake.settings import LakeSettings
from nexo.testing import Process
from tests.integration.tiering import take
from tests.replicas import leads, ready
from tests.s3_server import S3Server
from tests.timing import wait_until

NAME = "store"


class Machine:
    """A server and the catalog of its lake; the files of the lake are in a bucket."""

    def __init__(
        self, folder: Path, s3: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.catalog = folder / "catalog.db"
        self.facts = {
            "type": "sql", "uri": f"sqlite:///{self.catalog}", "warehouse": f"s3://{bucket}/lake",
            "s3.endpoint": s3.url(), "s3.region": "us-east-1", "s3.access-key-id": "test",
            "s3.secret-access-key": "test",
        }  # fmt: skip
        self.server = Process(
            folder, replicate=f"s3://{bucket}/nexo", replicate_lease_ms=1_500, replicate_ms=50,
            dashboard=False, lake_catalog=NAME,
        )  # fmt: skip
        for name, value in self.facts.items():
            key = name.upper().replace(".", "__").replace("-", "_")
            monkeypatch.setenv(f"PYICEBERG_CATALOG__{NAME.upper()}__{key}", value)
        self.server.start()

    def lake(self) -> Lake:
        """The lake as this machine sees it."""
        lake = Lake(LakeSettings(self.server.data_dir / "lake", NAME))
        catalog = SqlCatalog(NAME, **self.facts)
        close_with(catalog)
        lake.__dict__["catalog"] = catalog
        return lake


Take: TypeAlias = Callable[[str, Lake], object]
"""Takes what is new in the stream ``log`` of the server at a URL into a lake."""


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    server = S3Server()
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    yield server
    server.close()


def test_the_lake_goes_on_after_a_takeover_with_each_record_once(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_between(lambda url, lake: take(url, lake, "log"), s3, tmp_path, monkeypatch)


def lose_between(
    taken: Take, s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Take some, lose the leader with its catalog, take the rest at the standby, and count."""
    bucket = f"lake-{uuid4().hex[:8]}"
    s3.make_bucket(bucket)
    machines: list[Machine] = []
    try:
        machines.append(first := Machine(tmp_path / "first", s3, bucket, monkeypatch))
        with Client(f"{first.server.url}?timeout=60") as client:
            log = client.stream("log").create(persistence="replicated", tiering=True, partitions=2)
            _publish(log, 100)
            taken(first.server.url, first.lake())
            lease = ready(first.server)["replica"]["lease_number"]
            machines.append(second := Machine(tmp_path / "second", s3, bucket, monkeypatch))
            wait_until(lambda: bool(ready(first.server)["replica"]["standbys"]), 60)
            wait_until(lambda: ready(first.server)["replica"]["lease_number"] > lease + 2, 60)
            _publish(log, 50)
            # The catalog that names these rows may not be shipped in time.
            taken(first.server.url, first.lake())
            _publish(log, 20)
        first.server.kill()
        shutil.rmtree(first.server.data_dir)
        wait_until(lambda: leads(second.server), 60)
        with Client(f"{second.server.url}?timeout=60") as client:
            log = client.stream("log")
            _publish(log, 30)
            taken(second.server.url, second.lake())
            taken(second.server.url, second.lake())
            ends = [part.next_offset for part in log.info().partitions]
            published = [(p, r.offset) for p in (0, 1) for r in _all(log, p)]
        rows = second.lake().get("log").scan(selected_fields=("partition", "offset")).to_arrow()
        found = sorted((row["partition"], row["offset"]) for row in rows.to_pylist())
    finally:
        for machine in machines:
            machine.server.close()
    print(  # noqa: T201
        f"after a takeover: {len(published)} records, {len(found)} rows, {len(set(found))} distinct"
    )
    assert len(published) == 200
    assert found == sorted(published)
    assert sum(ends) >= 200


def _publish(log: Any, count: int) -> None:
    log.publish_many([uuid4().hex for _ in range(count)], keys=[str(n) for n in range(count)])


def _all(log: Any, partition: int) -> Iterator[Any]:
    offset = 0
    while records := log.read(partition, offset):
        yield from records
        offset = records[-1].offset + 1
