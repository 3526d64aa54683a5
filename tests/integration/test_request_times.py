"""Brokers say how long requests took, by opcode, and what each connection has moved (SPEC K4)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import nexo
from nexo.model import Broker
from nexo.model.histogram import BOUNDS_S
from nexo.protocol.frames import HEADER, pack_str
from nexo.protocol.ops import Op
from nexo.protocol.values import decode_value
from nexo.testing import Server
from tests.raw_connection import RawConnection

WAIT_S = 30.0


class Raw(RawConnection):
    """A connection whose reads on the server's side are known: one per burst."""

    def value(self, op: int, payload: bytes) -> Any:
        return decode_value(self.ask(op, payload)[1])

    def times(self, broker: Broker) -> dict[str, Any]:
        found: dict[str, Any] = self.value(Op.STATUS, bytes((broker,)))["requests"]
        return found


@pytest.fixture
def raw(nexo_server: Server) -> Iterator[Raw]:
    connection = Raw(nexo_server.port)
    yield connection
    connection.close()


def counts(times: dict[str, Any]) -> dict[str, int]:
    return {op: sum(row["buckets"]) for op, row in times.items()}


def test_requests_of_one_read_are_counted_by_their_opcode(raw: Raw) -> None:
    get, put = (Op.MAP_GET, pack_str("k")), (Op.MAP_SET, pack_str("k") + pack_str("") + b"\x01v")
    raw.burst(*[put] * 3, *[get] * 400, put, *[get] * 2)
    for _ in range(406):
        raw.reply()
    times = raw.times(Broker.STORE)
    assert counts(times) == {"map_set": 4, "map_get": 402}
    assert times["map_get"]["sum_s"] > 0
    assert 0 < times["map_get"]["p50_ms"] <= times["map_get"]["p99_ms"]


def test_a_frame_larger_than_a_read_is_counted_once(raw: Raw) -> None:
    body = pack_str("k") + pack_str("") + b"\x00" + bytes(3_000_000)
    raw.burst((Op.MAP_SET, body))
    raw.reply()
    assert counts(raw.times(Broker.STORE)) == {"map_set": 1}


def test_a_request_that_waits_is_timed_until_its_reply(raw: Raw, client: nexo.Client) -> None:
    """A long poll that ends with nothing; pushes meanwhile are answered after their sync."""
    jobs, other = pack_str("jobs"), pack_str("other")
    raw.burst((Op.Q_CREATE, jobs + pack_str("")), (Op.Q_CREATE, other + pack_str("")))
    raw.reply(), raw.reply()
    poll = (Op.Q_CONSUME, jobs + pack_str('{"waitMs": 300}'))
    push = (Op.Q_PUSH, other + pack_str("") + b"\x01job")
    raw.burst(poll, push, push)
    for _ in range(3):
        raw.reply()
    times = raw.times(Broker.QUEUE)
    assert counts(times) == {"q_create": 2, "q_push": 2, "q_consume": 1}
    waited = next(at for at, count in enumerate(times["q_consume"]["buckets"]) if count)
    assert BOUNDS_S[waited] > 0.3
    assert times["q_consume"]["sum_s"] >= 0.299
    assert times["q_push"]["sum_s"] > 0


def test_a_long_poll_that_its_own_connection_ends_is_counted_once(raw: Raw) -> None:
    raw.burst((Op.Q_CREATE, pack_str("jobs") + pack_str("")))
    raw.reply()
    raw.burst((Op.Q_CONSUME, pack_str("jobs") + pack_str('{"waitMs": 60000}')))
    raw.burst((Op.Q_PUSH, pack_str("jobs") + pack_str("") + b"\x01job"))
    raw.reply(), raw.reply()
    raw.burst((Op.Q_CONSUME, pack_str("jobs") + pack_str('{"waitMs": 60000}')))
    cancelled = raw.asked.to_bytes(4, "big")
    raw.burst((Op.CANCEL, bytes((Broker.QUEUE,)) + cancelled))
    raw.reply()
    assert counts(raw.times(Broker.QUEUE)) == {"q_create": 1, "q_push": 1, "q_consume": 2}


def test_syncs_are_counted_by_how_long_they_took(client: nexo.Client, raw: Raw) -> None:
    queue = client.queue("jobs").create()
    for n in range(3):
        queue.push(n)
    disk = raw.value(Op.STATUS, bytes((Broker.QUEUE,)))["disk"]
    assert sum(disk["sync_times"]["buckets"]) == disk["syncs"] > 0


def test_a_connection_counts_its_requests_and_bytes(raw: Raw) -> None:
    raw.burst((Op.ECHO, b"x" * 100), (Op.MAP_GET, pack_str("nothing")))
    raw.reply(), raw.reply()
    sent, got, asked = raw.sent, raw.got, raw.asked
    (row,) = raw.value(Op.PEERS, bytes((Broker.STORE,)))
    assert (row["bytes_out"], row["requests"]) == (got, asked)
    assert row["bytes_in"] == sent
    (row,) = raw.value(Op.PEERS, bytes((Broker.STORE,)))
    assert row["requests"] == asked + 1
    assert row["bytes_in"] == sent + HEADER.size + 1
