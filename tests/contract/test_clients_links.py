"""One suite for every kind of link: what a request, a failure and a cut mean to the caller."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

import pytest

from nexo.client._sync.link import duplex
from nexo.client._sync.link.duplex import Duplex
from nexo.client.address import parse_url
from nexo.client.connecting import Reached
from nexo.client.replies import Reply
from nexo.errors import (
    ConnectionLost,
    InvalidOption,
    NexoError,
    NotFound,
    PayloadTooLarge,
    ProtocolError,
    RequestTimeout,
    ShuttingDown,
    Unauthenticated,
)
from nexo.model import Broker
from nexo.protocol.frames import HEADER, FrameKind, Status, frame, pack_str
from nexo.protocol.hello import Welcome
from nexo.protocol.ops import Op
from tests.contract.link_drivers import ALL, DUPLEX, Driver, DuplexDriver
from tests.contract.scripted_server import FAIL_OP, HOLD_OP, SIZED_OP, ScriptedServer, coded

Open = Callable[..., Driver]
OpenDuplex = Callable[..., DuplexDriver]
D = TypeVar("D", bound=Driver)


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as server:
        yield server


@pytest.fixture(params=ALL)
def open_link(request: pytest.FixtureRequest) -> Iterator[Open]:
    yield from _opener(ALL[request.param])


@pytest.fixture(params=DUPLEX)
def open_duplex(request: pytest.FixtureRequest) -> Iterator[OpenDuplex]:
    yield from _opener(DUPLEX[request.param])


def _opener(make: Callable[..., D]) -> Iterator[Callable[..., D]]:
    opened: list[D] = []

    def open_one(url: str, broker: Broker = Broker.STORE) -> D:
        opened.append(make(url, broker))
        return opened[-1]

    yield open_one
    for link in opened:
        link.close()


def sized(size: int) -> bytes:
    return size.to_bytes(4, "big")


# -- replies


def test_data_ok_and_null_are_three_different_replies(
    server: ScriptedServer, open_link: Open
) -> None:
    link = open_link(server.url)
    assert link.call(FAIL_OP, bytes((Status.DATA,)) + b"payload") == b"payload"
    assert link.call(FAIL_OP, bytes((Status.OK,))) == b""
    assert link.call(FAIL_OP, bytes((Status.NULL,))) is None


def test_parts_follow_one_another_as_the_payload(server: ScriptedServer, open_link: Open) -> None:
    assert open_link(server.url).call(Op.ECHO, b"one", b"", b"two") == b"onetwo"


def test_a_coded_error_is_raised_as_its_class(server: ScriptedServer, open_link: Open) -> None:
    link = open_link(server.url)
    with pytest.raises(NotFound, match="queue 'x' does not exist"):
        link.call(
            FAIL_OP, bytes((Status.ERR_CODED,)), coded("NOT_FOUND", "queue 'x' does not exist")
        )
    assert link.call(Op.ECHO, b"still usable") == b"still usable"


def test_an_error_without_code_is_the_base_class(server: ScriptedServer, open_link: Open) -> None:
    with pytest.raises(NexoError, match="Queue not found") as caught:
        open_link(server.url).call(FAIL_OP, bytes((Status.ERR,)), pack_str("Queue not found"))
    assert type(caught.value) is NexoError


@pytest.mark.parametrize("size", [0, 1, 65_525, 65_526, 65_527, 262_134, 262_135, 3_000_000])
def test_replies_of_any_size_arrive_whole(
    server: ScriptedServer, open_link: Open, size: int
) -> None:
    link = open_link(server.url)
    reply = link.call(SIZED_OP, sized(size))
    assert reply is not None
    assert len(reply) == size
    assert bytes(reply) == b"x" * size
    assert link.call(Op.ECHO, b"next") == b"next"


def test_a_request_over_the_servers_limit_is_refused_before_it_is_sent(open_link: Open) -> None:
    with ScriptedServer(Welcome(server="small", max_payload_bytes=10)) as server:
        link = open_link(server.url)
        assert link.call(Op.ECHO, b"0123456789") == b"0123456789"
        with pytest.raises(PayloadTooLarge, match=r"11 bytes.*at most 10"):
            link.call(Op.ECHO, b"0123456789", b"!")
        assert link.call(Op.ECHO, b"fits") == b"fits"


def test_hello_names_the_broker_and_the_user(server: ScriptedServer, open_link: Open) -> None:
    url = server.url.replace("nexo://", "nexo://ann:secret@")
    open_link(url, Broker.QUEUE).call(Op.ECHO, b"")
    assert list(server.hellos) == [(Broker.QUEUE, "ann")]


# -- giving up (SPEC A6)


def connected(link: Driver) -> Driver:
    """Connecting must not count against a short timeout."""
    assert link.call(Op.ECHO, b"up", timeout_s=20) == b"up"
    return link


def test_a_reply_after_the_timeout_reaches_nobody_else(
    server: ScriptedServer, open_link: Open
) -> None:
    link = connected(open_link(server.url))
    with pytest.raises(RequestTimeout):
        link.call(HOLD_OP, timeout_s=0.05)
    server.answer(b"late")
    assert link.call(Op.ECHO, b"mine") == b"mine"
    assert len(server.hellos) == 1, "a timeout keeps the connection"


def test_a_late_reply_alone_does_not_end_another_wait(
    server: ScriptedServer, open_link: Open
) -> None:
    link = connected(open_link(server.url))
    with pytest.raises(RequestTimeout):
        link.call(HOLD_OP, timeout_s=0.05)
    server.answer(b"late")
    poll = link.poll(HOLD_OP)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(poll.reply)
        server.answer(b"mine")
        assert waiting.result(10) == b"mine"


def test_a_reply_at_the_very_moment_of_the_timeout_harms_nobody(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SPEC A6: whoever reads replies has seen that one waits when that one gives up."""
    reading, timed_out = threading.Event(), threading.Event()

    class Watched(Future[Reply]):
        def done(self) -> bool:
            done = super().done()
            if threading.current_thread().name == "nexo-store":
                reading.set()
                assert timed_out.wait(20)
            return done

    link = Duplex(parse_url(server.url), Broker.STORE, Reached())
    assert connected(link) is link
    with monkeypatch.context() as patch:
        patch.setattr(duplex, "Future", Watched)
        poll = link.poll(HOLD_OP, timeout_s=0.05)
    server.answer(b"late")
    assert reading.wait(20)
    with pytest.raises(RequestTimeout):
        poll.reply()
    timed_out.set()
    assert link.call(Op.ECHO, b"mine") == b"mine"
    link.close()


