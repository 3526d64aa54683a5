"""A stream deleted and created again at any moment neither loses nor mixes records (SPEC I9)."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any

import pytest

import nexo
from nexo.errors import NexoError
from nexo.lake.catalog import Lake
from nexo.lake.plan import BatchLimits
from nexo.lake.settings import LakeSettings
from pyspark_nexo.pipeline import Pipeline

OLD, NEW, MORE = [b"old"] * 300, [b"new"] * 400, [b"more"] * 500
POINTS = ["before the file", "after the file", "before the commit", "after the commit", "reported"]


class Recreate:
    """Deletes and creates the stream once, at a point, in whatever process that is reached."""

    def __init__(self, point: str, url: str, done: Path) -> None:
        self.point, self.url, self.done = point, url, done

    def __call__(self, point: str) -> None:
        if point != self.point or self.done.exists():
            return
        self.done.touch()
        with nexo.connect(self.url) as client:
            recreate(client, NEW)


def recreate(client: nexo.Client, values: list[bytes]) -> None:
    log = client.stream("log")
    log.delete()
    log.create(tiering=True, retention={"max_bytes": 1})
    log.publish_many(values)


def in_the_lake(lake: Lake) -> dict[str, list[bytes]]:
    found = {}
    for table in lake.tables():
        rows = table.scan().to_arrow().sort_by("offset")
        found[table.name()[-1]] = rows.column("value").to_pylist()
    return found


def check(lake: Lake, client: nexo.Client) -> None:
    """Everything acknowledged is in the table or in the log, and no table mixes two streams."""
    tables = in_the_lake(lake)
    part = client.stream("log").info().partitions[0]
    hot = [record.value for record in client.stream("log").read()] if part.hot_offset == 0 else []
    held = tables["log"] if len(tables["log"]) >= len(hot) else hot
    assert held == NEW + MORE
    for values in tables.values():
        assert not (b"old" in values and b"new" in values)
    rows = lake.get("log").scan(selected_fields=("offset",)).to_arrow().column("offset")
    assert len(set(rows.to_pylist())) == len(rows)


@pytest.mark.parametrize("point", POINTS)
def test_a_stream_recreated_at_a_point_keeps_all_its_records(
    pipeline: Pipeline, lake: Lake, client: nexo.Client, url: str, tmp_path: Path, point: str
) -> None:
    client.stream("log").create(tiering=True).publish_many(OLD)
    pipeline.limits = BatchLimits(task_rows=100)
    pipeline.probe = Recreate(point, url, tmp_path / "recreated")
    with suppress(NexoError):
        pipeline.run_batch(["log"])
    client.stream("log").publish_many(MORE)
    client.stream("log").apply_retention()
    pipeline.probe = lambda _: None
    pipeline.run_once()
    client.stream("log").apply_retention()
    check(lake, client)


def test_with_two_pipelines_only_a_recreated_stream_starts_again(
    pipeline: Pipeline, lake: Lake, client: nexo.Client, url: str
) -> None:
    """P3: the slower pipeline finds another table under the name and goes on with that."""
    client.stream("log").create(tiering=True).publish_many(OLD)
    client.stream("fine").create(tiering=True).publish_many(NEW)
    other = Pipeline(pipeline.spark, Lake(LakeSettings(lake.settings.folder)), url)

    def overtake(point: str) -> None:
        if point == "before the commit" and client.stream("log").info().created_ms == created:
            recreate(client, NEW)
            other.run_batch(["log"])

    created = client.stream("log").info().created_ms
    pipeline.probe = Driver(overtake)
    pipeline.run_batch(["log", "fine"])
    client.stream("log").publish_many(MORE)
    pipeline.probe = lambda _: None
    pipeline.run_batch(["log", "fine"])
    assert pipeline.refused == {}
    tables = in_the_lake(lake)
    assert (tables["log"], tables["fine"]) == (NEW + MORE, NEW)


class Driver:
    """A probe that is only called in the driver: it does not travel.

    Tables are committed by several threads at once; it is called by one after another.
    """

    def __init__(self, call: object) -> None:
        self.call = call
        self._turn = Lock()

    def __call__(self, point: str) -> None:
        with self._turn:
            if self.call is not None:
                self.call(point)  # type: ignore[operator]

    def __reduce__(self) -> tuple[type[Driver], tuple[None]]:
        return Driver, (None,)


@pytest.mark.parametrize("known", [False, True])
def test_a_pipeline_that_is_overtaken_raises_no_false_alarm(
    pipeline: Pipeline,
    lake: Lake,
    client: nexo.Client,
    url: str,
    monkeypatch: pytest.MonkeyPatch,
    known: bool,
) -> None:
    """P4: the broker was asked before the table was read, so the table seemed to be ahead.

    Another pipeline commits while the table is read, or after it was found to be ``known``.
    """
    log = client.stream("log").create(tiering=True)
    log.publish_many(OLD)
    pipeline.run_once()
    other = Pipeline(pipeline.spark, Lake(LakeSettings(lake.settings.folder)), url)
    find, unchanged, overtaken = Lake.find, Lake.unchanged, list[bool]()

    def overtake(self: Lake) -> None:
        if self is lake and not overtaken:
            overtaken.append(True)
            log.publish_many(MORE)
            other.run_batch(["log"])

    def find_late(self: Lake, stream: str, suffix: str = "") -> object:
        overtake(self)
        return find(self, stream, suffix)

    def unchanged_before(self: Lake, tables: Any) -> set[str]:
        found = unchanged(self, tables) if known else set[str]()
        if known:
            overtake(self)
        return found

    monkeypatch.setattr(Lake, "find", find_late)
    monkeypatch.setattr(Lake, "unchanged", unchanged_before)
    log.publish(b"x")
    pipeline.run_batch(["log"])
    assert overtaken
    assert pipeline.refused == {}
    assert lake.get("log").scan().count() == len(OLD) + len(MORE) + 1
