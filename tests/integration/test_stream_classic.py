"""The existing client's stream commands, byte for byte (SPEC A9)."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator

import pytest

import nexo
from nexo.testing import Server
from tests.integration.classic import DATA, Classic, Refused, text, unvalue, value

CREATE, PUB, FETCH, JOIN, ACK, EXISTS, DELETE, NACK, SEEK, LEAVE = range(0x30, 0x3A)


class Streams:
    """Commands as the opcode table has them."""

    def __init__(self, classic: Classic) -> None:
        self.classic = classic

    def ask(self, op: int, payload: bytes) -> bytes:
        return self.classic.call(op, payload) or b""

    def publish(self, name: str, obj: object) -> int:
        return int.from_bytes(self.ask(PUB, text(name) + value(obj)), "big")

    def join(self, group: str, name: str) -> tuple[int, int, str]:
        reply = self.ask(JOIN, text(group) + text(name))
        floor, generation, size = struct.unpack_from(">QQI", reply)
        assert len(reply) == 20 + size
        return floor, generation, reply[20:].decode()

    def fetch(
        self, name: str, group: str, member: tuple[int, int, str], limit: int = 10, wait: int = 0
    ) -> list[tuple[int, object]]:
        head = text(name) + text(group) + text(member[2])
        reply = self.ask(FETCH, head + struct.pack(">QII", member[1], limit, wait))
        (count,) = struct.unpack_from(">I", reply)
        at, found = 4, []
        for _ in range(count):
            sequence, _, size = struct.unpack_from(">QQI", reply, at)
            found.append((sequence, unvalue(reply[at + 20 : at + 20 + size])))
            at += 20 + size
        assert at == len(reply)
        return found

    def settle(
        self, op: int, name: str, group: str, member: tuple[int, int, str], *sequence: int
    ) -> None:
        head = text(name) + text(group) + text(member[2])
        self.ask(op, head + struct.pack(f">Q{len(sequence)}Q", member[1], *sequence))


@pytest.fixture
def streams(nexo_server: Server) -> Iterator[Streams]:
    with Classic("127.0.0.1", nexo_server.port) as classic:
        yield Streams(classic)


def test_sequences_start_at_1_and_values_come_back(streams: Streams) -> None:
    streams.ask(CREATE, text("s") + text('{"retention":{"maxAgeMs":1000000}}'))
    streams.ask(CREATE, text("s") + text("{}"))
    sent = [{"a": 1}, "text", b"raw", None]
    assert [streams.publish("s", obj) for obj in sent] == [1, 2, 3, 4]
    me = streams.join("g", "s")
    assert me[:2] == (0, 1)
    assert streams.fetch("s", "g", me) == list(enumerate(sent, 1))


def test_acks_nacks_and_seek(streams: Streams) -> None:
    streams.ask(CREATE, text("s") + text(""))
    for i in range(3):
        streams.publish("s", i)
    me = streams.join("g", "s")
    streams.fetch("s", "g", me)
    streams.settle(ACK, "s", "g", me, 1)
    streams.settle(NACK, "s", "g", me, 2)
    assert streams.fetch("s", "g", me) == [(2, 1)]
    with pytest.raises(Refused, match=r"^seq 1 not pending$"):
        streams.settle(ACK, "s", "g", me, 1)
    streams.ask(SEEK, text("s") + text("g") + b"\x00")
    with pytest.raises(Refused, match=r"^FENCED$"):
        streams.settle(ACK, "s", "g", me, 3)
    with pytest.raises(Refused, match=r"^FENCED$"):
        streams.fetch("s", "g", me)
    me = streams.join("g", "s")
    again = streams.fetch("s", "g", me) + streams.fetch("s", "g", me)
    assert [number for number, _ in again] == [1, 2, 3]  # the member from before has a share
    streams.settle(LEAVE, "s", "g", me)
    with pytest.raises(Refused, match=r"^NOT_MEMBER$"):
        streams.fetch("s", "g", me)


def test_a_stream_that_is_not_there_may_be_deleted(streams: Streams) -> None:
    """As on the server that this client was made for."""
    for _ in range(2):
        streams.ask(DELETE, text("s"))
    with pytest.raises(Refused, match=r"^Stream not found$"):
        streams.ask(EXISTS, text("s"))


@pytest.mark.parametrize("target", [2, 9, 255])
def test_a_seek_to_an_unknown_target_moves_nothing(streams: Streams, target: int) -> None:
    streams.ask(CREATE, text("s") + text("{}"))
    streams.publish("s", "kept")
    member = streams.join("g", "s")
    with pytest.raises(Refused, match=f"S_SEEK to {target}"):
        streams.ask(SEEK, text("s") + text("g") + bytes((target,)))
    assert streams.fetch("s", "g", member) == [(1, "kept")]


def test_the_error_texts_are_the_protocols(streams: Streams) -> None:
    with pytest.raises(Refused, match=r"^Stream not found$"):
        streams.ask(EXISTS, text("s"))
    with pytest.raises(Refused, match=r"^Topic not found$"):
        streams.publish("s", 1)
    with pytest.raises(Refused, match=r"^Invalid JSON options: "):
        streams.ask(CREATE, text("s") + text('{"colour":1}'))
    streams.ask(CREATE, text("s") + text("{}"))
    streams.ask(EXISTS, text("s"))
    with pytest.raises(Refused, match=r"^Group not found$"):
        streams.fetch("s", "g", (0, 1, "me"))


def test_a_waiting_fetch_is_answered_by_a_publish(streams: Streams, nexo_server: Server) -> None:
    streams.ask(CREATE, text("s") + text("{}"))
    me = streams.join("g", "s")
    head = text("s") + text("g") + text(me[2]) + struct.pack(">QII", me[1], 10, 5_000)
    waiting = streams.classic.send(FETCH, head)
    with Classic("127.0.0.1", nexo_server.port) as other:
        assert Streams(other).publish("s", "x") == 1
    _, reply = streams.classic.reply(waiting)
    assert struct.unpack_from(">I", reply) == (1,)


def test_streams_of_several_partitions_keep_sequences_apart(
    streams: Streams, nexo_server: Server
) -> None:
    with nexo.Client(nexo_server.url) as client:
        client.stream("wide").create(partitions=3)
    sequences = [streams.publish("wide", i) for i in range(9)]
    assert len(set(sequences)) == 9
    me = streams.join("g", "wide")
    got = streams.fetch("wide", "g", me, 100)
    assert sorted(number for number, _ in got) == sorted(sequences)
    for number, _ in got:
        streams.settle(ACK, "wide", "g", me, number)
    assert streams.fetch("wide", "g", me) == []


def test_a_leave_answers_the_fetch_that_waits(streams: Streams) -> None:
    """Finding F15: `stop()` of the existing client returns in well under 2 s."""
    streams.ask(CREATE, text("s") + text(""))
    me = streams.join("g", "s")
    names = text("s") + text("g") + text(me[2])
    classic = streams.classic
    waiting = classic.send(FETCH, names + struct.pack(">QII", me[1], 10, 20_000))
    began = time.monotonic()
    classic.call(LEAVE, names + struct.pack(">Q", me[1]))
    assert classic.reply(waiting) == (DATA, bytes(4))
    assert time.monotonic() - began < 10, "long before the fetch's own 20 s"