@pytest.mark.parametrize("kind", ["pool", "duplex"])
def test_a_request_that_the_server_does_not_take_times_out_and_ends_its_connection(
    kind: str,
) -> None:
    """SPEC A6: what follows the half of a frame would be taken for its rest."""
    with ScriptedServer(Welcome(server="test", max_payload_bytes=1 << 28)) as server:
        link = connected(ALL[kind](f"{server.url}?ping=0.5"))
        server.pause_reading()
        with pytest.raises(RequestTimeout, match=r"did not take the request in 0\.[25] s"):
            link.call(Op.ECHO, bytes(1 << 26), timeout_s=0.2)
        server.resume_reading()
        assert link.call(Op.ECHO, b"mine", timeout_s=20) == b"mine"
        link.close()


def test_a_connection_that_was_cut_is_not_used_before_its_reader_noticed() -> None:
    """SPEC A6: the next request waits for the next connection, it does not fail for the last."""
    noticed = threading.Event()

    class SlowToNotice(Duplex):
        def _lost(self, error: NexoError) -> None:
            assert noticed.wait(20)
            super()._lost(error)

    with ScriptedServer(Welcome(server="test", max_payload_bytes=1 << 28)) as server:
        link = SlowToNotice(parse_url(f"{server.url}?ping=0.5"), Broker.STORE, Reached())
        assert connected(link) is link
        server.pause_reading()
        with pytest.raises(RequestTimeout):
            link.call(Op.ECHO, bytes(1 << 26), timeout_s=0.2)
        server.resume_reading()
        assert not link.up
        with pytest.raises(ConnectionLost, match="not connected"):
            link.poll(Op.ECHO, b"mine", impatient=True)
        noticed.set()
        assert link.call(Op.ECHO, b"mine", timeout_s=20) == b"mine"
        link.close()


