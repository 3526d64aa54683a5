"""What only the server's own streams can show: its clock, its log, its recovery (SPEC J)."""

from __future__ import annotations

from typing import Any

import pytest

from nexo.batch import decode, entries
from nexo.errors import Conflict, InvalidInput, NexoError, NotFound
from nexo.protocol import stream as wire
from nexo.protocol import xstreams as x
from nexo.protocol.ops import Op
from nexo.protocol.values import decode_content, encode_value
from nexo.services.stream.groups.xmessages import TRIM_STEP
from nexo.storage.log import SegmentedLog
from tests.unit.brokers.stream.desk import Desk, Peer


class Client:
    """Requests of `NexoStreamBroker`, without a connection."""

    def __init__(self, desk: Desk, max_length: int = 10_000) -> None:
        self.desk = desk
        self.peer: Peer = desk.client()
        self.max_length = max_length

    def add(self, data: Any, stream: str = "s") -> tuple[int, int]:
        head = wire.pack_headed(x.Add(stream, self.max_length))
        reply = self.peer.ask(Op.S_X_ADD, head + encode_value(data))
        return wire.unpack(tuple[int, int], reply)

    def group(self, name: str = "g", start: tuple[int, int] | None = (0, 0)) -> bool:
        return self.peer.call(Op.S_X_GROUP, x.MakeGroup("s", name, start), bool)

    def poll(self, who: str = "a", count: int = 100, wait_ms: int = 0, pending: int = 1_000) -> int:
        ask = x.ReadGroup("s", "g", who, count, wait_ms, pending)
        return self.peer.send(Op.S_X_READ, wire.pack(ask))

    def read(self, who: str = "a", count: int = 100) -> list[tuple[int, Any, int]]:
        return self.messages(self.peer.replies[self.poll(who, count)])

    def claim(self, who: str, min_idle_ms: int = 0, count: int = 100) -> list[tuple[int, Any, int]]:
        ask = wire.pack(x.XClaim("s", "g", who, min_idle_ms, count))
        return self.messages(self.peer.ask(Op.S_X_CLAIM, ask))

    def messages(self, reply: Any) -> list[tuple[int, Any, int]]:
        """Offset, data and delivery count of each."""
        if isinstance(reply, NexoError):
            raise reply
        head, rest = wire.unpack_headed(x.XDelivered, reply)
        counts = {n: count for first, end, count in head.ranges for n in range(first, end)}
        return [
            (row.offset, decode_content(row.value_type, row.value or b""), counts[row.offset])
            for entry in entries(rest)
            for row in decode(entry).records()
            if row.offset in counts
        ]

    def ids(self, op: Op, *ids: tuple[int, int]) -> int:
        return self.peer.call(op, x.Ids("s", "g", list(ids)), int)

    def pending(self) -> list[tuple[tuple[int, int], str, int, int]]:
        rows = self.peer.call(Op.S_X_PENDING, x.PendingAsk("s", "g", None, 0), list[x.XPending])
        return [((r.ms, r.seq), r.consumer, r.idle_ms, r.delivery_count) for r in rows]

    def info(self) -> x.XInfo:
        return self.peer.call(Op.S_X_INFO, x.XName("s"), x.XInfo)

    def trim(self, max_length: int) -> int:
        return self.peer.call(Op.S_X_TRIM, x.Trim("s", max_length), int)

    def range(self, first: tuple[int, int], last: tuple[int, int], count: int = 100) -> list[int]:
        ask = wire.pack(x.RangeAsk("s", first, last, count))
        page, rest = wire.unpack_headed(x.XPage, self.peer.ask(Op.S_X_RANGE, ask))
        rows = [row.offset for entry in entries(rest) for row in decode(entry).records()]
        return [offset for offset in rows if page.first <= offset < page.end][:count]


@pytest.fixture
def desk() -> Desk:
    return Desk()


