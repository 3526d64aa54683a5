"""The store's service: bytes in, replies out, nothing but small fakes at its ports."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from nexo import limits
from nexo.access.login import Identity
from nexo.brokers.store.expiry import SLOT_MS
from nexo.dialects.nexo.store import StoreRequests
from nexo.errors import (
    DiskFull,
    InvalidInput,
    InvalidOption,
    NexoError,
    ProtocolError,
    ReadOnly,
    Unavailable,
    WrongType,
)
from nexo.model import Broker, Buffer, Persistence
from nexo.model.store import KeysPage, LeaseAnswer, SetResult
from nexo.protocol import store as wire
from nexo.protocol.frames import pack_str
from nexo.protocol.messages import pack
from nexo.protocol.ops import BROKER_OF, Op
from nexo.services.store.service import SWEEP_KEYS, StoreService
from nexo.services.store.snapshot import NAME
from nexo.storage.disk.flusher import Flusher
from nexo.storage.ports import Files
from tests.faulty_files import FaultyFiles
from tests.manual_runtime import ManualRuntime
from tests.memory_files import MemoryFiles

VALUE = b'\x02{"name":"Max"}'


class StoreRuntime(ManualRuntime):
    """Its syncs end with the turn."""

    folder = Path("/data/store")

    def __init__(self, files: Files | None = None, **settings: Any) -> None:
        super().__init__(files or MemoryFiles(), **settings)
        self.flusher = Flusher(self.files, self.folder)
        self.sync_error: NexoError | None = None
        self.lease_error: NexoError | None = None

    def committed(self, mode: Persistence, callback: Callable[[NexoError | None], None]) -> None:
        self.soon(lambda: callback(self.sync_error))

    def check_leads(self) -> None:
        if self.lease_error is not None:
            raise self.lease_error


class RecordingPeer:
    id = 1
    identity: Identity | None = None
    name = "test"
    said_hello = True
    closed = False
    congested = False
    resends = False

    def __init__(self) -> None:
        self.replies: dict[int, bytes | str | None] = {}
        self.errors: dict[int, NexoError] = {}

    def ok(self, request_id: int) -> None:
        self.replies[request_id] = "OK"

    def null(self, request_id: int) -> None:
        self.replies[request_id] = None

    def data(self, request_id: int, *parts: Buffer) -> None:
        self.replies[request_id] = b"".join(parts)

    def fail(self, request_id: int, error: NexoError) -> None:
        self.errors[request_id] = error

    def push(self, frames: Buffer) -> None: ...

    def kick(self, reason: str) -> None: ...


class Session:
    """A service with one peer on it."""

    def __init__(self, runtime: StoreRuntime) -> None:
        self.runtime = runtime
        self.service = StoreService(runtime)
        self.requests = StoreRequests(self.service)
        self.service.open()
        self.peer = RecordingPeer()

    def raw(self, op: Op, payload: bytes) -> bytes | str | None:
        self.requests.handlers[op](self.peer, 7, memoryview(payload))
        return self.peer.replies.pop(7)

    def ask(self, op: Op, command: wire.StoreRequest) -> Any:
        reply = self.raw(op, pack(command))
        assert isinstance(reply, bytes)
        return wire.decode_reply(op, reply)

    def set(self, key: str, value: bytes = VALUE, options: str = "") -> bytes | str | None:
        return self.raw(Op.MAP_SET, pack_str(key) + pack_str(options) + value)

    def get(self, key: str) -> bytes | str | None:
        return self.raw(Op.MAP_GET, pack_str(key))


@pytest.fixture
def session() -> Session:
    return Session(StoreRuntime())


class TestExistingClient:
    def test_set_get_and_delete_answer_as_that_client_expects(self, session: Session) -> None:
        assert session.get("user:1") is None
        assert session.set("user:1") == "OK"
        assert session.get("user:1") == VALUE
        assert session.raw(Op.MAP_DEL, pack_str("user:1")) == "OK"
        assert session.raw(Op.MAP_DEL, pack_str("user:1")) == "OK"
        assert session.get("user:1") is None

    def test_the_ttl_is_in_seconds(self, session: Session) -> None:
        session.set("a", options='{"ttl":2}')
        session.set("b", options='{"ttl":0.25}')
        session.set("c", options="{}")
        session.runtime.time.now += 250
        assert [session.get(key) for key in "abc"] == [VALUE, None, VALUE]
        session.runtime.time.now += 1_750
        assert [session.get(key) for key in "abc"] == [None, None, VALUE]

    @pytest.mark.parametrize("options", ["{", "[]", '{"ttl":"x"}', '{"tll":1}', "\x00"])
    def test_bad_options_are_named(self, session: Session, options: str) -> None:
        with pytest.raises(InvalidOption, match=r"^Invalid JSON options: "):
            session.set("k", options=options)
        assert session.get("k") is None

    @pytest.mark.parametrize("ttl", ["0", "-1", "1e300"])
    def test_an_impossible_ttl_is_refused(self, session: Session, ttl: str) -> None:
        with pytest.raises(InvalidInput, match="TTL"):
            session.set("k", options=f'{{"ttl":{ttl}}}')
        assert session.get("k") is None

    def test_a_request_cut_anywhere_changes_nothing(self, session: Session) -> None:
        whole = pack_str("key") + pack_str('{"ttl":1}') + b"\x01"
        for size in range(len(whole)):
            with pytest.raises((ProtocolError, InvalidInput)):
                session.raw(Op.MAP_SET, whole[:size])
            with pytest.raises((ProtocolError, InvalidInput)):
                session.raw(Op.MAP_GET, pack_str("key")[: min(size, 6)])
        assert session.get("key") is None

    def test_lengths_that_lie_are_refused(self, session: Session) -> None:
        for payload in (b"\xff\xff\xff\xff", b"\xff\xff\xff\xffabc", b"\x00\x00\x00\x01\xff" * 2):
            for op in (Op.MAP_SET, Op.MAP_GET, Op.MAP_DEL):
                with pytest.raises((ProtocolError, InvalidInput)):
                    session.raw(op, payload)

    def test_an_empty_or_overlong_key_is_refused(self, session: Session) -> None:
        for key in ("", "x" * 65_537):
            with pytest.raises(InvalidInput, match="key"):
                session.set(key)
            with pytest.raises(InvalidInput, match="key"):
                session.get(key)


class TestOurRequests:
    def test_every_request_belongs_to_the_store_and_has_a_handler(self, session: Session) -> None:
        assert set(session.requests.handlers) == {
            *wire.REQUESTS,
            Op.MAP_SET,
            Op.MAP_GET,
            Op.MAP_DEL,
        }
        assert all(BROKER_OF[op] is Broker.STORE for op in session.requests.handlers)

    def test_each_request_answers_with_its_reply(self, session: Session) -> None:
        ask, one = session.ask, wire.OneKey
        assert ask(Op.KEY_SET, wire.SetKey("k", VALUE, 500)) == SetResult(True, None)
        assert ask(Op.KEY_INSPECT, one("k")).ttl_ms == 500
        assert ask(Op.KEY_PERSIST, one("k")) is True
        assert ask(Op.KEY_EXPIRE, wire.Expire("k", 100)) is True
        assert ask(Op.KEY_MSET, wire.SetMany({"a": VALUE, "b": b"\x00"})) is None
        assert ask(Op.KEY_MGET, wire.Keys(["b", "no"])) == [b"\x00", None]
        assert ask(Op.KEY_EXISTS, wire.Keys(["a", "no"])) == 1
        assert ask(Op.KEY_SCAN, wire.Scan(limit=2)) == KeysPage(["a", "b"], "b")
        assert ask(Op.KEY_GETDEL, one("b")) == b"\x00"
        assert ask(Op.KEY_INCR, wire.Increment("n", 2)) == 2
        assert ask(Op.KEY_INCR, wire.Increment("n", 0.5)) == 2.5
        assert ask(Op.KEY_DELETE, wire.Keys(["a", "n"])) == 2
        assert ask(Op.FIELDS_SET, wire.SetFields("m", {"f": VALUE})) == 1
        assert ask(Op.FIELDS_INCR, wire.IncrementField("m", "n", 4)) == 4
        assert ask(Op.FIELDS_GET, wire.Fields("m", ["f", "x"])) == [VALUE, None]
        assert ask(Op.FIELDS_ALL, one("m")) == {"f": VALUE, "n": b"\x024"}
        assert ask(Op.FIELDS_DELETE, wire.Fields("m", ["f"])) == 1
        assert ask(Op.FIELDS_COUNT, one("m")) == 1
        assert ask(Op.LIST_PUSH, wire.Push("l", [b"\x01a", b"\x01b"])) == 2
        assert ask(Op.LIST_REPLACE, wire.Replace("l", 0, b"\x01c")) is None
        assert ask(Op.LIST_RANGE, wire.ListRange("l")) == [b"\x01c", b"\x01b"]
        assert ask(Op.LIST_TRIM, wire.ListRange("l", 0, 1)) == 1
        assert ask(Op.LIST_REMOVE, wire.RemoveValue("l", b"\x01x")) == 0
        assert ask(Op.LIST_LENGTH, one("l")) == 1
        assert ask(Op.LIST_POP, wire.PopItems("l")) == [b"\x01c"]
        assert ask(Op.SET_ADD, wire.Members("s", [b"\x01a"])) == 1
        assert ask(Op.SET_CONTAINS, wire.Members("s", [b"\x01a", b"\x01b"])) == [True, False]
        assert ask(Op.SET_MEMBERS, one("s")) == [b"\x01a"]
        assert ask(Op.SET_SIZE, one("s")) == 1
        assert ask(Op.SET_REMOVE, wire.Members("s", [b"\x01b"])) == 0
        assert ask(Op.SET_POP, wire.PopItems("s", 9)) == [b"\x01a"]
        assert ask(Op.STORE_CLEAR, wire.Clear()) == 2

    @pytest.mark.parametrize(
        "payload", [b"", b"\xc1", b"\x93\xa1k", b"\x92\xa1\xff\xc4\x01a", b"\x80"]
    )
    def test_bytes_that_are_no_request_are_refused(self, session: Session, payload: bytes) -> None:
        with pytest.raises((ProtocolError, InvalidInput)):
            session.raw(Op.KEY_SET, payload)

    def test_a_bad_field_is_named(self, session: Session) -> None:
        with pytest.raises(InvalidInput, match="limit"):
            session.ask(Op.KEY_SCAN, wire.Scan(limit=0))
        with pytest.raises(InvalidInput, match="length >= 1"):
            session.ask(Op.KEY_SET, wire.SetKey("", VALUE))
        with pytest.raises(InvalidInput):
            session.raw(Op.KEY_GETDEL, msgspec.msgpack.encode(["k", "one too many"]))

    def test_errors_of_the_engine_pass_through(self, session: Session) -> None:
        session.ask(Op.LIST_PUSH, wire.Push("l", [VALUE]))
        with pytest.raises(WrongType):
            session.get("l")


class TestTime:
    def test_expired_keys_are_reclaimed_by_ticks_of_bounded_work(self, session: Session) -> None:
        for n in range(SWEEP_KEYS + 10):
            session.set(f"k{n}", options='{"ttl":1}')
        runtime = session.runtime
        runtime.time.now += 1_000 + SLOT_MS
        assert min(runtime.wakes) <= runtime.time.now
        runtime.wakes.clear()
        session.service.tick(runtime.time.now)
        assert session.service.status()["keys"] == 10
        assert min(runtime.wakes) <= runtime.time.now  # asks to go on at once
        session.service.tick(runtime.time.now)
        assert session.service.status()["keys"] == 0
        assert session.service.status()["expired"] == SWEEP_KEYS + 10

    def test_the_status_counts(self, session: Session) -> None:
        session.set("k", options='{"ttl":9}')
        session.get("k")
        session.get("no")
        status = session.service.status()
        assert (status["keys"], status["keys_with_ttl"]) == (1, 1)
        assert (status["hits"], status["misses"], status["commands"]) == (1, 1, 3)

    def test_the_budget_is_a_setting(self) -> None:
        session = Session(StoreRuntime(store_max_bytes=2_000))
        for n in range(100):
            session.set(f"k{n}")
        status = session.service.status()
        assert status["used_bytes"] <= 2_000
        assert status["evicted"] == 100 - status["keys"] > 0


class TestSaving:
    def test_nothing_is_written_while_it_runs_unless_asked_for(self, session: Session) -> None:
        session.set("k")
        session.runtime.time.now += 3_600_000
        session.service.tick(session.runtime.time.now)
        assert not session.runtime.end_turn()
        assert session.runtime.files.list(session.runtime.folder) == []

    def test_a_planned_restart_loses_no_key(self) -> None:  # SPEC A7
        first = Session(StoreRuntime())
        first.set("k")
        first.set("short", options='{"ttl":1}')
        first.service.close()
        files, folder = first.runtime.files, first.runtime.folder
        second = Session(StoreRuntime(files))
        assert (second.get("k"), second.get("short")) == (VALUE, VALUE)
        second.runtime.time.now += 1_000
        assert second.get("short") is None
        assert files.list(folder) == []

    def test_what_a_planned_stop_kept_does_not_come_back_after_a_crash(self) -> None:
        first = Session(StoreRuntime())
        first.set("k")
        first.service.close()
        files = first.runtime.files
        Session(StoreRuntime(files)).raw(Op.MAP_DEL, pack_str("k"))
        assert Session(StoreRuntime(files)).get("k") is None  # nothing was closed

    def test_an_empty_store_leaves_no_file(self, session: Session) -> None:
        session.service.close()
        assert session.runtime.files.list(session.runtime.folder) == []

    def test_saving_may_be_switched_on_and_off_between_planned_restarts(self) -> None:
        """Nobody renews the snapshot once it is off, so it does not count from then on."""
        files = MemoryFiles()
        for key, every_ms, kept in (
            ("a", 60_000, 0), ("b", 0, 0), ("c", 0, 1), ("d", 60_000, 2), ("e", 60_000, 3),
        ):  # fmt: skip
            session = Session(StoreRuntime(files, store_snapshot_ms=every_ms))
            assert session.service.status()["keys"] == kept
            session.set(key)
            session.service.close()

    def test_a_second_machine_may_have_led_since(self) -> None:
        first = Session(StoreRuntime(replicate="memory:///"))
        first.set("k")
        first.service.close()
        assert first.runtime.files.list(first.runtime.folder) == []

    def test_a_graceful_stop_saves(self) -> None:
        first = Session(StoreRuntime(store_snapshot_ms=60_000))
        first.set("k")
        first.set("short", options='{"ttl":1}')
        first.service.close()
        second = Session(StoreRuntime(first.runtime.files, store_snapshot_ms=60_000))
        assert (second.get("k"), second.get("short")) == (VALUE, VALUE)
        second.runtime.time.now += 1_000
        assert second.get("short") is None

    def test_a_save_runs_in_turns_when_due_and_only_after_changes(self) -> None:
        session = Session(StoreRuntime(store_snapshot_ms=1_000))
        runtime = session.runtime
        for n in range(3_000):
            session.set(f"k{n}")
        session.service.tick(runtime.time.now)
        assert runtime.files.list(runtime.folder) == []
        runtime.time.now += 1_000
        session.service.tick(runtime.time.now)
        turns = 0
        while runtime.end_turn():
            turns += 1
            assert session.get("k1") == VALUE
        assert turns >= 4
        assert runtime.files.list(runtime.folder) == [NAME]
        saved_ms = runtime.time.now
        runtime.time.now += 1_000
        session.service.tick(runtime.time.now)
        assert not runtime.end_turn()
        assert session.service.status()["snapshot"]["saved_ms"] == saved_ms

    def test_a_failed_sync_keeps_the_old_snapshot_and_shows(self) -> None:
        session = Session(StoreRuntime(store_snapshot_ms=1_000))
        runtime = session.runtime
        session.set("k")
        runtime.sync_error = ReadOnly("the disk is gone")
        runtime.time.now += 1_000
        session.service.tick(runtime.time.now)
        while runtime.end_turn():
            pass
        assert runtime.files.list(runtime.folder) == []
        assert session.service.status()["snapshot"]["error"] == "the disk is gone"
        assert session.get("k") == VALUE

    def test_stopping_during_a_save_saves_everything(self) -> None:
        session = Session(StoreRuntime(store_snapshot_ms=1_000))
        for n in range(3_000):
            session.set(f"k{n}")
        session.runtime.time.now += 1_000
        session.service.tick(session.runtime.time.now)
        session.runtime.end_turn()
        session.set("a late one")
        session.service.close()
        session.runtime.end_turn()
        again = Session(StoreRuntime(session.runtime.files, store_snapshot_ms=1_000))
        assert again.service.status()["keys"] == 3_001

    def test_a_damaged_snapshot_is_kept_and_reported(self) -> None:
        first = Session(StoreRuntime(store_snapshot_ms=1_000))
        first.set("k")
        first.service.close()
        files, folder = first.runtime.files, first.runtime.folder
        files.open(folder / NAME).write_at(70, [b"\xff" * 5])
        for _ in range(2):  # the second start finds what the first one found
            again = Session(StoreRuntime(files, store_snapshot_ms=1_000))
            assert again.get("k") is None
            (kept,) = (name for name in files.list(folder) if name.endswith(".damaged"))
            assert f"kept as {kept}" in again.service.status()["snapshot"]["error"]
            assert sorted(files.list(folder)) == sorted([NAME, kept])

    def test_the_sound_part_of_a_damaged_snapshot_outlives_a_crash_before_the_next_save(
        self,
    ) -> None:
        first = Session(StoreRuntime(store_snapshot_ms=1_000))
        for n in range(3_000):
            first.set(f"k{n:04}")
        first.service.close()
        files, folder = first.runtime.files, first.runtime.folder
        files.open(folder / NAME).write_at(70, [b"\xff" * 5])  # in the first thousand
        for _ in range(2):  # nothing is saved in between
            again = Session(StoreRuntime(files, store_snapshot_ms=1_000))
            assert again.service.status()["keys"] == 2_000
        again.set("more")
        again.service.close()
        again = Session(StoreRuntime(files, store_snapshot_ms=1_000))
        assert again.service.status()["keys"] == 2_001


class TestLeases:  # SPEC O1
    def take(
        self, session: Session, holder: str, wait_ms: int, request_id: int, ttl_ms: int = 1_000
    ) -> None:
        command = wire.TakeLease("lock", holder, ttl_ms, 1, wait_ms)
        payload = memoryview(pack(command))
        session.requests.handlers[Op.LEASE_TAKE](session.peer, request_id, payload)

    def number(self, session: Session, request_id: int) -> int | None:
        reply = session.peer.replies.pop(request_id)
        assert isinstance(reply, bytes)
        found: LeaseAnswer = wire.decode_reply(Op.LEASE_TAKE, reply)
        return found.number

    def test_who_waits_gets_it_when_it_is_released_first_come_first_served(
        self, session: Session
    ) -> None:
        self.take(session, "a", 0, 1)
        self.take(session, "b", 5_000, 2)
        self.take(session, "c", 5_000, 3)
        assert list(session.peer.replies) == [1]
        assert session.ask(Op.LEASE_RELEASE, wire.ReleaseLease("lock", "a"))
        assert list(session.peer.replies) == [1, 2]
        first, second = self.number(session, 1), self.number(session, 2)
        assert first is not None
        assert second is not None
        assert second > first

    def test_who_waits_gets_it_when_its_holder_is_silent(self, session: Session) -> None:
        self.take(session, "a", 0, 1)
        self.take(session, "b", 5_000, 2)
        assert session.runtime.time.now + 1_000 in session.runtime.wakes
        session.runtime.time.now += 1_000
        session.service.tick(session.runtime.time.now)
        assert self.number(session, 2) is not None

    def test_who_waits_in_vain_hears_it(self, session: Session) -> None:
        self.take(session, "a", 0, 1)
        self.take(session, "b", 300, 2)
        assert session.runtime.time.now + 300 in session.runtime.wakes
        session.runtime.time.now += 300
        session.service.tick(session.runtime.time.now)
        assert self.number(session, 2) is None

    def test_a_long_wait_ends_at_its_limit(self, session: Session) -> None:
        self.take(session, "a", 0, 1, 3 * limits.LEASE_WAIT_MS)
        self.take(session, "b", 2 * limits.LEASE_WAIT_MS, 2)
        session.runtime.time.now += limits.LEASE_WAIT_MS
        session.service.tick(session.runtime.time.now)
        assert self.number(session, 2) is None

    def test_a_deleted_lock_is_free(self, session: Session) -> None:
        self.take(session, "a", 0, 1)
        self.take(session, "b", 5_000, 2)
        session.ask(Op.KEY_DELETE, wire.Keys(["lock"]))
        assert self.number(session, 2) is not None

    @pytest.mark.parametrize(
        ("op", "change"),
        [
            (Op.KEY_DELETE, wire.Keys(["other", "lock"])),
            (Op.STORE_CLEAR, wire.Clear()),
            (Op.FIELDS_DELETE, wire.Fields("lock", ["a"])),
        ],
    )
    def test_who_waits_gets_it_at_once_however_it_was_freed(
        self, session: Session, op: Op, change: wire.StoreRequest
    ) -> None:
        self.take(session, "a", 0, 1, 60_000)
        self.take(session, "b", 60_000, 2)
        session.ask(op, change)
        assert self.number(session, 2) is not None

    @pytest.mark.parametrize("op", ["expire", "persist and expire"])
    def test_who_waits_gets_it_when_the_key_expires_earlier_than_it_was_leased(
        self, session: Session, op: str
    ) -> None:  # T11
        self.take(session, "a", 0, 1, 60_000)
        if op != "expire":
            session.ask(Op.KEY_PERSIST, wire.OneKey("lock"))
        self.take(session, "b", 60_000, 2)
        session.ask(Op.KEY_EXPIRE, wire.Expire("lock", 300))
        assert session.runtime.time.now + 300 in session.runtime.wakes
        assert 2 not in session.peer.replies
        session.runtime.time.now += 300
        session.service.tick(session.runtime.time.now)
        assert self.number(session, 2) is not None

    def test_who_waits_gets_it_when_the_lock_was_evicted(self) -> None:
        session = Session(StoreRuntime(store_max_bytes=1_000))
        self.take(session, "a", 0, 1, 60_000)
        self.take(session, "b", 60_000, 2)
        session.set("large", VALUE + bytes(700))
        assert self.number(session, 2) is not None

    def test_a_plain_set_of_a_locks_key_answers_who_waits(self, session: Session) -> None:
        self.take(session, "a", 0, 1, 60_000)
        self.take(session, "b", 60_000, 2)
        session.set("lock")
        with pytest.raises(WrongType):
            raise session.peer.errors.pop(2)

    def test_a_cancelled_or_closed_wait_takes_nothing(self, session: Session) -> None:
        self.take(session, "a", 0, 1)
        self.take(session, "b", 5_000, 2)
        self.take(session, "c", 5_000, 3)
        session.service.cancel(session.peer, 2)
        assert self.number(session, 2) is None
        session.service.connection_closed(session.peer)
        assert session.ask(Op.LEASE_RELEASE, wire.ReleaseLease("lock", "a"))
        self.take(session, "d", 0, 4)
        assert self.number(session, 4) is not None


def test_a_damaged_part_of_the_snapshot_costs_itself_alone() -> None:  # F2
    files = MemoryFiles()
    before = Session(StoreRuntime(files, store_snapshot_ms=60_000))
    for number in range(2_500):
        before.set(f"{number:05}")
    before.service.close()
    path = StoreRuntime.folder / NAME
    file = files.open(path)
    raw = file.read_at(0, file.size())
    for place in (100, len(raw) // 2, 8):  # a body, a later body, a header's length
        flipped = bytearray(raw)
        flipped[place] ^= 1
        flipped[place + 2] ^= 1
        files.open(path, create=True).write_at(0, [bytes(flipped)])
        after = Session(StoreRuntime(files, store_snapshot_ms=60_000))
        found = sum(after.get(f"{number:05}") == VALUE for number in range(2_500))
        assert found >= 1_500
        assert "damaged" in after.service.status()["snapshot"]["error"]


def test_a_leader_whose_lease_has_ended_answers_nothing() -> None:  # SPEC N3
    session = Session(StoreRuntime(replicate="memory:///"))
    session.set("key")
    session.runtime.lease_error = Unavailable("the lease has ended")
    commands: list[tuple[Op, wire.StoreRequest]] = [
        (Op.KEY_EXISTS, wire.Keys(["key"])),
        (Op.KEY_SET, wire.SetKey("key", b"\x02 1")),
        (Op.KEY_INCR, wire.Increment("number", 1)),
        (Op.LEASE_TAKE, wire.TakeLease("lock", "a", 1_000)),
        (Op.SET_ADD, wire.Members("set", [b"\x021"])),
    ]
    for op, command in commands:
        with pytest.raises(Unavailable):
            session.ask(op, command)
    with pytest.raises(Unavailable):
        session.get("key")
    with pytest.raises(Unavailable):
        session.set("key", b"\x02 2")
    session.runtime.lease_error = None
    assert session.get("key") == VALUE
    assert session.set("key", b"\x02 2") == "OK"


def test_fencing_numbers_grow_though_the_last_leader_had_a_clock_ahead() -> None:  # SPEC N2
    runtime = StoreRuntime(replicate="memory:///")
    runtime.numbers_after_ms = runtime.time.now + 60_000
    session = Session(runtime)
    lease = session.ask(Op.LEASE_TAKE, wire.TakeLease("lock", "a", 1_000))
    assert lease.number > runtime.numbers_after_ms * 1_000


def test_fencing_numbers_grow_though_the_clock_was_set_back_before_a_restart() -> None:  # SPEC O1
    runtime = StoreRuntime()
    numbers = []
    for hours_back in (0, 1, 5, 30, 0):
        runtime.time.now = 1_700_000_000_000 - hours_back * 3_600_000
        session = Session(StoreRuntime(runtime.files))
        session.runtime.time.now = runtime.time.now
        for holder in "ab":
            lease = session.ask(Op.LEASE_TAKE, wire.TakeLease("lock", holder, 1_000))
            session.ask(Op.LEASE_RELEASE, wire.ReleaseLease("lock", holder))
            numbers.append(lease.number)
    assert numbers == sorted(set(numbers))


@pytest.mark.parametrize("call", range(1, 4))
def test_a_lease_whose_number_cannot_be_kept_is_refused_and_a_later_one_granted(call: int) -> None:
    files = FaultyFiles()
    session = Session(StoreRuntime(files))
    take = wire.TakeLease("lock", "a", 1_000)
    files.fail_call, files.fail_errno = files.calls + call, errno.ENOSPC
    with pytest.raises(DiskFull):
        session.ask(Op.LEASE_TAKE, take)
    assert session.ask(Op.LEASE_TAKE, take).number is not None


def test_fencing_numbers_cost_a_synced_write_only_now_and_then() -> None:
    files = FaultyFiles()
    session = Session(StoreRuntime(files))
    calls = set()
    for second in range(500):
        session.runtime.time.now += 1_000
        session.ask(Op.LEASE_TAKE, wire.TakeLease("lock", str(second), 500))
        calls.add(files.calls)
    assert len(calls) == 1