def test_the_address_gives_the_default_timeout(server: ScriptedServer, open_link: Open) -> None:
    link = connected(open_link(f"{server.url}?timeout=0.1"))
    with pytest.raises(RequestTimeout):
        link.call(HOLD_OP)


def test_a_longer_timeout_of_its_own_outlives_the_default(
    server: ScriptedServer, open_link: Open
) -> None:
    link = connected(open_link(f"{server.url}?timeout=0.05"))
    poll = link.poll(HOLD_OP, timeout_s=20)
    with pytest.raises(RequestTimeout):
        link.call(HOLD_OP)
    server.answer(b"first")
    assert poll.reply() == b"first"


def test_threads_get_their_own_replies(server: ScriptedServer, open_link: Open) -> None:
    link = open_link(server.url)

    def talk(who: int) -> bool:
        texts = [f"{who}-{turn}".encode() for turn in range(100)]
        return [link.call(Op.ECHO, text) for text in texts] == texts

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(talk, range(8)))


def test_a_waiting_poll_blocks_no_other_request(server: ScriptedServer, open_link: Open) -> None:
    link = open_link(server.url)
    poll = link.poll(HOLD_OP)
    assert link.call(Op.ECHO, b"meanwhile") == b"meanwhile"
    server.answer(b"at last")
    assert poll.reply() == b"at last"


def test_a_cancelled_poll_is_answered_at_once(server: ScriptedServer, open_link: Open) -> None:
    poll = open_link(server.url).poll(HOLD_OP)
    server.wait_for(lambda: server.held)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(poll.reply)
        poll.cancel()
        assert waiting.result(10) == b""
    poll.cancel()
    assert len(server.cancelled) == 1, "a second cancel has nothing to end"


# -- the cut (SPEC A5)


def test_requests_in_flight_fail_when_the_connection_is_cut(
    server: ScriptedServer, open_link: Open
) -> None:
    link = open_link(server.url)
    with ThreadPoolExecutor(3) as pool:
        calls = [pool.submit(link.call, HOLD_OP) for _ in range(3)]
        server.wait_for(lambda: len(server.held) == 3)
        server.stop()
        for call in calls:
            with pytest.raises(ConnectionLost):
                call.result(10)


def test_the_link_works_again_after_the_server_came_back(
    server: ScriptedServer, open_link: Open
) -> None:
    link = open_link(server.url)
    poll = link.poll(HOLD_OP)
    server.wait_for(lambda: server.held)
    server.stop()
    with pytest.raises(ConnectionLost):
        poll.reply()
    threading.Timer(0.2, server.start).start()
    assert link.call(Op.ECHO, b"back") == b"back"


def test_after_one_failure_no_other_dead_connection_is_used(
    server: ScriptedServer, open_link: Open
) -> None:
    link = open_link(server.url)
    polls = [link.poll(HOLD_OP) for _ in range(3)]
    for poll in polls:
        server.answer(b"")
        poll.reply()
    lost = link.poll(HOLD_OP)
    server.wait_for(lambda: server.held)
    server.stop()
    with pytest.raises(ConnectionLost):
        lost.reply()
    server.start()
    for _ in range(3):
        assert link.call(Op.ECHO, b"new") == b"new"


def test_a_request_while_down_waits_no_longer_than_told(
    server: ScriptedServer, open_link: Open
) -> None:
    server.stop()
    link = open_link(f"{server.url}?down_wait=0.1")
    with pytest.raises(ConnectionLost, match=r"refused|Connect call failed"):
        link.call(Op.ECHO, b"")