class TestIds:
    def test_an_id_is_the_time_and_the_offset(self, desk: Desk) -> None:
        client, now = Client(desk), desk.runtime.time.now
        assert [client.add(1), client.add(2)] == [(now, 0), (now, 1)]
        desk.after(5)
        assert client.add(3) == (now + 5, 2)

    def test_ids_rise_though_the_clock_steps_back(self, desk: Desk) -> None:  # SPEC J2
        client, now = Client(desk), desk.runtime.time.now
        client.add(1)
        desk.runtime.time.now -= 500
        assert client.add(2) == (now, 1)
        later = desk.crash()
        assert Client(later).add(3) == (now, 2)

    def test_a_range_by_time_finds_its_place(self, desk: Desk) -> None:
        client, now = Client(desk), desk.runtime.time.now
        for _ in range(4):
            client.add(0)
            client.add(0)
            desk.after(10)
        assert client.range((now + 10, 0), (now + 20, 10**9)) == [2, 3, 4, 5]
        assert client.range((now + 10, 3), (now + 20, 4)) == [3, 4]
        assert client.range((now + 11, 0), (now + 19, 10**9)) == []
        assert client.range((0, 0), (2**64 - 1, 2**64 - 1), 3) == [0, 1, 2]

    def test_ids_with_another_time_are_not_acknowledged(self, desk: Desk) -> None:
        client = Client(desk)
        client.group()
        ms, seq = client.add(1)
        client.read()
        assert client.ids(Op.S_X_ACK, (ms + 1, seq), (ms, seq + 1), (0, seq)) == 0
        assert client.ids(Op.S_X_ACK, (ms, seq)) == 1


class TestRecovery:
    def test_the_first_message_is_answered_once_its_stream_is_safe(self, desk: Desk) -> None:
        client = Client(desk)
        desk.runtime.soon = lambda callback: None  # type: ignore[method-assign]
        head = wire.pack_headed(x.Add("s", 10))
        request = client.peer.send(Op.S_X_ADD, head + encode_value("first"))
        assert request not in client.peer.replies

    @pytest.mark.parametrize("graceful", [False, True])
    def test_pending_positions_and_counts_survive(self, desk: Desk, graceful: bool) -> None:
        client = Client(desk)
        client.group()
        added = [client.add(n) for n in range(6)]
        client.read("a", 4)
        desk.after(100)
        client.claim("b", 100, 2)
        client.ids(Op.S_X_ACK, added[1], added[3])
        client.ids(Op.S_X_DELETE, added[4])
        before = client.pending()
        assert before == [(added[0], "b", 0, 2), (added[2], "a", 100, 1)]
        for _ in range(2):
            desk = desk.restart() if graceful else desk.crash()
            client = Client(desk)
            assert client.pending() == before
            info = client.info()
            assert (info.length, info.groups[0].lag, info.groups[0].pending) == (5, 1, 2)
            assert [each.name for each in info.groups[0].consumers] == ["a", "b"]
        assert client.read("c") == [(5, 5, 1)]

    @pytest.mark.parametrize("graceful", [False, True])
    def test_what_was_renewed_survives(self, desk: Desk, graceful: bool) -> None:
        client = Client(desk)
        client.group()
        added = [client.add(n) for n in range(3)]
        client.read("a", 3)
        desk.after(100)
        renew = x.XRenew("s", "g", "a", [added[2], (0, 0), added[1]])
        assert client.peer.call(Op.S_X_RENEW, renew, list[x.Id]) == [added[2], added[1]]
        client = Client(desk.restart() if graceful else desk.crash())
        assert client.pending() == [
            (added[0], "a", 100, 1), (added[1], "a", 0, 1), (added[2], "a", 0, 1),
        ]  # fmt: skip
        assert client.claim("b", 100) == [(0, 0, 2)]

    @pytest.mark.parametrize("graceful", [False, True])
    def test_a_start_that_lies_ahead_survives(self, desk: Desk, graceful: bool) -> None:  # SPEC J2
        client, ahead = Client(desk), (desk.runtime.time.now + 100, 2)
        client.group("g", ahead)
        client.add("below")
        assert client.read() == []
        for _ in range(2):
            desk = desk.restart() if graceful else desk.crash()
            client = Client(desk)
            client.add("below")
            [group] = client.info().groups
            assert (group.lag, group.last_id) == (0, ahead)
        desk.after(101)
        offset = client.add("above")[1]
        assert client.info().groups[0].lag == 1
        client = Client(desk.crash())
        assert client.read() == [(offset, "above", 1)]

    def test_what_was_trimmed_by_hand_stays_away(self, desk: Desk) -> None:
        client = Client(desk)
        client.group()
        for n in range(10):
            client.add(n)
        assert client.trim(4) == 6
        client = Client(desk.crash())
        info = client.info()
        assert (info.length, info.groups[0].lag, info.groups[0].trimmed_unread) == (4, 4, 6)
        assert [data for _, data, _ in client.read()] == [6, 7, 8, 9]

    def test_trimming_by_itself_is_never_forgotten_by_groups(self, desk: Desk) -> None:
        client = Client(desk, max_length=5)
        client.group()
        for n in range(8):
            client.add(n)
        assert client.info().length == 5
        client = Client(desk.crash(), max_length=5)
        assert client.info().groups[0].trimmed_unread == 3
        assert [data for _, data, _ in client.read()] == [3, 4, 5, 6, 7]
        client.add(8)
        assert client.info().length == 5

    def test_trimming_by_itself_frees_the_log_in_steps(self, desk: Desk) -> None:
        client = Client(desk, max_length=10)
        starts = set()
        for n in range(2 * TRIM_STEP + 10):
            client.add(n)
            starts.add(client.peer.describe("s").partitions[0].start_offset)
        assert starts == {0, TRIM_STEP, 2 * TRIM_STEP}
        assert client.info().length == 10


