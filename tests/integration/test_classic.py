"""The existing client's protocol against the real server: SPEC A9, PROTOCOL.md."""

from __future__ import annotations

import math
import socket
import struct
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

import nexo
from nexo.config.keywords import ServerSettings
from nexo.errors import InvalidName
from nexo.model.names import name_of
from nexo.testing import Process, process, server
from tests.integration.classic import ERR, OK, Classic, Refused, text, value

VALUES: list[Any] = [
    b"", b"\x00\xff", "", "text", "žluťoučký 🐎", None, 0, -1.5, True, [], {},
    {"nested": [1, {"a": None}], "emoji": "🙂"},
]  # fmt: skip


@pytest.fixture(scope="module")
def served() -> Iterator[Process]:
    """One server for all of these tests: each uses names of its own."""
    with process(dashboard=False) as running:
        yield running


@pytest.fixture
def classic(served: Process) -> Iterator[Classic]:
    with Classic("127.0.0.1", served.port) as client:
        yield client


@pytest.mark.parametrize("obj", VALUES, ids=repr)
def test_values_round_trip_in_the_store_and_in_pubsub(classic: Classic, obj: Any) -> None:
    classic.map_set("k", obj)  # SPEC A4
    assert classic.map_get("k") == obj
    assert type(classic.map_get("k")) is type(obj)
    classic.sub("t/1")
    classic.pub("t/1", obj)
    assert classic.push() == ("t/1", obj)


def test_store_behaviour(classic: Classic) -> None:
    assert classic.map_get("absent") is None
    classic.map_set("user:1", {"name": "Max", "role": "admin"})
    assert classic.map_get("user:1") == {"name": "Max", "role": "admin"}
    classic.map_del("user:1")
    classic.map_del("user:1")
    assert classic.map_get("user:1") is None
    classic.map_set("blob", bytes(1024 * 1024))
    assert classic.map_get("blob") == bytes(1024 * 1024)


def test_store_options_are_checked(classic: Classic) -> None:
    classic.map_set("k", 1)
    with pytest.raises(Refused, match="colour"):
        classic.map_set("k", 2, colour="red")
    with pytest.raises(Refused, match="TTL"):
        classic.map_set("k", 2, ttl=-1)
    with pytest.raises(Refused, match="Invalid JSON options: "):
        classic.call(0x02, text("k") + text("{") + value(2))
    assert classic.map_get("k") == 1


def test_pubsub_wildcards_overlap_and_unsubscribe(classic: Classic) -> None:
    classic.sub("home/+/sw")
    classic.sub("home/#")
    classic.pub("home/kitchen/sw", "on")
    classic.pub("home", "parent")
    classic.pub("garden", "nobody")
    classic.unsub("home/#")
    classic.pub("home/attic", "nobody")
    classic.pub("home/attic/sw", "last")
    got = [classic.push() for _ in range(3)]
    assert got == [("home/kitchen/sw", "on"), ("home", "parent"), ("home/attic/sw", "last")]


def test_pubsub_refuses_wildcards_in_a_publish(classic: Classic) -> None:  # SPEC C1
    for topic in ("a/+", "a/#", "#"):
        with pytest.raises(Refused):
            classic.pub(topic, 1)
    with pytest.raises(Refused):
        classic.sub("a/#/b")


def test_pubsub_retained_values_reach_later_subscribers(classic: Classic) -> None:  # SPEC C3
    classic.pub("conf/a", {"v": 1}, retain=True)
    classic.pub("conf/a", {"v": 2}, retain=True)
    classic.pub("conf/gone", 1, retain=True)
    classic.pub("conf/gone", "", retain=True)
    classic.sub("conf/+")
    assert classic.push() == ("conf/a", {"v": 2})
    classic.pub("conf/z", "end")
    assert classic.push() == ("conf/z", "end")


