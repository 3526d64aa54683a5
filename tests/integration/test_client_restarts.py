"""Restarts and several servers, as clients see them (SPEC O3, N5; finding F11)."""

from __future__ import annotations

import asyncio
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import nexo
from nexo import testing
from nexo.client.address import parse_url
from nexo.errors import ConnectionLost, ShuttingDown
from nexo.model import Broker
from nexo.protocol.frames import FrameKind, Status, unpack_error
from nexo.protocol.hello import Hello, encode_hello
from nexo.protocol.ops import Op
from nexo.protocol.queue import PopJobs, encode
from nexo.protocol.values import decode_value
from tests.raw_connection import RawConnection
from tests.timing import wait_until

DATA = Status.DATA


def refused() -> str:
    """A place where nobody listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{listener.getsockname()[1]}"


def restart(server: testing.Server) -> None:
    server.stop()
    server.start()


def place(url: str) -> str:
    return url.removeprefix("nexo://")


async def test_reads_wait_through_a_restart(nexo_server: testing.Server) -> None:
    """Requests that change nothing are sent again; none of them fails."""
    async with nexo.AsyncClient(nexo_server.url) as client:
        stream = await client.stream("s").create()
        queue = await client.queue("q").create()
        await client.store.set("k", 1)
        restarted = threading.Event()

        async def look() -> int:
            looks = 0
            while not restarted.is_set():
                await asyncio.gather(
                    client.store.get("k"), client.store.exists("k"), queue.info(), stream.info(),
                    client.queues(), client.streams(), client.ping(),
                )  # fmt: skip
                looks += 1
            return looks

        looking = asyncio.create_task(look())
        await asyncio.sleep(0)
        try:
            await asyncio.to_thread(restart, nexo_server)
        finally:
            restarted.set()
        assert await looking > 0
        assert (await queue.info()).name == "q"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_reads_of_threads_wait_through_a_restart(nexo_server: testing.Server) -> None:
    with nexo.Client(nexo_server.url) as client, ThreadPoolExecutor(4) as threads:
        client.queue("q").create()
        # The embedded server may accept while it stops, and leave those sockets to the collector.
        restarted = threading.Event()

        def look() -> int:
            looks = 0
            while not restarted.is_set():
                client.store.get("k")
                client.queue("q").info()
                looks += 1
            return looks

        looking = [threads.submit(look) for _ in range(4)]
        try:
            restart(nexo_server)
        finally:
            restarted.set()
        assert all(each.result() >= 0 for each in looking)


async def test_a_broker_not_asked_before_is_waited_for_alike(
    nexo_server: testing.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server was reached through another broker's connection, so it is being restarted."""
    async with nexo.AsyncClient(nexo_server.url) as client:
        await client.store.set("k", 1)
        monkeypatch.setattr("nexo.client.address._FIRST_WAIT_S", 0.0)
        await asyncio.to_thread(nexo_server.stop)
        creating = asyncio.create_task(client.queue("q").create())
        await asyncio.sleep(0)
        await asyncio.to_thread(nexo_server.start)
        await creating
    with nexo.Client(nexo_server.url) as client, ThreadPoolExecutor(1) as threads:
        client.store.set("k", 1)
        nexo_server.stop()
        looking = threads.submit(client.queue("q").exists)
        nexo_server.start()
        looking.result()


async def test_what_may_have_run_is_reported_as_such(nexo_server: testing.Server) -> None:
    async with nexo.AsyncClient(nexo_server.url) as client:
        await client.queue("q").create()
        popping = client.link(Broker.QUEUE).call(Op.Q_POP, encode(PopJobs("q", wait_ms=60_000)))
        await client.ping(Broker.QUEUE)
        await asyncio.to_thread(nexo_server.crash)
        with pytest.raises(ConnectionLost, match="may or may not have run"):
            await popping


async def test_what_a_lost_connection_had_taken_is_taken_again(
    nexo_server: testing.Server,
) -> None:
    """Leases end with their connection, so a pop or a fetch may be repeated (finding T16)."""
    async with nexo.AsyncClient(nexo_server.url) as client:
        queue, stream = await client.queue("q").create(), await client.stream("s").create()
        reader = await stream.consume("g").__aenter__()
        popping = asyncio.create_task(queue.pop(wait=60))
        fetching = asyncio.create_task(reader.fetch(wait=60))
        await client.ping(Broker.QUEUE)
        await client.ping(Broker.STREAM)
        await asyncio.to_thread(nexo_server.crash)
        await asyncio.to_thread(nexo_server.start)
        await queue.push("job")
        await stream.publish("record")
        assert [(await popping)[0].value, (await fetching)[0].value] == ["job", "record"]


