"""No client's requests, and no replies to many, keep others waiting (findings T13 and T14)."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest

import nexo
from nexo.dialects.nexo import session, state
from nexo.model.queue import QueueInfo
from nexo.protocol.messages import pack, unpack
from nexo.protocol.ops import Op
from nexo.protocol.queue import Declare, Look
from nexo.testing import Server
from tests.raw_connection import RawConnection

MESSAGE = b"x" * 300_000


async def test_messages_that_are_written_in_slices_arrive_whole_and_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(state, "FLUSHED_BYTES", 100_000)
    async with (
        nexo.testing.server_async(write_buffer_bytes=500_000) as url,
        nexo.AsyncClient(url) as publisher,
    ):
        readers = [nexo.AsyncClient(url) for _ in range(12)]
        subscriptions = [await reader.pubsub.subscribe("t", type_=bytes) for reader in readers]
        for number in range(20):
            await publisher.pubsub.publish("t", MESSAGE + b"%d" % number)
        for subscription in subscriptions:
            got = [(await anext(subscription)).value for _ in range(20)]
            assert got == [MESSAGE + b"%d" % number for number in range(20)]
        for reader in readers:
            await reader.close()


def test_requests_of_one_read_run_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each turn of so short a time runs one request; all are answered, in order."""
    monkeypatch.setattr(session, "TURN_NS", 0)
    names = [f"q{number:03}" for number in range(300)]
    with closing(Server()) as running:
        running.start()
        with (
            closing(RawConnection(running.port)) as one,
            closing(RawConnection(running.port)) as two,
        ):
            one.ask(Op.ECHO, b"")
            two.ask(Op.ECHO, b"")
            busy = threading.Event()
            assert running._loop is not None
            running._loop.call_soon_threadsafe(busy.wait)
            one.burst(*[(Op.Q_DECLARE, pack(Declare(name, {}))) for name in names])
            two.burst((Op.Q_INFO, pack(Look(names[-1]))))
            busy.set()
            assert b"not found" in two.reply(), "the other was served before all of them had run"
            replies = [unpack(QueueInfo, one.reply()) for _ in names]
            assert [info.name for info in replies] == names
