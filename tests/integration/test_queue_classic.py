"""The queue as the existing client uses it: opcodes 0x10 to 0x1A, no HELLO (SPEC A9)."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from nexo.testing import Server
from tests.integration.classic import Classic, Refused, text


@pytest.fixture
def old(nexo_server: Server) -> Iterator[Classic]:
    with Classic("127.0.0.1", nexo_server.port) as classic:
        yield classic


def values(jobs: list[tuple[bytes, Any]]) -> list[Any]:
    return [value for _, value in jobs]


def test_jobs_come_by_priority_then_age(old: Classic) -> None:
    old.q_create("q")
    old.q_push("q", "low", priority=1)
    old.q_push("q", {"n": 1}, priority=9)
    old.q_push("q", b"raw", priority=1)
    jobs = old.q_consume("q", batchSize=10, waitMs=0)
    assert values(jobs) == [{"n": 1}, "low", b"raw"]
    for job_id, _ in jobs:
        old.q_ack("q", job_id)
    assert old.q_consume("q", batchSize=10, waitMs=0) == []


def test_create_is_idempotent_and_keeps_the_first_options(old: Classic) -> None:
    old.q_create("q", visibilityTimeoutMs=30, maxRetries=9)
    old.q_create("q", visibilityTimeoutMs=600_000)
    old.q_push("q", 1)
    assert values(old.q_consume("q", waitMs=0)) == [1]
    assert values(old.q_consume("q", waitMs=5_000)) == [1]


def test_a_delayed_job_waits(old: Classic) -> None:
    old.q_create("q")
    old.q_push("q", "later", delayMs=80)
    assert old.q_consume("q", batchSize=1, waitMs=0) == []
    assert values(old.q_consume("q", batchSize=1, waitMs=5_000)) == ["later"]


def test_a_push_wakes_a_waiting_consume(old: Classic, nexo_server: Server) -> None:
    old.q_create("q")

    def push() -> None:
        with Classic("127.0.0.1", nexo_server.port) as other:
            other.q_push("q", "hello")

    threading.Timer(0.05, push).start()
    start = time.monotonic()
    assert values(old.q_consume("q", waitMs=60_000)) == ["hello"]
    assert time.monotonic() - start < 20


@pytest.mark.parametrize(("max_retries", "deliveries"), [(0, 1), (1, 1), (3, 3)])
def test_max_retries_counts_deliveries_here(
    old: Classic, max_retries: int, deliveries: int
) -> None:
    old.q_create("q", maxRetries=max_retries)
    old.q_push("q", "bad")
    for attempt in range(deliveries):
        ((job_id, _),) = old.q_consume("q", waitMs=0)
        old.q_nack("q", job_id, f"no {attempt}")
    assert old.q_consume("q", waitMs=0) == []
    total, found = old.q_peek_dlq("q")
    assert (total, found) == (1, [(job_id, "bad", deliveries, f"no {deliveries - 1}")])


def test_jobs_given_back_unstarted_are_not_counted(old: Classic) -> None:
    old.q_create("q", maxRetries=1)
    old.q_push("q", "a")
    for _ in range(3):
        ((job_id, _),) = old.q_consume("q", waitMs=0)
        old.q_nack("q", job_id, "Consumer stopped")
    assert old.q_peek_dlq("q") == (0, [])


def test_dead_letters_are_peeked_newest_first_moved_deleted_and_purged(old: Classic) -> None:
    old.q_create("q", maxRetries=1)
    for n in range(4):
        old.q_push("q", n)
    for job_id, _ in old.q_consume("q", waitMs=0):
        old.q_nack("q", job_id, "no")
    total, found = old.q_peek_dlq("q", 2, 1)
    assert (total, [value for _, value, *_ in found]) == (4, [2, 1])
    moved, removed = found[0][0], found[1][0]
    assert old.call(0x17, text("q") + moved) == b"\x01"
    assert old.call(0x17, text("q") + moved) == b"\x00"
    assert values(old.q_consume("q", waitMs=0)) == [2]
    assert old.call(0x18, text("q") + removed) == b"\x01"
    assert old.call(0x18, text("q") + removed) == b"\x00"
    assert old.call(0x19, text("q")) == struct.pack(">I", 2)
    assert old.q_peek_dlq("q") == (0, [])


def test_the_error_texts_are_the_ones_it_looks_for(old: Classic) -> None:
    for op in (0x11, 0x12):
        with pytest.raises(Refused, match=r"^Queue 'x' not found\. Create it first\.$"):
            old.call(op, text("x") + text("{}") + b"\x01v")
    for op in (0x14, 0x19):
        with pytest.raises(Refused, match=r"^Queue not found$"):
            old.call(op, text("x"))
    old.q_create("q")
    with pytest.raises(Refused, match=r"^ACK failed$"):
        old.q_ack("q", bytes(16))
    with pytest.raises(Refused, match=r"^NACK failed$"):
        old.q_nack("q", bytes(16), "no")
    for options in ("{", '{"batchsize": 1}', '{"batchSize": "x"}'):
        with pytest.raises(Refused, match=r"^Invalid JSON options: "):
            old.call(0x12, text("q") + text(options))
    with pytest.raises(Refused, match="batch"):
        old.q_consume("q", batchSize=10**12)
    with pytest.raises(Refused, match="priority"):
        old.q_push("q", 1, priority=300)


def test_a_job_is_acked_only_by_the_connection_that_holds_it(
    old: Classic, nexo_server: Server
) -> None:
    old.q_create("q")
    old.q_push("q", "a")
    ((job_id, _),) = old.q_consume("q", waitMs=0)
    with Classic("127.0.0.1", nexo_server.port) as other, pytest.raises(Refused, match="ACK"):
        other.q_ack("q", job_id)
    old.q_ack("q", job_id)
    with pytest.raises(Refused, match="ACK failed"):
        old.q_ack("q", job_id)


def test_queues_exist_until_deleted(old: Classic) -> None:
    old.q_create("q")
    assert old.call(0x14, text("q")) == b""
    assert old.call(0x15, text("q")) == b""
    with pytest.raises(Refused):
        old.call(0x14, text("q"))