class TestWaiting:
    def test_a_waiting_read_is_answered_by_the_message(self, desk: Desk) -> None:
        client = Client(desk)
        client.group()
        poll = client.poll(wait_ms=1_000)
        assert poll not in client.peer.replies
        Client(desk).add("now")
        assert client.messages(client.peer.replies[poll]) == [(0, "now", 1)]

    def test_a_waiting_read_ends_after_its_time(self, desk: Desk) -> None:
        client = Client(desk)
        client.group()
        poll = client.poll(wait_ms=1_000)
        desk.after(1_000)
        assert client.messages(client.peer.replies[poll]) == []

    def test_a_full_consumer_waits_for_room(self, desk: Desk) -> None:
        client = Client(desk)
        client.group()
        first = client.add(0)
        client.poll(pending=1)
        poll = client.poll(wait_ms=1_000, pending=1)
        client.add(1)
        assert poll not in client.peer.replies
        client.ids(Op.S_X_ACK, first)
        assert client.messages(client.peer.replies[poll]) == [(1, 1, 1)]

    def test_a_disconnect_releases_nothing(self, desk: Desk) -> None:
        client = Client(desk)
        client.group()
        client.add(0)
        client.read("a")
        client.peer.close()
        again = Client(desk)
        desk.after(10_000_000)
        assert again.read("b") == []
        assert [who for _, who, _, _ in again.pending()] == ["a"]

    def test_one_who_is_gone_is_given_nothing(self, desk: Desk) -> None:
        client, other = Client(desk), Client(desk)
        client.group()
        client.poll("a", wait_ms=10_000)
        client.peer.close()
        other.add(0)
        assert other.pending() == []
        assert other.read("b") == [(0, 0, 1)]

    def test_deleting_the_stream_ends_the_wait(self, desk: Desk) -> None:
        client = Client(desk)
        client.group()
        poll = client.poll(wait_ms=10_000)
        client.peer.ask(Op.S_DELETE, b"\x00\x00\x00\x01s")
        assert isinstance(client.peer.replies[poll], NotFound)


class TestBesideTheStreamApi:
    def test_batches_published_to_the_stream_are_messages(self, desk: Desk) -> None:
        client = Client(desk)
        client.group()
        client.peer.publish("s", b"one", b"two", b"three")
        assert [(offset, data) for offset, data, _ in client.read("a", 2)] == [
            (0, b"one"), (1, b"two"),
        ]  # fmt: skip
        assert [data for _, data, _ in client.read("a")] == [b"three"]
        assert [data for _, data, _ in client.claim("b")] == [b"one", b"two", b"three"]
        assert client.ids(Op.S_X_ACK, (desk.runtime.time.now, 1)) == 1

    def test_trimming_cuts_through_a_batch(self, desk: Desk) -> None:
        client = Client(desk)
        client.group()
        client.peer.publish("s", *[bytes([n]) for n in range(10)])
        assert client.trim(3) == 7
        assert [offset for offset, _, _ in client.read()] == [7, 8, 9]

    def test_a_message_out_of_a_batch_cannot_be_deleted_alone(self, desk: Desk) -> None:
        client = Client(desk)
        client.group()
        alone = client.add("alone")
        client.peer.publish("s", b"one", b"two")
        with pytest.raises(InvalidInput, match="together"):
            client.ids(Op.S_X_DELETE, alone, (desk.runtime.time.now, 1))
        assert client.info().length == 3

    def test_deleted_messages_are_hidden_from_plain_reads(self, desk: Desk) -> None:
        client = Client(desk)
        added = [client.add(str(n)) for n in range(3)]
        client.ids(Op.S_X_DELETE, added[1])
        assert client.peer.read("s") == [b"0", b"2"]

    def test_the_two_kinds_of_groups_are_kept_apart(self, desk: Desk) -> None:
        client = Client(desk)
        client.group()
        client.add(0)
        with pytest.raises(Conflict, match="xstreams"):
            client.peer.join("s", "g")
        client.peer.join("s", "leased")
        with pytest.raises(Conflict, match="leases"):
            client.group("leased")
        assert [group.name for group in client.info().groups] == ["g"]

    def test_streams_with_more_partitions_are_refused(self, desk: Desk) -> None:
        client = Client(desk)
        client.peer.make("s", partitions=2)
        with pytest.raises(Conflict, match="2 partitions"):
            client.add(0)

    def test_groups_of_the_stream_api_step_over_what_was_trimmed(self, desk: Desk) -> None:
        client = Client(desk, max_length=3)
        client.add(0)
        consumer = client.peer.join("s", "leased")
        for n in range(1, 6):
            client.add(n)
        assert [got.offset for got in consumer.take()] == [3, 4, 5]


