"""What strangers and slow clients may take at the TCP port: memory, places, time (issue 15)."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Unpack

import pytest

from nexo import limits
from nexo.access.grants import parse_grant
from nexo.access.users import UsersFile
from nexo.config.keywords import ServerSettings
from nexo.model import Broker
from nexo.protocol import queue
from nexo.protocol.frames import HEADER, FrameKind, Status, frame, pack_str
from nexo.protocol.hello import Hello, encode_hello
from nexo.protocol.ops import Op
from nexo.protocol.store_classic import encode_map_set
from nexo.protocol.values import decode_value
from nexo.testing import Process, Server, process
from tests.integration import certificates
from tests.processes import broker_pids
from tests.raw_connection import RawConnection
from tests.timing import wait_until

PASSWORD = "correct horse"
WAIT_S = 20.0
MIB = 1024**2


@contextlib.contextmanager
def serving(folder: Path, **settings: Unpack[ServerSettings]) -> Iterator[Server]:
    server = Server(data_dir=folder / "nexo", **settings)
    server.start()
    try:
        yield server
    finally:
        server.close()


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)


def is_closed(sock: socket.socket) -> bool:
    """Whether the server ends the connection, in whatever way."""
    with contextlib.suppress(ConnectionResetError):
        while sock.recv(65_536):
            pass
    return True


def hello(broker: Broker, **fields: str) -> bytes:
    return encode_hello(broker, Hello("test", **fields))  # type: ignore[arg-type]


def add_user(folder: Path, name: str, *grants: str) -> None:
    users = UsersFile(folder / "users.json")
    users.add(name, PASSWORD, [parse_grant(text) for text in grants])


# -- deadlines and places (G3) --------------------------------------------------------------


def test_a_connection_that_says_nothing_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where users log in; elsewhere once it has begun to say something."""
    monkeypatch.setattr(limits, "FIRST_BYTES_S", 0.1)
    with serving(tmp_path / "users", auth=True) as server, connect(server.port) as silent:
        assert is_closed(silent)
    with serving(tmp_path / "open") as server, connect(server.port) as halting:
        halting.sendall(b"\x00")
        assert is_closed(halting)


def test_without_users_a_client_may_connect_and_be_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # SPEC R1
    monkeypatch.setattr(limits, "FIRST_BYTES_S", 0.05)
    monkeypatch.setattr(limits, "LOGIN_S", 0.05)
    with serving(tmp_path) as server:
        idle = [RawConnection(server.port) for _ in range(3)]
        for _ in range(3):  # each is closed once the gate has looked, which it does twice a second
            with connect(server.port) as halting:
                halting.sendall(b"\x00")
                assert is_closed(halting)
        for one in idle:
            assert one.ask(Op.ECHO, b"hi") == (Status.DATA, b"hi")
            one.close()


@pytest.mark.parametrize("auth", [False, True])
def test_a_first_request_that_does_not_end_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, auth: bool
) -> None:
    monkeypatch.setattr(limits, "LOGIN_S", 0.1)
    with serving(tmp_path, auth=auth) as server, connect(server.port) as slow:
        slow.sendall(frame(FrameKind.REQUEST, Op.MAP_GET, 1, pack_str("a key"))[:-1])
        assert is_closed(slow)


def test_who_has_sent_a_request_may_be_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LOGIN_S", 0.1)
    with serving(tmp_path) as server:
        idle = RawConnection(server.port)
        assert idle.ask(Op.ECHO, b"hi") == (Status.DATA, b"hi")
        with connect(server.port) as stranger:
            stranger.sendall(bytes((FrameKind.REQUEST, Op.MAP_GET)))
            assert is_closed(stranger), "its deadline is over"
        assert idle.ask(Op.ECHO, b"hi") == (Status.DATA, b"hi")
        idle.close()


def test_at_the_limit_the_oldest_silent_connection_gives_way(tmp_path: Path) -> None:
    with serving(tmp_path, max_connections=3) as server:
        known = RawConnection(server.port)
        assert known.ask(Op.ECHO, b"hi")[0] == Status.DATA
        silent = [connect(server.port) for _ in range(2)]
        for sock in silent:
            sock.sendall(bytes((FrameKind.REQUEST, Op.MAP_GET)))  # enough to reach its broker
        for _ in range(3):
            late = RawConnection(server.port)
            assert late.ask(Op.ECHO, b"hi") == (Status.DATA, b"hi")
            late.close()
        assert known.ask(Op.ECHO, b"hi") == (Status.DATA, b"hi")
        known.close()
        for sock in silent:
            sock.close()