def test_all_brokers_share_one_connection(classic: Classic) -> None:
    """The connection lives with its first broker; the others are relayed (DESIGN §1)."""
    classic.map_set("k", 1)
    classic.sub("all/#")
    classic.q_create("jobs")
    classic.s_create("log")
    classic.q_push("jobs", {"n": 1})
    assert classic.s_pub("log", "first") == 1
    classic.pub("all/x", "hello")
    [(job_id, job)] = classic.q_consume("jobs", batchSize=10, waitMs=0)
    assert job == {"n": 1}
    classic.q_ack("jobs", job_id)
    _, generation, consumer = classic.s_join("group", "log")
    assert classic.s_fetch("log", "group", consumer, generation, 10, 0) == [(1, "first")]
    classic.s_ack("log", "group", consumer, generation, 1)
    assert classic.push() == ("all/x", "hello")
    assert classic.map_get("k") == 1


@pytest.mark.parametrize("first", [0x03, 0x21])
def test_20000_pipelined_requests_arrive_in_order(served: Process, first: int) -> None:
    """SPEC A3, on the broker's own connection and on a relayed one."""
    with Classic("127.0.0.1", served.port) as client:
        client.call(first, text("warm/up") + (text("{}") + value(1) if first == 0x21 else b""))
        client.arrived.clear()
        rows = [(0x02, text("n") + text("") + value(n)) if n % 2 else (0x03, text("n"))
                for n in range(20_000)]  # fmt: skip
        frames = (
            struct.pack(">BBII", 1, op, 100 + n, len(payload)) + payload
            for n, (op, payload) in enumerate(rows)
        )
        client.sock.sendall(b"".join(frames))
        replies = [client.reply(100 + n) for n in range(20_000)]
        assert client.arrived == list(range(100, 20_100))
        assert replies[2::2] == [(3, value(n - 1)) for n in range(2, 20_000, 2)]


def test_replies_larger_than_the_socket_takes_arrive_whole(classic: Classic) -> None:
    """A long run is answered piece by piece; what the socket does not take must follow."""
    big = bytes(range(256)) * 400
    classic.map_set("big", big)
    get = text("big")
    frames = (struct.pack(">BBII", 1, 0x03, 1_000 + n, len(get)) + get for n in range(300))
    classic.sock.sendall(b"".join(frames))
    expected = (3, value(big))
    assert all(classic.reply(1_000 + n) == expected for n in range(300))


def test_unknown_opcodes_and_malformed_payloads_leave_the_connection_up(classic: Classic) -> None:
    with pytest.raises(Refused, match="Unknown opcode: 0xC5"):
        classic.call(0xC5)
    with pytest.raises(Refused, match="Unknown opcode: 0xEE"):
        classic.call(0xEE)
    for payload in (b"", b"\x00", text("k")[:-1], struct.pack(">I", 2**32 - 1), b"\0\0\0\1\xff"):
        with pytest.raises(Refused):
            classic.call(0x03, payload)
    assert classic.call(0x00, b"still here") == b"still here"


@pytest.mark.parametrize("malformed", [b"\x03{}", b"\x09x", b"\xff", b"\x01caf\xe9"])
def test_bytes_that_are_no_value_are_refused_and_not_stored(
    classic: Classic, malformed: bytes
) -> None:  # SPEC A9, PROTOCOL "value"
    none = text("{}")
    classic.call(0x10, text("odd") + none)
    classic.call(0x30, text("odd") + none)
    classic.sub("odd")
    heads = {0x02: text("odd") + none, 0x11: text("odd") + none, 0x21: text("odd") + none}
    for op, head in (heads | {0x31: text("odd")}).items():
        with pytest.raises(Refused, match=r"type byte|UTF-8"):
            classic.call(op, head + malformed)
    assert classic.map_get("odd") is None
    consumed = classic.call(0x12, text("odd") + text('{"waitMs": 0}'))
    assert consumed == struct.pack(">I", 0)
    classic.pub("odd", "fine")
    assert classic.push() == ("odd", "fine")
    assert classic.call(0x31, text("odd") + value("fine")) is not None
    classic.unsub("odd")
    classic.call(0x36, text("odd"))


