"""Streams themselves: creating, publishing, offsets, limits, recovery."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from nexo.batch import BatchProducer
from nexo.batch.partitions import partition_of
from nexo.errors import (
    AlreadyExists,
    Corrupt,
    DiskFull,
    Fenced,
    InvalidInput,
    InvalidName,
    InvalidOption,
    NotFound,
    OffsetOutOfRange,
    OutOfOrderSequence,
    Overloaded,
    PartitionsChanged,
    PayloadTooLarge,
    ReadOnly,
)
from nexo.model import Buffer
from nexo.protocol import stream as wire
from nexo.protocol import xstreams
from nexo.protocol.frames import pack_str
from nexo.protocol.ops import Op
from nexo.protocol.stream_publishing import ProducerStart, publish_head
from nexo.storage.log import SegmentedLog
from tests.unit.brokers.stream.desk import Desk, Peer


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_a_stream_is_created_once_and_found_again(desk: Desk) -> None:  # SPEC E1
    peer = desk.client()
    made = peer.make("orders/eu:1", partitions=3)
    assert peer.make("orders/eu:1", partitions=3) == made
    with pytest.raises(AlreadyExists, match="partitions = 3"):
        peer.make("orders/eu:1", partitions=4)
    assert len(desk.crash().client().describe("orders/eu:1").partitions) == 3


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"partitions": 0}, "partitions"),
        ({"partitions": -1}, "partitions"),
        ({"partitions": 1.5}, "partitions"),
        ({"retention": 5}, "retention"),
        ({"cleanup": "burn"}, "cleanup"),
        ({"persistence": "paper"}, "persistence"),
        ({"min_dirty_ratio": 2}, "min_dirty_ratio"),
        ({"retention_ms": -1}, "retention_ms"),
    ],
)
def test_bad_options_are_named_and_nothing_is_created(
    desk: Desk, options: dict[str, object], named: str
) -> None:
    peer = desk.client()
    with pytest.raises(InvalidOption, match=named):
        peer.make("s", **options)
    with pytest.raises(NotFound):
        peer.describe("s")


@pytest.mark.parametrize("name", ["", "..", "/etc", "a/../b", "$cdc", "ä", "x" * 256])
def test_bad_names_are_refused(desk: Desk, name: str) -> None:  # SPEC A11
    with pytest.raises(InvalidName):
        desk.client().make(name)


def test_names_never_share_a_folder(desk: Desk) -> None:  # SPEC A11
    peer = desk.client()
    for name in ("a/b", "a:b", "a.b", ".a", "x/" * 120 + "y", "x/" * 120 + "z"):
        peer.make(name)
        peer.publish(name, name.encode())
    again = desk.crash().client()
    for name in ("a/b", "a:b", "a.b", ".a", "x/" * 120 + "y", "x/" * 120 + "z"):
        assert again.read(name) == [name.encode()]


def test_options_change_while_it_runs_but_partitions_are_never_removed(desk: Desk) -> None:
    peer = desk.client()
    peer.make("s", partitions=2)
    ask = wire.Make(stream="s", options={"retention_ms": 5})
    assert peer.call(Op.S_UPDATE, ask, wire.StreamInfo).options["retention_ms"] == 5
    with pytest.raises(InvalidOption, match="never removed"):
        peer.ask(Op.S_UPDATE, wire.pack(wire.Make(stream="s", options={"partitions": 1})))
    assert desk.crash().client().describe("s").options["retention_ms"] == 5


def test_offsets_are_dense_and_go_on_after_a_restart(desk: Desk) -> None:  # SPEC E2
    peer = desk.client()
    peer.make("s", partitions=2)
    assert peer.publish("s", b"a", b"b") == [(0, 0, 2)]
    assert peer.publish("s", b"c") == [(0, 2, 1)]
    again = desk.crash()
    assert again.client().publish("s", b"d") == [(0, 3, 1)]
    assert again.restart().client().read("s") == [b"a", b"b", b"c", b"d"]


def test_a_deleted_stream_is_gone_and_its_name_is_free(desk: Desk) -> None:
    peer = desk.client()
    peer.make("s")
    peer.publish("s", b"old")
    waiting = peer.send(Op.S_READ, wire.pack(wire.Read("s", 0, 1, 100, 1_000)))
    peer.ask(Op.S_DELETE, pack_str("s"))
    assert isinstance(peer.replies[waiting], NotFound)
    peer.make("s")
    assert peer.publish("s", b"new") == [(0, 0, 1)]
    assert desk.crash().client().read("s") == [b"new"]


def test_a_deletion_is_confirmed_though_the_disk_keeps_some_files(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = desk.client()
    peer.make("s")
    peer.publish("s", b"old")

    def refuse(path: Path) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(desk.runtime.files, "remove", refuse)
        peer.ask(Op.S_DELETE, pack_str("s"))
    with pytest.raises(NotFound):
        desk.crash().client().describe("s")


def test_the_broker_routes_by_key_as_kafka_does_and_the_rest_in_turn(desk: Desk) -> None:
    peer = desk.client()  # SPEC E2
    peer.make("s", partitions=8)
    keys: list[bytes | None] = [b"order_123", b"order_7", b"order_123"]
    placed = peer.publish("s", b"1", b"2", b"3", keys=keys, partition=-1)
    assert {(p, n) for p, _, n in placed} == {(5, 2), (partition_of(b"order_7", 8), 1)}
    assert peer.read("s", partition=5) == [b"1", b"3"]
    turns = [peer.publish("s", b"x", partition=-1)[0][0] for _ in range(8)]
    assert sorted(turns) == list(range(8))


def test_timestamps_never_go_back_nor_far_ahead(desk: Desk) -> None:
    peer = desk.client()
    peer.make("s")
    peer.publish("s", b"a", now_ms=1_000_000)
    peer.publish("s", b"b", now_ms=5)
    peer.publish("s", b"c", now_ms=10**12)
    assert peer.describe("s").partitions[0].last_ms == 1_000_000
    assert peer.read("s") == [b"a", b"b", b"c"]


def test_values_over_the_limit_are_refused(desk: Desk) -> None:  # SPEC E7
    peer = desk.client()
    peer.make("s", max_message_bytes=10)
    peer.publish("s", b"x" * 10, b"y" * 10)
    with pytest.raises(PayloadTooLarge, match="11 bytes"):
        peer.publish("s", b"ok", b"x" * 11)
    assert len(peer.read("s")) == 2


def test_large_values_round_trip(desk: Desk) -> None:  # SPEC E7
    peer = desk.client()
    peer.make("s")
    for size in (100_000, 5_000_000):
        peer.publish("s", b"v" * size)
    assert [len(v or b"") for v in peer.read("s", 1)] == [5_000_000]


def test_damaged_and_forged_batches_are_refused(desk: Desk) -> None:
    peer = desk.client()
    peer.make("s")
    good = bytearray(peer.batch(b"abc"))
    good[70] ^= 1
    with pytest.raises(Corrupt):
        peer.ask(Op.S_PUBLISH, publish_head("s", 0) + bytes(good))
    with pytest.raises(InvalidInput, match="control"):
        peer.publish("s", b"a", flags=0x08)
    with pytest.raises(InvalidInput, match="transactional"):
        peer.publish("s", b"a", flags=0x04)
    assert peer.read("s") == []


def test_unknown_streams_partitions_and_offsets_are_named(desk: Desk) -> None:
    peer = desk.client()
    with pytest.raises(NotFound, match="'s'"):
        peer.publish("s", b"a")
    peer.make("s")
    with pytest.raises(InvalidInput, match="partition 7"):
        peer.publish("s", b"a", partition=7)
    with pytest.raises(OffsetOutOfRange, match=r"partition 0 of stream 's', which takes 0\.\.0"):
        peer.read("s", 5)


def test_a_partition_chosen_by_another_count_is_refused(desk: Desk) -> None:  # SPEC E2
    peer = desk.client()
    peer.make("s", partitions=8)
    assert peer.publish("s", b"a", partition=5, count=8) == [(5, 0, 1)]
    assert peer.publish("s", b"a", partition=5) == [(5, 1, 1)], "senders need not say"
    for op, value in ((Op.S_PUBLISH, peer.batch(b"b")), (Op.S_ADD, b"\x00b")):
        with pytest.raises(PartitionsChanged, match="8 partitions, not 3"):
            peer.ask(op, publish_head("s", 2, 3) + value)
    assert peer.read("s", partition=2) == []


# -- durability


def test_file_sync_replies_and_shows_after_the_sync(desk: Desk) -> None:  # SPEC E3
    peer = desk.client()
    peer.make("s", persistence="file_sync")
    consumer = peer.join("s", "g")
    desk.runtime.slow_disk = True
    poll = consumer.poll()
    publish = peer.send(Op.S_PUBLISH, publish_head("s", 0) + peer.batch(b"a"))
    assert publish not in peer.replies
    assert poll not in peer.replies
    assert peer.read("s") == []
    desk.runtime.sync()
    assert publish in peer.replies
    assert [got.value for got in consumer.opened(peer.replies[poll])] == [b"a"]


def test_nothing_is_acknowledged_after_a_failed_sync(desk: Desk) -> None:
    peer = desk.client()
    peer.make("s", persistence="file_sync")
    desk.runtime.slow_disk = True
    publish = peer.send(Op.S_PUBLISH, publish_head("s", 0) + peer.batch(b"a"))
    desk.runtime.sync(ReadOnly("broken disk"))
    assert isinstance(peer.replies[publish], ReadOnly)
    assert peer.read("s") == []


def test_a_full_disk_refuses_writers_and_serves_consumers(desk: Desk) -> None:  # SPEC I7
    peer = desk.client()
    peer.make("s")
    peer.publish("s", b"a")
    consumer = peer.join("s", "g")
    desk.runtime.refuses = DiskFull("full")
    with pytest.raises(DiskFull):
        peer.publish("s", b"b")
    assert len(consumer.take()) == 1
    assert consumer.settle("ack", 0) == []
    desk.runtime.refuses = None
    assert peer.publish("s", b"b") == [(0, 1, 1)]


def test_producers_are_refused_past_the_high_mark_and_resume_at_the_low(desk: Desk) -> None:
    desk = Desk(stream_unsynced_bytes=1_024)  # SPEC I7
    peer = desk.client()
    peer.make("s", persistence="file_sync")
    desk.runtime.slow_disk = True
    sent = [
        peer.send(Op.S_PUBLISH, publish_head("s", 0) + peer.batch(b"x" * 500)) for _ in range(4)
    ]
    assert isinstance(peer.replies[sent[-1]], Overloaded)
    desk.runtime.sync()
    assert peer.send(Op.S_PUBLISH, publish_head("s", 0) + peer.batch(b"x")) not in peer.replies
    desk.runtime.sync()
    assert len(peer.read("s")) == 3
    assert desk.service.status()["unsynced_bytes"] == 0


def test_file_async_is_slowed_and_then_refused_when_the_disk_falls_behind() -> None:  # SPEC I7
    desk = Desk(stream_unsynced_bytes=4_000)
    peer = desk.client()
    peer.make("s")
    desk.runtime.slow_disk = True
    payload = publish_head("s", 0) + peer.batch(b"x" * 900)
    sent = [peer.send(Op.S_PUBLISH, payload) for _ in range(6)]
    assert all(request in peer.replies for request in sent[:2])
    assert all(request not in peer.replies for request in sent[2:5]), "the disk is waited for"
    assert isinstance(peer.replies[sent[5]], Overloaded)
    desk.runtime.sync()
    assert all(request in peer.replies for request in sent)
    assert peer.publish("s", b"x") == [(0, 5, 1)]
    desk.runtime.sync()
    assert desk.service.status()["unsynced_bytes"] == 0


# -- idempotent producers


def test_a_repeated_batch_is_stored_once_and_gets_its_first_offset(desk: Desk) -> None:  # SPEC G3
    peer = desk.client()
    peer.make("s")
    for sequence, value in ((0, b"a"), (1, b"b"), (0, b"a"), (1, b"b")):
        placed = peer.publish("s", value, producer=BatchProducer(9, 0, sequence))
        assert placed == [(0, sequence, 1)]
    again = desk.crash().client()
    assert again.publish("s", b"b", producer=BatchProducer(9, 0, 1)) == [(0, 1, 1)]
    assert again.read("s") == [b"a", b"b"]


def test_a_gap_is_an_error_and_an_older_epoch_is_fenced(desk: Desk) -> None:  # SPEC G3
    peer = desk.client()
    peer.make("s")
    peer.publish("s", b"a", b"b", producer=BatchProducer(9, 1, 0))
    with pytest.raises(OutOfOrderSequence, match="2 is next"):
        peer.publish("s", b"d", producer=BatchProducer(9, 1, 3))
    with pytest.raises(Fenced):
        peer.publish("s", b"c", producer=BatchProducer(9, 0, 2))
    peer.publish("s", b"new epoch", producer=BatchProducer(9, 2, 0))
    restarted = desk.restart().client()
    with pytest.raises(Fenced):
        restarted.publish("s", b"c", producer=BatchProducer(9, 1, 2))


def test_producer_ids_are_never_given_out_twice(desk: Desk) -> None:
    def start(desk: Desk, name: str = "") -> tuple[int, int]:
        reply = desk.client().ask(Op.S_PRODUCER, pack_str(name))
        started = wire.unpack(ProducerStart, reply)
        return started.producer, started.epoch

    first, named = start(desk), start(desk, "till")
    assert start(desk, "till") == (named[0], named[1] + 1)
    again = desk.crash()
    assert start(again, "till") == (named[0], named[1] + 2)
    assert start(again)[0] not in (first[0], named[0])


# -- retention


def test_old_records_go_also_from_a_single_segment(desk: Desk) -> None:  # SPEC E4
    peer = desk.client()
    peer.make("s", retention_ms=1_000)
    for value in (b"a", b"b", b"c"):
        peer.publish("s", value)
        desk.after(600)
    peer.ask(Op.S_RETAIN, wire.pack(wire.StreamName(stream="s")))
    assert peer.read("s", 2) == [b"c"]
    assert peer.describe("s").partitions[0].start_offset == 2
    assert desk.crash().client().publish("s", b"d") == [(0, 3, 1)]


def test_too_many_bytes_go_from_the_front(desk: Desk) -> None:  # SPEC E4
    peer = desk.client()
    peer.make("s", retention_bytes=3_000)
    for i in range(10):
        peer.publish("s", b"%d" % i * 1_000)
    for _ in range(3):
        desk.after(600_000)
        assert peer.describe("s").partitions[0].start_offset == 8


def tiered_start(peer: Peer, *, retention_ms: int = 0, retention_bytes: int = 0) -> int:
    """Where the log of a stream starts once the lake has it all and its limits were applied."""
    peer.ask(
        Op.S_UPDATE,
        wire.pack(
            wire.Make(
                stream="s",
                options={"retention_ms": retention_ms, "retention_bytes": retention_bytes},
            )
        ),
    )
    [part] = peer.describe("s").partitions
    tiered = wire.TieredTo(stream="s", partition=0, offset=part.next_offset)
    peer.ask(Op.S_TIERED, wire.pack(tiered))
    peer.ask(Op.S_RETAIN, wire.pack(wire.StreamName(stream="s")))
    return peer.describe("s").partitions[0].start_offset


@pytest.mark.parametrize("limit", [{"retention_ms": 1}, {"retention_bytes": 1}])
def test_the_hot_tier_keeps_the_last_hour(limit: dict[str, int]) -> None:
    """SPEC I2: the last hour or 10,000 messages at least, though the lake has them."""
    desk = Desk(hot_messages=0)
    peer = desk.client()
    peer.make("s", tiering=True)
    for n in range(5):
        peer.publish("s", b"%d" % n)
        desk.runtime.time.now += 1_200_000
    assert tiered_start(peer, **limit) == 2
    desk.runtime.time.now += 1_200_000
    assert tiered_start(peer, **limit) == 3


@pytest.mark.parametrize("limit", [{"retention_ms": 1}, {"retention_bytes": 1}])
def test_the_hot_tier_keeps_the_last_messages(limit: dict[str, int]) -> None:  # SPEC I2
    desk = Desk()
    peer = desk.client()
    peer.make("s", tiering=True)
    for _ in range(12):
        peer.publish("s", *[b"x"] * 1_000)
    desk.runtime.time.now += 7_200_000
    assert tiered_start(peer, **limit) == 2_000


@pytest.mark.parametrize(
    ("lake", "hot", "kept_from"), [(0, 0, 0), (5, 0, 5), (10, 0, 8), (10, 4, 6), (3, 4, 3)]
)
def test_trimming_messages_keeps_what_the_lake_and_the_hot_tier_need(
    lake: int, hot: int, kept_from: int
) -> None:
    """SPEC E4, I2, J2: they are gone for who reads messages, after a crash too."""
    desk = Desk(hot_ms=0, hot_messages=hot)
    peer = desk.client()
    peer.make("s", tiering=True, retention_ms=0, retention_bytes=0)
    for number in range(10):
        peer.publish("s", b"%d" % number)
    told = wire.TieredTo(stream="s", partition=0, offset=lake)
    peer.ask(Op.S_TIERED, wire.pack(told))
    trim = wire.pack(xstreams.Trim(stream="s", max_length=2))
    assert wire.unpack(int, peer.ask(Op.S_X_TRIM, trim)) == 8
    for life in (desk, desk.crash(), desk.restart()):
        peer = life.client()
        assert peer.describe("s").partitions[0].hot_offset == kept_from
        info = peer.call(Op.S_X_INFO, xstreams.XName(stream="s"), xstreams.XInfo)
        assert info.length == 2


def test_without_tiering_no_minimum_is_kept() -> None:  # SPEC E4
    desk = Desk()
    peer = desk.client()
    peer.make("s", retention_ms=1)
    peer.publish("s", b"a")
    desk.runtime.time.now += 10
    peer.ask(Op.S_RETAIN, wire.pack(wire.StreamName(stream="s")))
    assert peer.describe("s").partitions[0].start_offset == 1


def test_what_the_lake_has_not_taken_is_kept() -> None:  # SPEC E4
    desk = Desk(hot_ms=0, hot_messages=0)
    peer = desk.client()
    peer.make("s", retention_ms=1, tiering=True)
    peer.publish("s", b"a")
    peer.publish("s", b"b")
    desk.after(600_000)
    assert peer.describe("s").partitions[0].start_offset == 0
    peer.ask(Op.S_TIERED, wire.pack(wire.TieredTo(stream="s", partition=0, offset=1)))
    desk.after(600_000)
    assert peer.describe("s").partitions[0].start_offset == 1


def test_a_group_goes_on_behind_what_retention_removed(desk: Desk) -> None:
    peer = desk.client()
    peer.make("s", retention_ms=1_000)
    consumer = peer.join("s", "g")
    peer.publish("s", b"old")
    desk.after(5_000)
    peer.publish("s", b"new")
    peer.ask(Op.S_RETAIN, wire.pack(wire.StreamName(stream="s")))
    assert [got.value for got in consumer.take()] == [b"new"]
    consumer.settle("ack", 1)
    assert peer.group("s", "g").lag == 0


def test_ten_thousand_streams_open_no_log_at_start(desk: Desk) -> None:  # SPEC E1
    peer = desk.client()
    for i in range(10_000):
        peer.send(Op.S_CREATE, pack_str(f"chat-{i}") + pack_str("{}"))
    peer.publish("chat-7", b"hello")
    again = desk.crash()
    assert again.service.status()["streams"] == 10_000
    assert again.client().read("chat-7") == [b"hello"]
    streams = again.service.core.engine.streams
    assert sum(1 for stream in streams for _ in stream.opened()) <= 1


class FullPartition:
    """A log that has no room."""

    def __init__(self, log: SegmentedLog) -> None:
        self._log = log

    def append(self, head: bytearray, body: Sequence[Buffer]) -> int:
        raise DiskFull("no room")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


def test_a_routed_batch_that_the_disk_takes_in_part_is_never_seen(desk: Desk) -> None:
    """F14: the part that was stored appeared with the next record of its partition."""
    peer = desk.client()
    peer.make("s", partitions=3)  # order_123 of 3 goes to 2 (SPEC E2)
    keys: list[bytes | None] = [b"order_123", *(b"k%d" % i for i in range(20))]
    parts = desk.service.core.engine.streams.get("s").partitions()
    whole = parts[0].log
    parts[0].log = cast(SegmentedLog, FullPartition(whole))
    with pytest.raises(DiskFull):
        peer.publish("s", *[b"x"] * 21, keys=keys, partition=-1)
    parts[0].log = whole
    for partition in range(3):
        peer.publish("s", b"later", partition=partition)
        assert peer.read("s", partition=partition) == [b"later"]
    again = Desk(desk.files).client()
    for partition in range(3):
        assert again.read("s", partition=partition) == [b"later"]


def test_a_list_may_name_only_streams_with_tiering(desk: Desk) -> None:
    """F14: a pipeline that described every stream had every log opened."""
    peer = desk.client()
    for name in "abc":
        peer.make(name, tiering=name != "b")
    assert peer.call(Op.S_LIST, wire.ListAsk(tiering=True), list[str]) == ["a", "c"]
    assert peer.call(Op.S_LIST, wire.ListAsk(tiering=True, limit=1), list[str]) == ["a"]