class TestSizes:
    def test_a_reply_holds_no_more_than_is_good(self, desk: Desk) -> None:
        client = Client(desk)
        client.group()
        for n in range(6):
            client.add(bytes([n]) * 1024**2)
        first = client.read("a")
        assert 1 <= len(first) <= 4
        assert len(client.pending()) == len(first)
        assert len(first) + len(client.read("a")) == 6
        claimed = client.claim("b")
        assert 1 <= len(claimed) <= 4
        assert sum(who == "b" for _, who, _, _ in client.pending()) == len(claimed)

    @pytest.mark.parametrize("value", [b"", b"\x07what"])
    def test_values_without_a_type_are_refused(self, desk: Desk, value: bytes) -> None:
        client = Client(desk)
        head = wire.pack_headed(x.Add("s", 10))
        with pytest.raises(InvalidInput):
            client.peer.ask(Op.S_X_ADD, head + value)


class TestCost:
    """SPEC J4: a read costs the same in a short stream and in a long one."""

    @pytest.mark.parametrize("length", [500, 8_000])
    def test_one_message_takes_one_read_of_the_log(
        self, desk: Desk, length: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        client = Client(desk)
        added = [client.add("x" * 100) for _ in range(length)]
        client.group("g", added[length // 2])
        reads: list[int] = []
        read = SegmentedLog.read

        def counting(log: SegmentedLog, offset: int, max_bytes: int) -> bytes:
            data = read(log, offset, max_bytes)
            reads.append(len(data))
            return data

        monkeypatch.setattr(SegmentedLog, "read", counting)
        assert [offset for offset, _, _ in client.read("a", 1)] == [length // 2 + 1]
        assert len(reads) <= 1
        assert sum(reads) <= 300_000
        for _ in range(20):
            assert len(client.read("a", 1)) == 1
        assert len(reads) <= 1

    def test_the_ends_of_a_trimmed_stream_are_found_without_a_search(
        self, desk: Desk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        client = Client(desk, max_length=10)
        for n in range(1_500):
            client.add(n)

        def searched(log: SegmentedLog, timestamp_ms: int) -> int:
            raise AssertionError("the time index was asked")

        monkeypatch.setattr(SegmentedLog, "offset_at", searched)
        assert client.range((0, 0), (2**64 - 1, 0)) == list(range(1_490, 1_500))
        assert client.range((0, 0), (2**64 - 1, 0), 1) == [1_490]
        assert client.group("later", (0, 0))


class TestBadInput:
    """It changes nothing (SPEC, preamble)."""

    def test_a_negative_length_is_refused(self, desk: Desk) -> None:
        client = Client(desk)
        client.add(1)
        client.max_length = -5
        with pytest.raises(InvalidInput, match="max_length"):
            client.add(2)
        with pytest.raises(InvalidInput, match="max_length"):
            client.trim(-1)
        client.max_length = 10
        client.add(3)
        assert client.info().length == 2

    def test_a_group_with_a_bad_name_makes_no_stream(self, desk: Desk) -> None:
        client = Client(desk)
        with pytest.raises(InvalidInput):
            client.group("not a name")
        with pytest.raises(NotFound):
            client.info()