def test_a_request_while_down_fails_at_once_if_told_so(
    server: ScriptedServer, open_link: Open
) -> None:
    server.stop()
    link = open_link(f"{server.url}?while_down=fail&down_wait=1000&timeout=1000")
    with pytest.raises(ConnectionLost, match="cannot connect"):
        link.call(Op.ECHO, b"")


def test_a_certificate_that_cannot_be_read_is_told_at_once(open_link: Open) -> None:
    """SPEC A10: nothing gets better by waiting for it."""
    link = open_link("nexos://127.0.0.1:1?ca_file=/no/such/file&down_wait=20&timeout=20")
    began_s = time.monotonic()
    with pytest.raises(InvalidOption, match="ca_file"):
        link.call(Op.ECHO, b"")
    assert time.monotonic() - began_s < 10


@pytest.mark.parametrize("kind", ["pool", "duplex"])
def test_cutting_short_what_is_lost_already_raises_nothing(
    server: ScriptedServer, kind: str
) -> None:
    """SPEC A5: the reply tells."""
    link = ALL[kind](server.url)
    poll: Any = link.poll(HOLD_OP)
    server.wait_for(lambda: server.held)
    poll._wire.close()
    poll.cancel()
    server.stop()
    link.close()


def test_wrong_credentials_fail_the_request_and_are_not_tried_again_by_themselves(
    server: ScriptedServer, open_link: Open
) -> None:
    server.reject = coded("UNAUTHENTICATED", "unknown user or wrong password")
    link = open_link(server.url)
    with pytest.raises(Unauthenticated, match="wrong password"):
        link.call(Op.ECHO, b"")
    assert len(server.hellos) == 1


# -- sending again (SPEC O3)

STOPPING = coded("SHUTTING_DOWN", "the server is stopping")


def test_a_request_that_may_run_twice_is_sent_again_after_a_cut(
    server: ScriptedServer, open_link: Open
) -> None:
    link = open_link(server.url)
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(link.repeat, HOLD_OP, b"payload", timeout_s=20)
        server.wait_for(lambda: server.held)
        server.stop()
        server.held.clear()
        server.start()
        server.wait_for(lambda: server.held)
        assert server.held[0][2] == b"payload"
        server.answer(b"at last")
        assert call.result(10) == b"at last"


def test_a_request_that_must_not_run_twice_fails_with_the_cut(
    server: ScriptedServer, open_link: Open
) -> None:
    link = open_link(server.url)
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(link.call, HOLD_OP)
        server.wait_for(lambda: server.held)
        server.stop()
        with pytest.raises(ConnectionLost):
            call.result(10)


GOODBYE = frame(FrameKind.GOODBYE, 0, 0)


def test_what_a_stopping_server_rejected_is_sent_again(
    server: ScriptedServer, open_link: Open
) -> None:
    link = open_link(server.url)
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(link.call, HOLD_OP, timeout_s=20)
        server.answer(STOPPING, Status.ERR_CODED)
        restart(server)
        server.answer(b"at last")
        assert call.result(10) == b"at last"


@pytest.mark.parametrize("way", ["call", "poll"])
def test_what_is_unanswered_at_the_goodbye_is_sent_again(
    server: ScriptedServer, open_link: Open, way: str
) -> None:
    """The server has answered everything that it ran (finding T9)."""
    link = connected(open_link(server.url))

    def ask() -> object:
        found = getattr(link, way)(HOLD_OP, b"payload", timeout_s=20)
        return found if way == "call" else found.reply()

    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(ask)
        server.wait_for(lambda: server.held)
        server.held.clear()
        restart(server, GOODBYE)
        server.wait_for(lambda: server.held)
        assert server.held[0][2] == b"payload"
        server.answer(b"at last")
        assert call.result(10) == b"at last"


