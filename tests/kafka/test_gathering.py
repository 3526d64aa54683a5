"""Single records of Kafka's clients: one batch per partition and turn (SPEC L3)."""

from __future__ import annotations

import errno
from typing import TypeAlias

import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from hypothesis import given
from hypothesis import strategies as st

from nexo.batch import decode, verify
from nexo.batch.kafka import HEAD_SIZE, parse_kafka
from nexo.batch.kafka_join import joined, lone_record
from nexo.dialects.kafka.format.apis import ApiKey
from nexo.dialects.kafka.format.errors import Error
from tests.faulty_files import FaultyFiles
from tests.kafka.batches import batch, errors, produced, with_records
from tests.kafka.session import Door, Line
from tests.unit.brokers.stream.desk import Desk

TOPIC = "s"
Row: TypeAlias = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]

ROWS: list[Row] = [
    (5_000, b"k", b"v", [("a", b"1"), ("a", None), ("b", b"\xff")]),
    (1_000, None, None, []),
    (9_000, b"", b"", [("", b"")]),
    (9_000, b"x" * 300, b"y" * 70_000, []),
]


def single(row: Row, producer_id: int = -1, compression: int = 0) -> bytes:
    """A batch of one record, as clients make it."""
    builder = DefaultRecordBatchBuilder(2, compression, 0, producer_id, 0, 0, 1 << 30)
    if producer_id < 0:
        builder = DefaultRecordBatchBuilder(2, compression, 0, -1, -1, -1, 1 << 30)
    builder.append(0, *row)
    return bytes(builder.build())


def rows_in(data: bytes) -> list[Row]:
    """The records of a batch, as a client reads them."""
    found = DefaultRecordBatch(data)
    assert found.validate_crc()
    rows = list(found)
    assert [row.offset for row in rows] == [*range(len(rows))]
    return [(row.timestamp, row.key, row.value, list(row.headers)) for row in rows]


def together(rows: list[Row]) -> bytes:
    batches = [single(row) for row in rows]
    records = [lone_record(parse_kafka(each), each) for each in batches]
    head, body = joined([record for record in records if record is not None])
    found = b"".join(body)
    assert verify(bytes(head) + found).is_kafka
    return found[: parse_kafka(found).size]


def test_what_records_are_survives_joining() -> None:
    assert rows_in(together(ROWS)) == ROWS


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2**62), st.none() | st.binary(max_size=200),
            st.none() | st.binary(max_size=200),
            st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3),
        ),
        min_size=1, max_size=70,
    )
)  # fmt: skip
def test_any_records_survive_joining(rows: list[Row]) -> None:
    assert rows_in(together(rows)) == rows


@pytest.mark.parametrize(
    "alone",
    [
        batch(b"a", b"b"),
        single(ROWS[0], producer_id=7),
        single(ROWS[0], compression=1),
        single((-1, b"k", b"v", [])),
        single(ROWS[0])[:-1] + b"!",
        single(ROWS[0]) + b"!",
        with_records(single(ROWS[0])[HEAD_SIZE:], 1, last_delta=3),
    ],
    ids=["two", "idempotent", "compressed", "without a time", "damaged", "longer", "with a gap"],
)
def test_other_batches_stay_as_they_came(alone: bytes) -> None:
    assert lone_record(parse_kafka(alone), alone) is None


class Clients:
    """Connections whose requests come in one turn of the loop."""

    def __init__(self, count: int, desk: Desk) -> None:
        self.desk = desk
        door = Door(desk)
        self.lines = [Line(door) for _ in range(count)]

    def produce(self, line: int, *batches: bytes, acks: int = -1) -> None:
        message = produced(TOPIC, *batches, acks=acks)
        self.lines[line].send_only(ApiKey.PRODUCE, 8, message)

    def offsets(self) -> list[list[int]]:
        """Of each connection, those of the first partition of its answers."""
        self.desk.runtime.end_turn()
        answers = [line.answers().values() for line in self.lines]
        parts = [[found["topics"][0]["partitions"][0] for found in each] for each in answers]
        assert not [part for each in parts for part in each if part["error"]]
        return [[part["base_offset"] for part in each] for each in parts]

    def sizes(self) -> list[int]:
        """How many records each entry of the log has."""
        log = self.desk.service.core.engine.streams.get(TOPIC).partition(0).log
        return [len(decode(entry)) for entry in log.entries()]


@pytest.fixture
def clients() -> Clients:
    desk = Desk()
    desk.client().make(TOPIC, partitions=2)
    return Clients(3, desk)


