"""Batches that unpack to a thousand times their size, or hold no records (SPEC L3, L5).

No consumer stops at one, and nobody else waits for it.
"""

from __future__ import annotations

import gzip
import logging
import sys

import cramjam
import lz4.frame
import pytest
import zstandard
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from hypothesis import given
from hypothesis import strategies as st

from nexo import limits
from nexo.batch import kafka_check
from nexo.batch.kafka import parse_kafka
from nexo.batch.kafka_check import check_records
from nexo.dialects.kafka.format.apis import ApiKey
from nexo.dialects.kafka.format.codec import KafkaMessage
from nexo.dialects.kafka.format.encodings import Encodings
from nexo.dialects.kafka.format.errors import Error
from nexo.errors import Corrupt, InvalidInput, PayloadTooLarge
from nexo.protocol.ops import Op
from nexo.protocol.stream_publishing import publish_head
from nexo.storage.header import Flags, parse, seal
from tests.kafka.batches import batch, errors, produced, with_records
from tests.kafka.session import Door, Line
from tests.unit.brokers.stream.desk import Desk

TOPIC = "garbage"
HEAD = 61
PACKERS = {
    0: bytes,
    1: lambda raw: gzip.compress(raw, 1),
    2: lambda raw: bytes(cramjam.snappy.compress_raw(raw)),
    3: lz4.frame.compress,
    4: zstandard.ZstdCompressor().compress,
}


def fetched(line: Line) -> bytes:
    """All that a Kafka client gets of the topic."""
    row = {"partition": 0, "offset": 0, "max_bytes": 1 << 20, "leader_epoch": -1, "log_start": 0}
    ask: KafkaMessage = {
        "replica_id": -1, "max_wait_ms": 0, "min_bytes": 0, "max_bytes": 1 << 20, "isolation": 0,
        "session_id": 0, "session_epoch": -1, "rack": "", "forgotten": [],
        "topics": [{"name": TOPIC, "partitions": [row]}],
    }  # fmt: skip
    return bytes(line.ask(ApiKey.FETCH, 11, ask)["topics"][0]["partitions"][0]["records"] or b"")


@pytest.fixture
def desk() -> Desk:
    desk = Desk()
    desk.client().make(TOPIC)
    return desk


def refusal(desk: Desk, sent: bytes) -> int:
    """The error that a batch is answered with; nothing may be stored then."""
    error = errors(Line(desk).ask(ApiKey.PRODUCE, 8, produced(TOPIC, sent)))[0]
    assert bool(error) == (desk.client().describe(TOPIC).partitions[0].next_offset == 0)
    return error


SOUND = batch(b"a" * 300, None, b"", b"c", key=b"k")[HEAD:]


@pytest.mark.parametrize("kind", PACKERS)
@pytest.mark.parametrize(
    "records",
    [
        b"",
        bytes(40),
        b"\xff" * 40,
        SOUND[:-1],
        SOUND + b"\0",
        SOUND[1:],
        SOUND.replace(b"\x02k", b"\x7ek"),  # a key that leaves its record
        SOUND[:-1] + b"\x02",  # a header that is not there
        b"\x0e\0\0\x02\x01\x01\0\0" * 4,
    ],
)
def test_a_batch_of_garbage_is_refused(desk: Desk, kind: int, records: bytes) -> None:
    sent = with_records(PACKERS[kind](records), 4, kind)
    assert refusal(desk, sent) == Error.INVALID_RECORD


@pytest.mark.parametrize("kind", PACKERS)
def test_a_sound_batch_is_stored(desk: Desk, kind: int) -> None:
    sent = with_records(PACKERS[kind](SOUND), 4, kind)
    assert refusal(desk, sent) == 0
    assert fetched(Line(desk))[21:] == sent[21:]


@pytest.mark.parametrize("kind", [1, 2, 3, 4])
def test_what_is_not_packed_as_it_says_is_refused(desk: Desk, kind: int) -> None:
    assert refusal(desk, with_records(b"not packed at all", 4, kind)) == Error.INVALID_RECORD


def test_a_batch_that_was_damaged_on_its_way_may_be_sent_again(desk: Desk) -> None:
    sent = bytearray(with_records(SOUND, 4))
    sent[-1] ^= 1
    assert refusal(desk, bytes(sent)) == Error.CORRUPT_MESSAGE


@pytest.mark.parametrize("kind", [1, 2, 3, 4])
def test_what_unpacks_to_too_much_is_refused(desk: Desk, kind: int) -> None:
    bomb = PACKERS[kind](batch(bytes(limits.KAFKA_UNPACKED_BYTES + 1))[HEAD:])
    assert refusal(desk, with_records(bomb, 1, kind)) == Error.MESSAGE_TOO_LARGE