def test_one_address_cannot_fill_the_gate(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with serving(tmp_path, max_silent_connections=2) as server:
        silent = [connect(server.port) for _ in range(3)]
        assert is_closed(silent[0])
        late = RawConnection(server.port)
        assert late.ask(Op.ECHO, b"hi") == (Status.DATA, b"hi")
        late.close()
        for sock in silent:
            sock.close()
        wait_until(lambda: "NEXO_MAX_SILENT_CONNECTIONS" in caplog.text)


def test_a_tls_handshake_that_is_not_finished_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certs = certificates.make(tmp_path)
    monkeypatch.setattr(limits, "TLS_HANDSHAKE_S", 0.2)
    with serving(tmp_path, tls_cert=certs.server, tls_key=certs.server_key) as server:
        outgoing = ssl.MemoryBIO()
        context = ssl.create_default_context()
        half = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
        with pytest.raises(ssl.SSLWantReadError):
            half.do_handshake()
        with connect(server.port) as stranger:
            stranger.sendall(outgoing.read())
            assert is_closed(stranger)


def test_a_request_that_trickles_in_is_given_up(tmp_path: Path) -> None:
    with serving(tmp_path, idle_ping_ms=200) as server, connect(server.port) as slow:
        slow.sendall(frame(FrameKind.REQUEST, Op.ECHO, 1, b"hi"))
        slow.sendall(HEADER.pack(FrameKind.REQUEST, Op.ECHO, 2, MIB))
        with contextlib.suppress(ConnectionError):
            deadline_s = time.monotonic() + WAIT_S
            while time.monotonic() < deadline_s:  # never silent for long
                slow.sendall(b"x")
                time.sleep(0.02)
            pytest.fail("it was never closed")


# -- memory (G2, G8) ------------------------------------------------------------------------


def test_before_the_login_a_large_request_is_refused(tmp_path: Path) -> None:
    add_user(tmp_path, "ana", "*:*:*")
    users = tmp_path / "users.json"
    with serving(tmp_path, auth=True, users_file=users) as server:
        with connect(server.port) as stranger:
            stranger.sendall(HEADER.pack(FrameKind.REQUEST, Op.HELLO, 1, 10 * MIB) + b"\x01\x01")
            answer = stranger.recv(4_096)
            assert f"the limit is {limits.BEFORE_LOGIN_BYTES}".encode() in answer
            assert is_closed(stranger)
        known = RawConnection(server.port)
        login = hello(Broker.STORE, user="ana", password=PASSWORD)
        assert known.ask(Op.HELLO, login)[0] == Status.DATA
        assert known.ask(Op.ECHO, b"x" * MIB)[0] == Status.DATA
        known.close()


def test_little_is_read_behind_a_login_that_waits(tmp_path: Path) -> None:
    """SPEC A10: a locked-out client's next guesses stay in its socket, not in our memory."""
    add_user(tmp_path, "ana", "*:*:*")
    add_user(tmp_path, "ben", "*:*:*")
    guess = frame(
        FrameKind.REQUEST, Op.HELLO, 1, hello(Broker.STORE, user="ana", password="a guess")
    )
    with serving(tmp_path, auth=True, users_file=tmp_path / "users.json") as server:
        known = RawConnection(server.port)
        login = hello(Broker.STORE, user="ben", password=PASSWORD)
        assert known.ask(Op.HELLO, login)[0] == Status.DATA
        with connect(server.port) as stranger:
            stranger.setblocking(False)
            sent = 0
            with contextlib.suppress(BlockingIOError):
                while sent < 4 * MIB:
                    sent += stranger.send(guess * 1_000)
            assert sent > 4 * limits.BEFORE_LOGIN_BYTES
            wait_until(lambda: any(row["name"] == "test" for row in _strangers(known)))
            read = [row["bytes_in"] for row in _strangers(known)]
        assert read == [limits.BEFORE_LOGIN_BYTES]
        known.close()


def _strangers(known: RawConnection) -> list[dict[str, Any]]:
    status, reply = known.ask(Op.PEERS, bytes((Broker.STORE,)))
    assert status == Status.DATA
    rows: list[dict[str, Any]] = decode_value(reply)
    return [row for row in rows if row["user"] is None]


def rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_linked_subscriber_that_does_not_read_takes_little_memory(served: Process) -> None:
    """G8: on a mixed connection the subscriber's policy must reach it through the link."""
    pids = broker_pids(served)
    mixed = RawConnection(served.port)
    assert mixed.ask(Op.MAP_GET, pack_str("k"))[0] == Status.NULL  # lives with the store
    assert mixed.ask(Op.SUB, pack_str("flood"))[0] == Status.OK
    before = {label: rss_bytes(pid) for label, pid in pids.items()}
    publisher = RawConnection(served.port)
    message = pack_str("flood") + pack_str("{}") + b"\0" + b"x" * MIB
    for _ in range(200):
        assert publisher.ask(Op.PUB, message)[0] == Status.OK
    grown = {label: rss_bytes(pid) - before[label] for label, pid in pids.items()}
    assert sum(grown.values()) < 80 * MIB, grown
    mixed.close()
    publisher.close()


def test_a_broker_that_hangs_stops_its_clients_instead_of_buffering(served: Process) -> None:
    """G8: what is sent for a stopped broker waits with the client, and arrives later."""
    pids = broker_pids(served)
    mixed = connect(served.port)
    mixed.sendall(frame(FrameKind.REQUEST, Op.Q_CREATE, 1, pack_str("q") + pack_str("{}")))
    assert HEADER.unpack(mixed.recv(HEADER.size))[1] == Status.OK
    mixed.close()
    mixed = connect(served.port)
    mixed.sendall(frame(FrameKind.REQUEST, Op.MAP_GET, 1, pack_str("k")))
    assert HEADER.unpack(mixed.recv(HEADER.size))[1] == Status.NULL
    os.kill(pids["queue"], signal.SIGSTOP)
    sent = 0
    try:
        push = pack_str("q") + pack_str("{}") + b"\0" + b"x" * MIB
        mixed.settimeout(1.0)
        with contextlib.suppress(TimeoutError):
            while sent < 200:
                mixed.sendall(frame(FrameKind.REQUEST, Op.Q_PUSH, 2 + sent, push))
                sent += 1
        assert sent < 50, f"{sent} MiB were taken for a broker that hangs"
    finally:
        os.kill(pids["queue"], signal.SIGCONT)
    mixed.settimeout(WAIT_S)
    for _ in range(sent):
        assert HEADER.unpack(mixed.recv(HEADER.size, socket.MSG_WAITALL))[1] == Status.OK
    mixed.close()


# -- identities (G9), names (G14) -------------------------------------------------------------


def test_a_user_named_nexo_is_a_user_like_others_on_a_mixed_connection(tmp_path: Path) -> None:
    add_user(tmp_path, "nexo", "store:*:*")
    with process(tmp_path, auth=True, dashboard=False) as server:
        mixed = RawConnection(server.port)
        login = hello(Broker.STORE, user="nexo", password=PASSWORD)
        assert mixed.ask(Op.HELLO, login)[0] == Status.DATA
        status, answer = mixed.ask(Op.Q_INFO, queue.encode(queue.Named("secret")))
        assert status == Status.ERR_CODED
        assert answer.startswith(pack_str("FORBIDDEN"))
        mixed.close()


def test_a_clients_name_forges_no_log_line(tmp_path: Path) -> None:
    name = "me\nERROR nexo.host: all data is lost\x1b[2J" + "x" * 10_000
    with serving(tmp_path) as server:
        connection = RawConnection(server.port)
        connection.ask(Op.HELLO, encode_hello(Broker.STORE, Hello(name)))
        (row,) = (one for one in _sessions(server) if one["hello"])
        assert "\n" not in row["name"]
        assert "\x1b" not in row["name"]
        assert len(row["name"]) <= limits.CLIENT_NAME_CHARS + 20  # escapes are longer
        connection.close()


def _sessions(server: Server) -> list[dict[str, Any]]:
    assert server._server is not None
    return [session.status() for session in server._server.host.sessions]


# -- stopping (F11) -----------------------------------------------------------------------------


def test_a_stop_answers_what_was_sent_and_resets_nothing(tmp_path: Path) -> None:
    """SPEC A7, O3: a client that sends on and on reads every reply and then the end."""
    with serving(tmp_path) as server:
        sock = connect(server.port)
        stopped = threading.Event()
        sent = [0]

        def send() -> None:
            one = encode_map_set("k", b"\x01v")
            with contextlib.suppress(OSError):
                while not stopped.is_set():
                    sock.sendall(frame(FrameKind.REQUEST, Op.MAP_SET, sent[0], one))
                    sent[0] += 1

        sender = threading.Thread(target=send)
        sender.start()
        wait_until(lambda: sent[0] > 500)
        stopper = threading.Thread(target=server.stop)
        stopper.start()
        replies = list(_replies(sock))
        stopped.set()
        sender.join()
        stopper.join()
        sock.close()
    assert [request_id for _, request_id in replies] == list(range(len(replies)))
    assert len(replies) > 500
    statuses = [status for status, _ in replies]
    refused = statuses.index(Status.ERR) if Status.ERR in statuses else len(statuses)
    assert set(statuses[:refused]) == {Status.OK}
    assert set(statuses[refused:]) <= {Status.ERR}, "after the first refusal nothing is done"


def test_a_stop_does_not_wait_for_a_client_that_reads_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LONGEST_FAREWELL_S", 60.0)
    monkeypatch.setattr(limits, "FAREWELL_S", 0.05)
    with serving(tmp_path) as server, connect(server.port) as deaf:
        for number in range(8):
            deaf.sendall(frame(FrameKind.REQUEST, Op.ECHO, number, bytes(MIB)))
        began_s = time.monotonic()
        server.stop()
        assert time.monotonic() - began_s < 30


def _replies(sock: socket.socket) -> Iterator[tuple[int, int]]:
    """Status and id of every reply until the end of the stream; a reset raises."""
    buffer = b""
    while chunk := sock.recv(65_536):
        buffer += chunk
        while len(buffer) >= HEADER.size:
            _, status, request_id, size = HEADER.unpack_from(buffer)
            if len(buffer) < HEADER.size + size:
                break
            yield status, request_id
            buffer = buffer[HEADER.size + size :]