def test_an_oversize_frame_is_refused_before_it_is_read_and_the_server_stays_up(
    classic: Classic, served: Process
) -> None:
    classic.sock.sendall(struct.pack(">BBII", 1, 0x02, 7, 2**32 - 1))
    status, data = classic.reply(7)
    assert status == ERR
    assert b"too large" in data
    with pytest.raises(ConnectionError):
        classic.reply(1)
    with Classic("127.0.0.1", served.port) as other:
        assert other.call(0x00, b"x") == b"x"


def test_random_bytes_close_only_their_own_connection(served: Process) -> None:
    with Classic("127.0.0.1", served.port) as bystander:
        bystander.map_set("k", "v")
        with socket.create_connection(("127.0.0.1", served.port), timeout=10) as sock:
            sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            while sock.recv(4096):
                pass
        assert bystander.map_get("k") == "v"


def test_a_frame_may_trickle_in_byte_by_byte(served: Process) -> None:
    with Classic("127.0.0.1", served.port) as client:
        payload = text("slow") + text("") + value("v")
        for byte in struct.pack(">BBII", 1, 0x02, 9, len(payload)) + payload:
            client.sock.sendall(bytes((byte,)))
        assert client.reply(9) == (OK, b"")
        assert client.map_get("slow") == "v"


@pytest.mark.parametrize("name", ["with space", "a+b,c", "größe-日本", "emoji 🎉", "..", "a:b:x"])
def test_names_are_what_that_server_takes(classic: Classic, served: Process, name: str) -> None:
    """SPEC R1: an application moves over with the names that it has."""
    classic.q_create(name)
    classic.q_push(name, "job")
    ((job_id, value),) = classic.q_consume(name, waitMs=0)
    assert value == "job"
    classic.q_ack(name, job_id)
    classic.call(0x30, text(name) + text("{}"))
    classic.call(0x31, text(name) + b"\x01record")
    joined = classic.call(0x33, text(name) + text(name))
    assert joined is not None
    floor, generation = struct.unpack_from(">QQ", joined)
    consumer = joined[20:].decode()
    member = text(name) + text(name) + text(consumer) + struct.pack(">Q", generation)
    fetched = classic.call(0x32, member + struct.pack(">II", 10, 0))
    assert fetched is not None
    assert fetched.endswith(b"\x01record")
    classic.call(0x34, member + struct.pack(">Q", floor + 1))
    with nexo.connect(served.url) as client:
        assert client.queue(name_of(name)).exists()
        assert client.stream(name_of(name)).exists()
        with pytest.raises(InvalidName):
            client.queue("with space").exists()
    classic.call(0x36, text(name))
    classic.call(0x15, text(name))


def test_deleting_a_queue_that_is_not_there_is_fine(classic: Classic) -> None:
    classic.call(0x15, text("never-there"))
    with pytest.raises(Refused, match=r"^Queue 'no such queue' not found\. Create it first\.$"):
        classic.q_push("no such queue", 1)


def test_the_variables_of_that_server_have_their_effect() -> None:  # SPEC R2
    settings = ServerSettings(
        classic_ttl_ms=60_000,
        classic_batch=2,
        classic_wait_ms=0,
        group_ack_wait_ms=1_234,
        group_max_deliveries=3,
        group_max_ack_pending=4,
    )
    with (
        server(**settings) as url,
        Classic("127.0.0.1", urlsplit(url).port or 0) as old,
        nexo.connect(url) as client,
    ):
        old.map_set("key", "value")
        assert 0 < (client.store.ttl("key") or 0) <= 60
        client.store.set("ours", "value")
        assert client.store.ttl("ours") == math.inf
        old.q_create("q")
        for n in range(3):
            old.q_push("q", n)
        assert len(old.q_consume("q")) == 2
        old.call(0x30, text("s") + text("{}"))
        old.call(0x33, text("g") + text("s"))
        (found,) = client.stream("s").groups()
        assert found.options["ack_wait_ms"] == 1_234
        assert (found.options["max_deliveries"], found.options["max_ack_pending"]) == (3, 4)