def test_what_a_threads_lost_connection_had_taken_is_taken_again(
    nexo_server: testing.Server,
) -> None:
    with nexo.Client(nexo_server.url) as client, ThreadPoolExecutor(2) as threads:
        queue, stream = client.queue("q").create(), client.stream("s").create()
        reader = stream.consume("g").__enter__()
        popping = threads.submit(queue.pop, wait=60)
        fetching = threads.submit(reader.fetch, wait=60)
        wait_until(lambda: waiting(nexo_server) == 2)
        nexo_server.crash()
        nexo_server.start()
        with nexo.Client(nexo_server.url) as other:
            other.queue("q").push("job")
            other.stream("s").publish("record")
        assert [popping.result()[0].value, fetching.result()[0].value] == ["job", "record"]


def waiting(server: testing.Server) -> int:
    """How many requests wait for their answers, beside the one that asks."""
    with nexo.Client(server.url) as client:
        reply = client.link(Broker.STORE).call(Op.PEERS, bytes((Broker.STORE,)))
        return sum(int(each["in_flight"]) for each in decode_value(reply or b"")) - 1


@pytest.mark.parametrize("resends", [True, False])
def test_a_stopping_server_says_what_it_has_not_run(
    nexo_server: testing.Server, resends: bool
) -> None:
    """All that it ran is answered; GOODBYE says so, to those who know it (finding T9)."""
    with nexo.Client(nexo_server.url) as client:
        client.queue("q").create()
    raw = RawConnection(nexo_server.port)
    try:
        assert raw.ask(Op.HELLO, encode_hello(Broker.QUEUE, Hello(resends=resends)))[0] == DATA
        raw.burst((Op.Q_POP, encode(PopJobs("q", wait_ms=60_000))), (Op.ECHO, b"now"))
        assert raw.frame() == (FrameKind.RESPONSE, DATA, 3, b"now")
        nexo_server.stop()
        kind, status, request_id, payload = raw.frame()
        assert (kind, request_id) == (FrameKind.RESPONSE, 2)
        if resends:
            assert (status, unpack_error(payload).code) == (Status.ERR_CODED, ShuttingDown.code)
            assert raw.frame() == (FrameKind.GOODBYE, 0, 0, b"")
        else:
            assert status == Status.NULL
        with pytest.raises(ConnectionResetError):
            raw.frame()
    finally:
        raw.close()


def test_a_stop_lets_workers_finish_what_they_hold(nexo_server: testing.Server) -> None:
    """No more is lent meanwhile, and what comes then waits for the next server."""
    with nexo.Client(nexo_server.url) as client, ThreadPoolExecutor(2) as threads:
        queue = client.queue("q").create()
        queue.push_many(["one", "two"])
        client.stream("s").create()
        held = queue.pop()
        stopping = threads.submit(nexo_server.stop)
        popping = threads.submit(queue.pop, wait=60)
        client.stream("s").publish("made of it")
        held.ack()
        stopping.result()
        nexo_server.start()
        assert [job.value for job in popping.result()] == ["two"]


async def test_what_was_not_sent_is_reported_as_such() -> None:
    async with nexo.AsyncClient(f"nexo://{refused()}", down_wait=0.01) as client:
        with pytest.raises(ConnectionLost, match="was not sent"):
            await client.queue("q").push(1)


def test_a_client_that_may_not_wait_fails_at_once() -> None:
    with (
        nexo.Client(f"nexo://{refused()}?while_down=fail") as client,
        pytest.raises(ConnectionLost),
    ):
        client.store.get("k")


async def test_the_first_server_that_answers_is_used(url: str) -> None:
    """SPEC N5: several addresses in one URL."""
    several = f"nexo://{refused()},{place(url)}"
    async with nexo.AsyncClient(several) as client:
        await client.store.set("k", 1)
    with nexo.Client(several) as sync, sync.pubsub.subscribe("t"):
        assert sync.store.get("k") == 1


def test_addresses_are_read() -> None:
    address = parse_url("nexo://ann:secret@a,b:7655,[::1]:7656?timeout=2", ping="1m")
    assert address.places == (("a", 7654), ("b", 7655), ("::1", 7656))
    assert (address.user, address.password, address.timeout_s, address.ping_s) == (
        "ann", "secret", 2.0, 60.0,
    )  # fmt: skip
    with pytest.raises(nexo.errors.InvalidInput, match="not a Nexo URL"):
        parse_url("nexo://a,,b")
