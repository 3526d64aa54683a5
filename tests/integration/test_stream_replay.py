"""Consumers of a stream go through lake and log alike, over TCP (SPEC F1, I3)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("pyiceberg")

import nexo
from nexo import batch as batches
from nexo import testing
from nexo.config.keywords import ServerSettings
from nexo.lake.catalog import Lake
from nexo.lake.files import FileWriter, target
from nexo.lake.names import file_label
from nexo.lake.once import WrittenRange, commit
from nexo.lake.own_columns import ROWS
from nexo.lake.rows import rows
from nexo.lake.settings import LakeSettings
from nexo.lake.tables import StreamId
from nexo.model import Broker
from nexo.protocol import stream as wire
from nexo.protocol.ops import Op
from nexo.storage.header import stamp

# ruff: noqa: T201 - the figures are to be seen

RECORDS, HOT = 2_000, 200


def fill(folder: Path, created_ms: int, count: int) -> None:
    """Write the first records of stream ``log`` to the lake, as the pipeline would: 4 files."""
    table = Lake(LakeSettings(folder)).ensure(StreamId("log", created_ms), ROWS)
    share = count // 4
    for first in range(0, count, share):
        values = [b"%d" % offset for offset in range(first, first + share)]
        head, body = batches.encode(values, 1, 1_000 + first)
        stamp(head, first)
        batch = batches.decode(bytes(head) + b"".join(body))
        writer = FileWriter(target(table), file_label(0, first, first + share))
        writer.write([rows(batch, 0, first, first + share)])
        table = commit(table, [WrittenRange(0, first or None, first + share, writer.close())])


@pytest.fixture
def cooled(tmp_path: Path) -> Iterator[nexo.Client]:
    """A client of a server whose stream ``log`` has nine tenths of its records in the lake only."""
    folder = tmp_path / "nexo"
    settings: ServerSettings = {"segment_bytes": 4096, "hot_ms": 0, "hot_messages": 0}
    with testing.server(data_dir=folder, **settings) as url, nexo.connect(url) as client:
        log = client.stream("log").create(tiering=True, retention={"max_bytes": 1})
        log.publish_many([str(n) for n in range(RECORDS - HOT)])
        fill(folder / "lake", log.info().created_ms, RECORDS - HOT)
        taken = wire.TieredTo(stream="log", partition=0, offset=RECORDS - HOT)
        client.link(Broker.STREAM).call(Op.S_TIERED, wire.pack(taken))
        log.apply_retention()
        log.publish_many([str(n) for n in range(RECORDS - HOT, RECORDS)])
        (part,) = log.info().partitions
        assert (part.start_offset, part.hot_offset) == (0, RECORDS - HOT)
        yield client


def test_a_new_group_reads_every_record_once_and_in_order(cooled: nexo.Client) -> None:
    found: list[int] = []
    began = time.perf_counter()
    first_s = 0.0
    with cooled.stream("log").consume("g", batch=100) as consumer:
        for record in consumer:
            first_s = first_s or time.perf_counter() - began
            assert record.value == str(record.offset)
            assert record.attempt == 1
            found.append(record.offset)
            record.ack()
            if len(found) == RECORDS:
                break
    took_s = time.perf_counter() - began
    assert found == list(range(RECORDS))
    assert cooled.stream("log").group("g").lag() == 0
    rate = RECORDS / took_s
    print(f"first record from the lake after {1000 * first_s:.0f} ms, {rate:.0f} records/s")


def test_failed_records_of_the_lake_are_parked_shown_and_replayed(cooled: nexo.Client) -> None:
    log = cooled.stream("log")
    with log.consume("g", start=700, batch=10, max_deliveries=2) as consumer:
        for attempt in (1, 2):
            records = list(consumer.fetch())
            assert [record.offset for record in records][:1] == [700]
            assert records[0].attempt == attempt
            records[0].nack(reason="bad")
            for record in records[1:]:
                record.ack()
        (parked,) = log.group("g").parked.peek()
        assert (parked.offset, parked.value, parked.reason) == (700, "700", "bad")


def test_a_group_can_go_back_into_the_lake(cooled: nexo.Client) -> None:  # SPEC F4
    log = cooled.stream("log")
    with log.consume("g", start="end") as consumer:
        log.seek("g", 1_234)
        assert next(iter(consumer.fetch())).offset == 1_234