def test_records_of_all_connections_are_one_batch_in_the_order_they_came(clients: Clients) -> None:
    for line in (0, 1, 0, 2):
        clients.produce(line, single(ROWS[line]))
    assert clients.sizes() == []
    assert clients.offsets() == [[0, 2], [1], [3]]
    assert clients.sizes() == [4]
    found = [(row.timestamp_ms, row.key, row.value) for row in clients.desk.client().rows(TOPIC, 0)]
    assert found[0] == (5_000, b"k", ROWS[0][2])
    assert [row[1:] for row in found[1:]] == [ROWS[number][1:3] for number in (1, 0, 2)]


def test_a_lone_record_is_stored_as_it_came(clients: Clients) -> None:
    sent = single(ROWS[0])
    clients.produce(0, sent)
    assert clients.offsets()[0] == [0]
    log = clients.desk.service.core.engine.streams.get(TOPIC).partition(0).log
    [entry] = log.entries()
    assert sent in bytes(entry)


def test_what_a_connection_sends_next_comes_after_its_record(clients: Clients) -> None:
    clients.produce(0, single(ROWS[0]))
    clients.produce(0, batch(b"two", b"three"))
    clients.produce(0, single(ROWS[1]))
    rows = [{"index": 0, "timestamp": -1, "max_count": 1, "leader_epoch": -1}]
    asked = {
        "replica": -1, "isolation": 0, "topics": [{"name": TOPIC, "partitions": rows}],
    }  # fmt: skip
    clients.lines[0].send_only(ApiKey.LIST_OFFSETS, 1, asked)
    clients.desk.runtime.end_turn()
    *stored, listed = clients.lines[0].answers().values()
    offsets = [each["topics"][0]["partitions"][0]["base_offset"] for each in stored]
    assert offsets == [0, 1, 3]
    assert listed["topics"][0]["partitions"][0]["offset"] == 4
    assert clients.sizes() == [1, 2, 1]


def test_a_damaged_record_is_refused_alone(clients: Clients) -> None:
    clients.produce(0, single(ROWS[0]))
    broken = bytearray(single(ROWS[0]))
    broken[70] ^= 1
    clients.produce(1, bytes(broken))
    clients.produce(2, single(ROWS[0]))
    clients.desk.runtime.end_turn()
    found = [errors(line.answers()[0]) for line in clients.lines]
    assert found == [[0], [Error.CORRUPT_MESSAGE], [0]]
    assert sum(clients.sizes()) == 2


def test_a_record_over_the_streams_limit_is_refused_alone() -> None:
    desk = Desk()
    desk.client().make(TOPIC, max_message_bytes=300)
    clients = Clients(3, desk)
    for line, size in ((0, 100), (1, 400), (2, 100), (0, 20)):
        clients.produce(line, single((1_000, None, bytes(size), [])))
    desk.runtime.end_turn()
    found = [[errors(each) for each in line.answers().values()] for line in clients.lines]
    assert found == [[[0], [0]], [[Error.MESSAGE_TOO_LARGE]], [[0]]]
    assert clients.sizes() == [1, 2]


def test_each_partition_has_its_batch(clients: Clients) -> None:
    for line in (0, 1, 2):
        clients.produce(line, single(ROWS[0]), single(ROWS[2]))
    assert clients.offsets() == [[0], [1], [2]]
    assert clients.sizes() == [3]


def test_a_client_that_wants_no_answer_gets_none(clients: Clients) -> None:
    clients.produce(0, single(ROWS[0]), acks=0)
    clients.produce(1, single(ROWS[0]))
    clients.desk.runtime.end_turn()
    assert clients.lines[0].answers() == {}
    assert clients.sizes() == [2]


def test_a_disk_that_refuses_the_batch_is_reported_to_each() -> None:
    files = FaultyFiles()
    desk = Desk(files)
    desk.client().make(TOPIC)
    clients = Clients(2, desk)
    clients.produce(0, single(ROWS[0]))
    desk.runtime.end_turn()
    clients.produce(0, single(ROWS[0]))
    clients.produce(1, single(ROWS[0]))
    files.fail_call, files.fail_errno = files.calls + 1, errno.ENOSPC
    desk.runtime.end_turn()
    answers = [clients.lines[0].answers()[1], clients.lines[1].answers()[0]]
    assert [errors(each) for each in answers] == [[Error.STORAGE_ERROR]] * 2
    clients.produce(1, single(ROWS[0]))
    desk.runtime.end_turn()
    assert clients.sizes() == [1, 1]
