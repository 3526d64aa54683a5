"""Single requests on the raw wire of the documents' client: what each costs the server.

The client writes ready-made frames and counts the bytes of replies, so that nearly all the time
is the server's. Its CPU seconds are counted, not the clock: they hold on a busy machine too.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Iterator
from functools import partial

from benchmarks.harness import Bench, Contender, Measure, Row, rate
from benchmarks.peers import Server
from nexo.protocol.frames import HEADER, HEADER_SIZE, FrameKind, Status, frame, pack_str
from nexo.protocol.ops import Op

VALUE = b"\0" + b"x" * 100
JOBS_NAME = "work"
CONNECTIONS = 50
IN_FLIGHT = 1_000
TOGETHER, ALONE = 100_000, 20_000
_STALLED_S = 20.0
_OK_BYTES = HEADER_SIZE
_PLACE_BYTES = HEADER_SIZE + 8
_ID_BYTES = 16

_PUBLISH = frame(FrameKind.REQUEST, Op.S_PUB, 1, pack_str("log") + VALUE)
_PUSH = frame(FrameKind.REQUEST, Op.Q_PUSH, 1, pack_str(JOBS_NAME) + pack_str("{}") + VALUE)


def rows() -> list[Row]:
    """CPU of the server for each request; and the store's rate beside Redis."""
    return [
        _row(f"publish, {IN_FLIGHT:,} in flight", _publish, 1, IN_FLIGHT, TOGETHER, 5.0),
        _row(f"publish, {CONNECTIONS} connections", _publish, CONNECTIONS, 1, TOGETHER, 9.0),
        _row("publish, one after the other", _publish, 1, 1, ALONE, 35.0),
        _row(f"push, {IN_FLIGHT:,} in flight", _push, 1, IN_FLIGHT, TOGETHER, 7.0),
        _row(f"push, {CONNECTIONS} connections", _push, CONNECTIONS, 1, TOGETHER, 11.0),
        _row("push, one after the other", _push, 1, 1, ALONE, 45.0),
        _row("push, one after the other, fsync", _push, 1, 1, ALONE, 90.0, sync=True),
        _pops_row("pop and ack ×100", 100, TOGETHER, 9.0),
        _pops_row("pop and ack ×1,000", 1_000, TOGETHER, 6.0),
        _pops_row("pop and ack, one after the other", 1, ALONE // 2, 100.0),
        Row(
            f"store GET, {CONNECTIONS} connections with one request each", "op/s",
            ours=Contender("nexo", _nexo_gets),
            peers=[Contender("redis-server", _redis_gets)],
            bar=0.9, durability="nothing on disk",
        ),
    ]  # fmt: skip


def _row(
    what: str, work: Callable[..., Measure], connections: int, ahead: int, count: int,
    limit: float, *, sync: bool = False,
) -> Row:  # fmt: skip
    return _cpu_row(what, partial(work, connections, ahead, count, sync), limit, sync)


def _pops_row(what: str, batch: int, count: int, limit: float) -> Row:
    return _cpu_row(what, partial(_pops, batch, count), limit, False)


def _cpu_row(what: str, prepare: Callable[[Bench], Measure], limit: float, sync: bool) -> Row:
    return Row(
        f"CPU of the server each: {what}", "µs",
        ours=Contender("nexo", prepare), limit=limit, lower_is_better=True,
        durability="fsync before every reply" if sync else "synced in background",
    )  # fmt: skip


# -- what is asked ---------------------------------------------------------------------


def _publish(connections: int, ahead: int, count: int, sync: bool, bench: Bench) -> Measure:
    server = _nexo(bench, sync)
    made = frame(FrameKind.REQUEST, Op.S_CREATE, 1, pack_str("log") + pack_str("{}"))
    clients = RawClients(bench, server.port, connections, made, _OK_BYTES)
    return _cpu_each(bench, server, count, partial(clients.ask, _PUBLISH, _PLACE_BYTES, ahead))


def _push(connections: int, ahead: int, count: int, sync: bool, bench: Bench) -> Measure:
    server = _nexo(bench, sync)
    clients = RawClients(bench, server.port, connections, _made_queue(), _OK_BYTES)
    return _cpu_each(bench, server, count, partial(clients.ask, _PUSH, _OK_BYTES, ahead))


def _made_queue() -> bytes:
    return frame(FrameKind.REQUEST, Op.Q_CREATE, 1, pack_str(JOBS_NAME) + pack_str("{}"))


def _pops(batch: int, count: int, bench: Bench) -> Measure:
    server = _nexo(bench, False)
    clients = RawClients(bench, server.port, 1, _made_queue(), _OK_BYTES)
    taken = _cpu_each(bench, server, count, partial(clients.pop_and_ack, batch))

    def measure() -> float:
        clients.ask(_PUSH, _OK_BYTES, IN_FLIGHT, bench.scaled(count))
        return taken()

    return measure


def _nexo_gets(bench: Bench) -> Measure:
    asked = frame(FrameKind.REQUEST, Op.MAP_GET, 1, pack_str("key"))
    made = frame(FrameKind.REQUEST, Op.MAP_SET, 1, pack_str("key") + pack_str("{}") + VALUE)
    clients = RawClients(bench, bench.nexo().port, CONNECTIONS, made, _OK_BYTES)
    return _rate(bench, partial(clients.ask, asked, HEADER_SIZE + len(VALUE), 1))


def _redis_gets(bench: Bench) -> Measure:
    made = b"*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$101\r\n%b\r\n" % VALUE
    clients = RawClients(bench, bench.redis().port, CONNECTIONS, made, len(b"+OK\r\n"))
    asked, reply = b"*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n", b"$101\r\n%b\r\n" % VALUE
    return _rate(bench, partial(clients.ask, asked, len(reply), 1))


def _nexo(bench: Bench, sync: bool) -> Server:
    mode = "file_sync" if sync else "file_async"
    return bench.nexo(queue_persistence=mode, stream_persistence=mode)


def _rate(bench: Bench, work: Callable[[int], None]) -> Measure:
    count = bench.scaled(TOGETHER)
    return lambda: rate(count, lambda: work(count))


def _cpu_each(bench: Bench, server: Server, count: int, work: Callable[[int], None]) -> Measure:
    count = bench.scaled(count)

    def measure() -> float:
        before_s = server.cpu_s()
        work(count)
        return (server.cpu_s() - before_s) / count * 1e6

    return measure


# -- the client ------------------------------------------------------------------------


class RawClients:
    """Connections that each have some requests under way, driven by one thread."""

    def __init__(
        self, bench: Bench, port: int, connections: int, first: bytes, reply_bytes: int
    ) -> None:
        """``first`` is asked on each connection before anything else."""
        self._buffer = bytearray(1 << 20)
        self._poll = bench.enter(select.epoll())
        self._sockets = {}
        for _ in range(connections):
            sock = bench.enter(socket.create_connection(("127.0.0.1", port), _STALLED_S))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets[sock.fileno()] = sock
            self._poll.register(sock.fileno(), select.EPOLLIN)
            sock.sendall(first)
            self._read(sock, reply_bytes)

    def ask(self, request: bytes, reply_bytes: int, ahead: int, count: int) -> None:
        """``count`` requests, at most ``ahead`` of each connection unanswered."""
        left = count
        for sock in self._sockets.values():
            sock.sendall(request * ahead)
            left -= ahead
        heard = dict.fromkeys(self._sockets, 0)
        missing = (count - left) * reply_bytes + max(0, left) * reply_bytes
        while missing > 0:
            for number, sock in self._ready():
                got = sock.recv_into(self._buffer)
                if not got:
                    raise ConnectionError("the server closed a connection")
                missing -= got
                whole, heard[number] = divmod(heard[number] + got, reply_bytes)
                if more := min(whole, left):
                    sock.sendall(request * more)
                    left -= more

    def _ready(self) -> Iterator[tuple[int, socket.socket]]:
        ready = self._poll.poll(_STALLED_S)
        if not ready:
            raise TimeoutError("replies are missing")
        return ((number, self._sockets[number]) for number, _ in ready)

    def pop_and_ack(self, batch: int, count: int) -> None:
        """Take jobs of the queue and ack each by itself, as that client does."""
        [sock] = self._sockets.values()
        options = pack_str(f'{{"batchSize":{batch},"waitMs":1000}}')
        asked = frame(FrameKind.REQUEST, Op.Q_CONSUME, 1, pack_str(JOBS_NAME) + options)
        name = pack_str(JOBS_NAME)
        head = HEADER.pack(FrameKind.REQUEST, Op.Q_ACK, 1, _ID_BYTES + len(name))
        while count > 0:
            sock.sendall(asked)
            _, status, _, size = HEADER.unpack(self._read(sock, HEADER_SIZE))
            if status != Status.DATA:
                raise ValueError("the jobs were refused")
            jobs = self._read(sock, size)
            ids = range(4, size, _ID_BYTES + 4 + len(VALUE))
            sock.sendall(b"".join(head + jobs[at : at + _ID_BYTES] + name for at in ids))
            replies = self._read(sock, _OK_BYTES * len(ids))
            if any(replies[1::_OK_BYTES]):
                raise ValueError("an ack was refused")
            count -= len(ids)

    def _read(self, sock: socket.socket, size: int) -> bytes:
        parts = []
        while size:
            part = sock.recv(size)
            if not part:
                raise ConnectionError("the server closed a connection")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)