def test_what_was_answered_before_the_goodbye_is_not_sent_again(
    server: ScriptedServer, open_link: Open
) -> None:
    link = connected(open_link(server.url))
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(link.call, HOLD_OP, timeout_s=20)
        server.wait_for(lambda: server.held)
        _, request_id, _ = server.held.popleft()
        reply = frame(FrameKind.RESPONSE, Status.DATA, request_id, b"done")
        restart(server, reply + GOODBYE)
        assert call.result(10) == b"done"
        assert link.call(Op.ECHO, b"next") == b"next"
    assert not server.held


def test_a_request_after_the_goodbye_goes_to_the_next_server(
    server: ScriptedServer, open_link: Open
) -> None:
    """The goodbye may lie unread on an idle connection that looks sound."""
    link = connected(open_link(server.url))
    restart(server, GOODBYE)
    assert link.call(Op.ECHO, b"next") == b"next"


def test_a_poll_that_waits_for_the_next_server_can_be_cut_short(
    server: ScriptedServer, open_link: Open
) -> None:
    link = connected(open_link(server.url))
    poll = link.poll(HOLD_OP, timeout_s=20)
    server.wait_for(lambda: server.held)
    server.held.clear()
    server.stop(GOODBYE)
    with ThreadPoolExecutor(1) as pool:
        reply = pool.submit(poll.reply)
        poll.cancel()
        server.start()
        assert reply.result(10) == b""


def test_nothing_is_sent_again_if_the_address_says_so_or_the_time_is_over(
    server: ScriptedServer, open_link: Open
) -> None:
    hurried = open_link(f"{server.url}?while_down=fail")
    with pytest.raises(ShuttingDown):
        hurried.call(FAIL_OP, bytes((Status.ERR_CODED,)), STOPPING)
    patient = connected(open_link(server.url))
    with pytest.raises((ShuttingDown, RequestTimeout, ConnectionLost)):
        patient.call(FAIL_OP, bytes((Status.ERR_CODED,)), STOPPING, timeout_s=0.2)


def restart(server: ScriptedServer, last: bytes = b"") -> None:
    server.stop(last)
    server.start()


HTTP = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"
ENDLESS = HEADER.pack(FrameKind.RESPONSE, Status.DATA, 0, 1 << 29)


