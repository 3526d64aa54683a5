"""Limits on what one client, and all together, may take (SPEC A11, I7; MEASURE, faults)."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Unpack

import pytest

import nexo
from nexo.config.keywords import ServerSettings
from nexo.errors import InvalidName, NexoError
from nexo.model import Broker
from nexo.protocol import queue, stream
from nexo.protocol.frames import HEADER, FrameKind, Status, frame, pack_str
from nexo.protocol.hello import Hello, encode_hello
from nexo.protocol.ops import Op
from nexo.protocol.values import decode_value
from nexo.testing import Process, Server
from tests.processes import pids
from tests.raw_connection import RawConnection
from tests.timing import wait_until

WAIT_S = 20.0
SOAK = bool(os.environ.get("SOAK"))
IDLE_CONNECTIONS = 10_000 if SOAK else 1_000
CHURN, CHURN_RATE = (30_000, 1_000) if SOAK else (1_000, 1_000)
"""How many connections come and go, and at most how many in a second."""


class Tight:
    """An embedded server with small limits."""

    def __init__(self, folder: Path, **settings: Unpack[ServerSettings]) -> None:
        self.server = Server(data_dir=folder, **settings)
        self.server.start()

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.server.port), timeout=WAIT_S)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Tight]]:
    started: list[Tight] = []

    def make(**settings: Unpack[ServerSettings]) -> Tight:
        started.append(Tight(tmp_path / "nexo", **settings))
        return started[-1]

    yield make
    for one in started:
        one.server.close()


def replies(sock: socket.socket, count: int) -> list[tuple[int, int, bytes]]:
    """``status, id, payload`` of the next responses."""
    found: list[tuple[int, int, bytes]] = []
    buffer = b""
    while len(found) < count:
        chunk = sock.recv(65_536)
        if not chunk:
            raise ConnectionResetError
        buffer += chunk
        while len(buffer) >= HEADER.size:
            kind, meta, request_id, size = HEADER.unpack_from(buffer)
            if len(buffer) < HEADER.size + size:
                break
            if kind == FrameKind.RESPONSE:
                found.append((meta, request_id, buffer[HEADER.size : HEADER.size + size]))
            buffer = buffer[HEADER.size + size :]
    return found


def ended(sock: socket.socket) -> bool:
    """Whether the server closes the connection; whatever it says before is read."""
    try:
        while sock.recv(65_536):
            pass
    except ConnectionResetError:
        return True
    return True


def hello(broker: Broker) -> bytes:
    return frame(FrameKind.REQUEST, Op.HELLO, 0, encode_hello(broker, Hello("test")))


# -- counts -------------------------------------------------------------------------


def test_connections_beyond_the_limit_are_told_so_and_closed(start: Callable[..., Tight]) -> None:
    tight = start(max_connections=3)
    kept = [tight.connect() for _ in range(3)]
    for sock in kept:
        sock.sendall(frame(FrameKind.REQUEST, Op.ECHO, 1, b"hi"))
        assert replies(sock, 1) == [(Status.DATA, 1, b"hi")]
    with tight.connect() as late:
        late.sendall(frame(FrameKind.REQUEST, Op.ECHO, 1, b"hi"))
        ((status, _, payload),) = replies(late, 1)
        assert status == Status.ERR
        assert b"3 connections already" in payload
        assert ended(late)
    kept.pop().close()

    def room_again() -> bool:
        with tight.connect() as sock, contextlib.suppress(OSError):
            sock.sendall(frame(FrameKind.REQUEST, Op.ECHO, 1, b"hi"))
            return replies(sock, 1)[0][0] == Status.DATA
        return False

    wait_until(room_again, what="a freed place is given again")
    for sock in kept:
        sock.close()


def test_requests_in_flight_are_limited_and_the_limit_frees_itself(
    start: Callable[..., Tight],
) -> None:
    tight = start(max_in_flight=5)
    with nexo.connect(tight.server.url) as client:
        client.queue("q").create()
    with tight.connect() as sock:
        pop = queue.encode(queue.PopJobs("q", 1, 60_000))
        sock.sendall(hello(Broker.QUEUE))
        sock.sendall(b"".join(frame(FrameKind.REQUEST, Op.Q_POP, n, pop) for n in range(1, 7)))
        welcome, refused = replies(sock, 2)
        assert welcome[:2] == (Status.DATA, 0)
        assert refused[:2] == (Status.ERR_CODED, 6)
        assert refused[2].startswith(pack_str("OVERLOADED"))
        cancel = b"".join(
            frame(FrameKind.REQUEST, Op.CANCEL, 0, bytes((Broker.QUEUE,)) + struct.pack(">I", n))
            for n in range(1, 3)
        )
        sock.sendall(cancel)
        assert sorted(row[1] for row in replies(sock, 2)) == [1, 2], "a cancel is never refused"
        sock.sendall(frame(FrameKind.REQUEST, Op.ECHO, 9, b"hi"))
        assert replies(sock, 1) == [(Status.DATA, 9, b"hi")]


def test_limits_are_visible(start: Callable[..., Tight]) -> None:
    tight = start(max_connections=77, max_in_flight=1_000)
    with tight.connect() as sock:
        sock.sendall(frame(FrameKind.REQUEST, Op.STATUS, 1, bytes((Broker.STORE,))))
        ((_, _, payload),) = replies(sock, 1)
    limits = decode_value(payload)["limits"]
    assert limits["max_connections"] == 77
    assert limits["max_in_flight"] == 1_000
    assert limits["turned_away"] == limits["slow_readers"] == 0


# -- frames -------------------------------------------------------------------------


@pytest.mark.parametrize("length", [11 * 1024**2, 2**31, 2**32 - 1])
def test_a_huge_frame_is_refused_before_it_is_read(
    start: Callable[..., Tight], length: int
) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with start().connect() as sock:
        sock.sendall(HEADER.pack(FrameKind.REQUEST, Op.ECHO, 1, length))
        ((status, _, payload),) = replies(sock, 1)
        assert status == Status.ERR
        assert b"too large" in payload
        assert ended(sock)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 * 1024


def test_random_bytes_move_nobody(start: Callable[..., Tight]) -> None:
    tight, source = start(), random.Random(1)
    with nexo.connect(tight.server.url) as client:
        client.store.set("k", 1)
        for _ in range(100):
            with tight.connect() as sock, contextlib.suppress(OSError):
                sock.sendall(source.randbytes(source.randrange(1, 2_000)))
                sock.shutdown(socket.SHUT_WR)
                ended(sock)
        assert client.store.get("k") == 1


# -- silent and slow peers ----------------------------------------------------------


def test_a_frame_that_stops_halfway_ends_the_connection(start: Callable[..., Tight]) -> None:
    with start(idle_ping_ms=100).connect() as sock:
        sock.sendall(HEADER.pack(FrameKind.REQUEST, Op.ECHO, 1, 100) + b"half")
        assert ended(sock)


def test_a_half_open_peer_is_pinged_and_dropped(start: Callable[..., Tight]) -> None:
    with start(idle_ping_ms=100).connect() as sock:
        sock.sendall(hello(Broker.STORE))
        assert ended(sock), "the ping is never answered"


def test_an_idle_peer_that_answers_pings_stays(start: Callable[..., Tight]) -> None:
    tight = start(idle_ping_ms=700)
    with tight.connect() as sock:
        sock.sendall(hello(Broker.STORE))
        replies(sock, 1)
        for _ in range(3):
            while HEADER.unpack(sock.recv(HEADER.size))[0] != FrameKind.PING:
                pass
            sock.sendall(frame(FrameKind.PONG, 0, 0))
        sock.sendall(frame(FrameKind.REQUEST, Op.ECHO, 1, b"here"))
        assert replies(sock, 1)[0][2] == b"here"


def test_a_sync_client_that_lay_idle_for_long_just_goes_on(start: Callable[..., Tight]) -> None:
    """It has no thread to answer pings with, so the server has dropped it meanwhile."""
    tight = start(idle_ping_ms=50)
    with nexo.connect(tight.server.url) as client:
        client.store.set("k", 1)
        with tight.connect() as other:
            other.sendall(hello(Broker.STORE))
            assert ended(other), "so is the client by now, as it has been silent for longer"
        assert client.store.get("k") == 1


def test_a_peer_that_never_reads_its_replies_is_read_no_further_and_dropped(
    start: Callable[..., Tight],
) -> None:
    tight = start(idle_ping_ms=1_500, write_buffer_bytes=64 * 1024)
    with nexo.connect(tight.server.url) as client, tight.connect() as slow:
        slow.settimeout(0.5)
        request = frame(FrameKind.REQUEST, Op.ECHO, 1, b"x" * 60_000)
        sent = 0
        with contextlib.suppress(OSError):
            while sent < 1_000:
                slow.sendall(request)
                sent += 1
        assert sent < 1_000, "the server stopped reading"
        assert slow_readers(client) == 1
        client.store.set("k", 1)
        wait_until(lambda: slow_readers(client) == 0, what="it stays after twice the idle time")
        slow.settimeout(WAIT_S)
        assert ended(slow)


@pytest.mark.parametrize("polling", [False, True], ids=["alone", "beside a long poll"])
def test_requests_that_came_together_wait_while_their_replies_are_not_read(
    start: Callable[..., Tight], polling: bool
) -> None:
    """SPEC A3, C4: a few bytes ask for much, which is not made before it can leave."""
    tight = start(write_buffer_bytes=64 * 1024)
    slow = RawConnection(tight.server.port)
    with nexo.connect(tight.server.url) as client:
        client.stream("s").create()
        client.stream("s").publish(b"x" * 500_000)
        assert slow.ask(Op.HELLO, encode_hello(Broker.STREAM, Hello("slow")))[0] == Status.DATA
        if polling:
            slow.burst((Op.S_READ, stream.pack(stream.Read("s", 0, 1, 1, 60_000))))
        big = stream.pack(stream.Read("s", 0, 0, 1_000_000))
        slow.burst(*[(Op.S_READ, big), (Op.ECHO, b"between")] * 200)
        wait_until(lambda: slow_readers(client, Broker.STREAM) == 1, what="it reads nothing")
        assert unsent_bytes(client, "slow") < 4 * 1024**2
        for _ in range(200):
            assert len(slow.reply()) > 500_000
            assert slow.reply() == b"between"
        wait_until(lambda: slow_readers(client, Broker.STREAM) == 0, what="it has caught up")
        assert slow.ask(Op.ECHO, b"after") == (Status.DATA, b"after")
    slow.close()


def test_a_server_stops_without_those_who_do_not_read(start: Callable[..., Tight]) -> None:
    """SPEC A7, K2: nothing is left open, which would be a warning or worse."""
    tight = start(write_buffer_bytes=64 * 1024)
    slow = RawConnection(tight.server.port)
    with nexo.connect(tight.server.url) as client:
        client.store.set("big", bytes(1_000_000))
        slow.burst(*[(Op.MAP_GET, pack_str("big"))] * 20)
        wait_until(lambda: slow_readers(client) == 1, what="it reads nothing")
    tight.server.stop()
    with pytest.raises(ConnectionResetError):
        list(map(RawConnection.reply, [slow] * 20))
    slow.close()


def unsent_bytes(client: nexo.Client, name: str) -> int:
    payload = client.link(Broker.STREAM).call(Op.PEERS, bytes((Broker.STREAM,)))
    (found,) = [peer for peer in decode_value(payload or b"") if peer["name"] == name]
    return int(found["unsent_bytes"])


def slow_readers(client: nexo.Client, broker: Broker = Broker.STORE) -> int:
    payload = client.link(broker).call(Op.STATUS, bytes((broker,)))
    found: int = decode_value(payload or b"")["limits"]["slow_readers"]
    return found


# -- names --------------------------------------------------------------------------

BAD_NAMES = ["", "/etc", "..", "../x", "a/../b", "a/.", "x" * 256, "a b", "a\0b", "ü", "a\nb"]
GOOD_NAMES = [
    "a/b",
    "a:b",
    "a.b",
    ".hidden",
    "...",
    "a-b_c",
    "x" * 255,
    "a/b/c:d",
    "CON",
    "a+b"[:1],
]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_names_that_could_leave_the_folder_are_refused(name: str, client: nexo.Client) -> None:
    with pytest.raises(InvalidName):
        client.queue(name).create()
    with pytest.raises(InvalidName):
        client.stream(name).create()


def test_odd_names_stay_in_the_data_folder_and_never_collide(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    folder = outside / "data"
    with nexo.testing.server(data_dir=folder) as url, nexo.connect(url) as client:
        for number, name in enumerate(GOOD_NAMES):
            client.queue(name).create().push(number)
            client.stream(name).create().publish(number)
    with nexo.testing.server(data_dir=folder) as url, nexo.connect(url) as client:
        for number, name in enumerate(GOOD_NAMES):
            assert [job.value for job in client.queue(name).pop(10)] == [number]
            assert [record.value for record in client.stream(name).read(0, 0)] == [number]
    assert [path.name for path in outside.iterdir()] == ["data"]


def test_a_data_folder_moved_while_stopped_has_everything(tmp_path: Path) -> None:
    with nexo.testing.server(data_dir=tmp_path / "a") as url, nexo.connect(url) as client:
        client.queue("q").create().push("job")
        client.stream("s").create().publish("record")
        client.pubsub.publish("t", "kept", retain=True)
    (tmp_path / "a").rename(tmp_path / "b")
    with nexo.testing.server(data_dir=tmp_path / "b") as url, nexo.connect(url) as client:
        assert [job.value for job in client.queue("q").pop(10)] == ["job"]
        assert [record.value for record in client.stream("s").read(0, 0)] == ["record"]
        with client.pubsub.subscribe("t") as subscription:
            assert next(iter(subscription)).value == "kept"


# -- many connections, to the real processes -----------------------------------------


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Process]:
    """Without the dashboard, whose own connections would be counted."""
    with nexo.testing.process(tmp_path / "nexo", dashboard=False) as process:
        yield process


def descriptors(served: Process) -> int:
    return sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in pids(served))


def memory_bytes(served: Process) -> int:
    page = resource.getpagesize()
    return sum(
        int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * page for pid in pids(served)
    )


def can_open(count: int) -> bool:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft > count + 200


@pytest.mark.slow
def test_idle_connections_give_everything_back(served: Process) -> None:
    if not can_open(IDLE_CONNECTIONS):
        pytest.skip(f"this process may not open {IDLE_CONNECTIONS} connections (ulimit -n)")
    with nexo.connect(served.url) as client:
        client.store.set("k", 1)
        before, before_bytes = descriptors(served), memory_bytes(served)
        idle = []
        for number in range(IDLE_CONNECTIONS):
            sock = socket.create_connection(("127.0.0.1", served.port), timeout=WAIT_S)
            if number % 2:  # half speak, half never say a word
                sock.sendall(frame(FrameKind.REQUEST, Op.ECHO, 1, b"hi"))
                replies(sock, 1)
            idle.append(sock)
        began = time.monotonic()
        assert client.store.get("k") == 1
        assert time.monotonic() - began < 10
        assert descriptors(served) >= before + IDLE_CONNECTIONS - 10
        each = (memory_bytes(served) - before_bytes) / IDLE_CONNECTIONS
        assert each < 32 * 1024, f"{each:.0f} bytes per idle connection"
        for sock in idle:
            sock.close()
        wait_until(lambda: descriptors(served) <= before + 5, what="every descriptor is given back")


@pytest.mark.slow
def test_connections_that_come_and_go_leave_nothing_behind(served: Process) -> None:
    with nexo.connect(served.url) as client:
        client.store.set("k", 1)
        before, before_bytes = descriptors(served), memory_bytes(served)
        began = time.monotonic()
        for number in range(CHURN):
            if number % CHURN_RATE == 0:
                assert client.store.get("k") == 1
                time.sleep(max(0, began + number / CHURN_RATE - time.monotonic()))
            sock = socket.create_connection(("127.0.0.1", served.port), timeout=WAIT_S)
            if number % 3 == 0:
                sock.sendall(frame(FrameKind.REQUEST, Op.ECHO, 1, b"hi"))
            if number % 2 == 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()
        assert client.store.get("k") == 1
        wait_until(lambda: descriptors(served) <= before + 5, what="every descriptor is given back")
        assert memory_bytes(served) - before_bytes < 32 * 1024**2


@pytest.mark.slow
def test_a_server_out_of_descriptors_serves_who_is_there_and_recovers(served: Process) -> None:
    with nexo.connect(served.url) as client:
        client.store.set("k", 1)
        limits = {pid: resource.prlimit(pid, resource.RLIMIT_NOFILE) for pid in pids(served)}
        for pid in limits:
            used = len(list(Path(f"/proc/{pid}/fd").iterdir()))
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + 10, limits[pid][1]))
        crowd = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(60)]
        for sock in crowd:
            with contextlib.suppress(OSError):
                sock.sendall(frame(FrameKind.REQUEST, Op.ECHO, 1, b"hi"))
        for number in range(100):
            client.store.set("k", number)
        assert client.store.get("k") == 99
        for sock in crowd:
            sock.close()

        def welcome() -> bool:
            url = f"{served.url}?while_down=fail&timeout=2"
            with contextlib.suppress(NexoError), nexo.connect(url) as late:
                return bool(late.store.get("k") == 99)
            return False

        wait_until(welcome, what="new clients are served again")
