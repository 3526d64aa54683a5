"""No client's requests, and no replies to many, keep others waiting (findings T13 and T14)."""

from __future__ import annotations

import threading
from contextlib import ExitStack, closing

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
    """Each turn of so short a time runs one request: halfway, nobody is done (SPEC R1)."""
    monkeypatch.setattr(session, "TURN_NS", 0)
    with closing(Server()) as running, ExitStack() as stack:
        running.start()
        assert running._loop is not None
        clients = {who: stack.enter_context(closing(RawConnection(running.port))) for who in "ab"}
        for client in clients.values():
            client.ask(Op.ECHO, b"")
        busy = threading.Event()
        running._loop.call_soon_threadsafe(busy.wait)
        for who, client in clients.items():
            mine = [(Op.Q_DECLARE, pack(Declare(f"{who}{number}", {}))) for number in range(300)]
            others_last = Op.Q_INFO, pack(Look("ba"["ab".index(who)] + "299"))
            client.burst(*mine[:150], others_last, *mine[150:])
        busy.set()
        for who, client in clients.items():
            replies = [client.reply() for _ in range(301)]
            made = [reply for reply in replies if b"not found" not in reply]
            assert len(made) == 300, "the other's requests have all run before"
            names = [unpack(QueueInfo, reply).name for reply in made]
            assert names == [f"{who}{number}" for number in range(300)]