@pytest.mark.parametrize("answer", [HTTP, ENDLESS, b"SSH-2.0-OpenSSH_9.6\r\n"])
def test_another_programs_port_is_found_out_at_once(open_link: Open, answer: bytes) -> None:
    """Its first bytes are no frame's, or of one as long as no welcome is (finding T17)."""

    def speak(listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                other, _ = listener.accept()
                open_ones.append(other)
                other.sendall(answer)

    open_ones: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        speaking = pool.submit(speak, listener)
        try:
            link = open_link(f"nexo://127.0.0.1:{listener.getsockname()[1]}?timeout=60")
            with pytest.raises(ProtocolError, match=r"not the port of a Nexo server.*7654"):
                link.call(Op.ECHO, b"x")
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            speaking.result(20)
            for other in open_ones:
                other.close()


# -- what the server sends unasked


def test_a_ping_between_replies_is_answered(server: ScriptedServer, open_link: Open) -> None:
    link = open_link(server.url)
    poll = link.poll(HOLD_OP)
    server.wait_for(lambda: server.held)
    server.write(frame(FrameKind.PING, 0, 7))
    server.answer(b"after the ping")
    assert poll.reply() == b"after the ping"
    server.wait_for(lambda: list(server.pongs) == [7])


def test_a_silent_connection_is_given_up_and_replaced(
    server: ScriptedServer, open_duplex: OpenDuplex
) -> None:
    server.answers_pings = False
    link = open_duplex(f"{server.url}?ping=0.05")
    poll = link.poll(HOLD_OP)
    with pytest.raises(ConnectionLost, match=r"silent|does not answer"):
        poll.reply()
    assert link.call(Op.ECHO, b"again") == b"again"


def test_pings_keep_a_quiet_connection(server: ScriptedServer, open_duplex: OpenDuplex) -> None:
    link = open_duplex(f"{server.url}?ping=1")
    poll = link.poll(HOLD_OP)
    with pytest.raises(RequestTimeout):
        link.call(HOLD_OP, timeout_s=3.5)  # it would be given up sooner without an answer
    server.answer(b"still here")
    assert poll.reply() == b"still here"
    assert len(server.hellos) == 1


def test_pushes_arrive_as_whole_frames_in_order(
    server: ScriptedServer, open_duplex: OpenDuplex
) -> None:
    received = bytearray()
    done = threading.Event()
    pushes = b"".join(frame(FrameKind.PUSH, 0, 0, b"m" * (n * 37 % 5_000)) for n in range(2_000))

    def on_push(frames: memoryview) -> None:
        _check_whole(frames)
        received.extend(frames)
        if len(received) == len(pushes):
            done.set()

    link = open_duplex(server.url)
    link.on_push(on_push)
    link.call(Op.ECHO, b"")
    server.write(pushes)
    assert done.wait(10)
    assert received == pushes


def test_a_push_that_cannot_be_read_does_not_end_the_link(
    server: ScriptedServer, open_duplex: OpenDuplex
) -> None:
    """SPEC A5: the connection is replaced, as after any other cut."""

    def cannot_read(_frames: memoryview) -> None:
        raise ZeroDivisionError

    link = open_duplex(server.url)
    connected(link)
    link.on_push(cannot_read)
    poll = link.poll(HOLD_OP, timeout_s=20)
    server.write(frame(FrameKind.PUSH, 0, 0, b"?"))
    with pytest.raises(ConnectionLost):
        poll.reply()
    assert link.call(Op.ECHO, b"fresh", timeout_s=20) == b"fresh"


def _check_whole(frames: memoryview) -> None:
    at = 0
    while at < len(frames):
        kind, _, _, length = HEADER.unpack_from(frames, at)
        assert kind == FrameKind.PUSH
        at += HEADER.size + length
    assert at == len(frames)


def test_hooks_run_after_each_reconnect_but_not_the_first_connect(
    server: ScriptedServer, open_duplex: OpenDuplex
) -> None:
    runs = threading.Semaphore(0)
    link = open_duplex(server.url)
    link.on_reconnect(runs.release)
    link.call(Op.ECHO, b"")
    for _ in range(2):
        server.stop()
        server.start()
        assert runs.acquire(timeout=10)
        assert link.call(Op.ECHO, b"up") == b"up"
    assert not runs.acquire(blocking=False)


def test_garbage_from_the_server_fails_the_request(server: ScriptedServer, open_link: Open) -> None:
    link = open_link(server.url)
    poll = link.poll(HOLD_OP, timeout_s=2)
    server.wait_for(lambda: server.held)
    server.write(b"\x02\x00\x00\x00\x00\x01\xff\xff\xff\xff")
    with pytest.raises(ProtocolError, match="begins no frame"):
        poll.reply()
    assert link.call(Op.ECHO, b"fresh") == b"fresh"


def test_an_unknown_frame_type_ends_the_connection(server: ScriptedServer, open_link: Open) -> None:
    link = open_link(server.url)
    poll = link.poll(HOLD_OP, timeout_s=2)
    server.wait_for(lambda: server.held)
    server.write(frame(0x7F, 0, 0, b"?"))
    with pytest.raises(ProtocolError, match="unknown frame type 127"):
        poll.reply()
    assert link.call(Op.ECHO, b"fresh") == b"fresh"


def test_hooks_at_close_can_still_talk_to_the_server(
    server: ScriptedServer, open_duplex: OpenDuplex
) -> None:
    link = open_duplex(server.url)
    said: list[object] = []
    link.on_close(lambda: said.append(link.call(Op.ECHO, b"goodbye")))
    link.call(Op.ECHO, b"")
    link.close()
    assert said == [b"goodbye"]