def test_a_compression_that_is_not_installed_is_told_to_both_sides(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    line = Line(desk)
    with caplog.at_level(logging.WARNING, "nexo.stream"):
        for _ in range(2):
            sent = produced(TOPIC, with_records(PACKERS[4](SOUND), 4, 4))
            (row,) = line.ask(ApiKey.PRODUCE, 8, sent)["topics"][0]["partitions"]
            assert row["error"] == Error.UNSUPPORTED_COMPRESSION
            assert "nexo-broker[compress]" in row["message"]
    (record,) = caplog.records
    assert "nexo-broker[compress]" in record.message


def test_a_batch_of_too_many_records_is_refused(desk: Desk) -> None:
    sent = with_records(b"", limits.KAFKA_BATCH_RECORDS + 1)
    assert refusal(desk, sent) == Error.MESSAGE_TOO_LARGE


def test_others_are_served_while_a_bomb_is_unpacked(desk: Desk) -> None:
    """One large record is unpacked in many turns; a request that came later is answered first."""
    door = Door(desk)
    record = batch(bytes(limits.KAFKA_UNPACKED_BYTES - 200))[HEAD:]
    slow, quick = Line(door), Line(door)
    slow.send_only(ApiKey.PRODUCE, 8, produced(TOPIC, with_records(PACKERS[4](record), 1, 4)))
    slow.send_only(ApiKey.PRODUCE, 8, produced(TOPIC, batch(b"next")))
    assert not slow.answers()
    quick.send_only(ApiKey.API_VERSIONS, 0, {})
    assert quick.answers()
    desk.runtime.end_turn()
    assert [errors(slow.answers()[number]) for number in (0, 1)] == [[0], [0]]
    ends = [
        row["base_offset"] for n in (0, 1) for row in slow.answers()[n]["topics"][0]["partitions"]
    ]
    assert ends == [0, 1]


def test_a_compacted_topic_takes_no_record_without_a_key() -> None:
    desk = Desk()
    desk.client().make(TOPIC, cleanup="compact")
    assert refusal(desk, batch(b"v")) == Error.INVALID_RECORD
    assert refusal(desk, batch(b"v", key=b"k")) == 0


def stored_by_an_older_version(desk: Desk, sent: bytes) -> None:
    count = parse_kafka(sent).count
    body = [sent, bytes(-len(sent) % 8)]
    head = seal(body, count=count, first_ms=1_000, last_ms=1_000, flags=int(Flags.KAFKA))
    stream = desk.service.core.engine.streams.get(TOPIC)
    stream.partition(0).log.append(head, body)
    stream.partition(0).synced(stream.partition(0).next_offset)


def test_garbage_that_is_stored_is_skipped_with_a_report(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    stored_by_an_older_version(desk, with_records(bytes(100), 3))
    stored_by_an_older_version(desk, with_records(SOUND, 4))
    line = Line(desk)
    with caplog.at_level(logging.WARNING, "nexo.stream"):
        data = fetched(line)
        assert fetched(line) == data
    skipped, kept = parse_kafka(data), parse_kafka(data[parse_kafka(data).size :])
    assert (skipped.base_offset, skipped.last_delta, skipped.attributes & 0x20) == (0, 2, 0x20)
    assert (kept.base_offset, kept.count) == (3, 4)
    assert [r.message for r in caplog.records] == [
        "Kafka clients skip the batch at offset 0: the records of a Kafka batch are malformed"
    ]


def test_what_was_checked_is_not_checked_again(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    assert refusal(desk, batch(b"v")) == 0
    monkeypatch.setattr(Encodings, "_is_sound", None)
    assert fetched(Line(desk))


def test_our_own_protocol_takes_no_batch_of_kafkas(desk: Desk) -> None:
    assert refusal(desk, batch(b"v")) == 0
    (_, entry), *_ = (
        desk.service.core.engine.streams.get(TOPIC).partition(0).read(0, 1_000, as_stored=True)
    )
    assert parse(entry).flags & Flags.KAFKA
    with pytest.raises(InvalidInput, match="through Kafka's protocol"):
        desk.client().ask(Op.S_PUBLISH, publish_head(TOPIC, 0) + bytes(entry))


# -- the check itself ----------------------------------------------------------------------

ROW = st.tuples(
    st.none() | st.binary(max_size=3), st.none() | st.binary(max_size=200) | st.just(b"same"),
    st.integers(0, 3),
)  # fmt: skip


def outcome(records: bytes, count: int) -> str:
    head = parse_kafka(with_records(records, count))
    try:
        for _ in check_records(head, with_records(records, count), 1 << 20):
            pass
    except (Corrupt, PayloadTooLarge) as error:
        return error.message
    return "sound"


@given(
    st.lists(ROW, min_size=1, max_size=30), st.integers(1, 400), st.integers(0, 60),
    st.none() | st.tuples(st.integers(0, 5_000), st.integers(0, 255)), st.integers(1, 50),
)  # fmt: skip
def test_the_quick_check_of_records_that_are_alike_finds_what_the_slow_one_finds(
    rows: list[tuple[bytes | None, bytes | None, int]],
    repeated: int,
    piece: int,
    damage: tuple[int, int] | None,
    few: int,
) -> None:
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 30)
    many = [*rows, *rows[-1:] * repeated, *rows]
    for number, (key, value, headers) in enumerate(many):
        builder.append(number, 1_000 + number // 50, key, value, [("h", b"x")] * headers)
    records = bytearray(builder.build()[HEAD:])
    if damage is not None:
        records[damage[0] % len(records)] = damage[1]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(kafka_check, "_FEW", 1 << 30)
        slow = outcome(bytes(records), len(many))
        patched.setattr(kafka_check, "_FEW", few)
        patched.setattr(kafka_check, "PIECE_BYTES", piece * 100 + 1)
        assert outcome(bytes(records), len(many)) == slow
    if damage is None:
        assert slow == "sound"


@pytest.mark.parametrize("count", [63, 64, 65, 8_191, 8_192, 8_193, 20_000])
def test_numbers_of_every_length_are_checked(count: int) -> None:
    records = bytearray(batch(*[b"v"] * count)[HEAD:])
    assert outcome(bytes(records), count) == "sound"
    records[-5 if count <= 64 else -6] ^= 2  # in the number of the last record
    assert outcome(bytes(records), count) != "sound"
