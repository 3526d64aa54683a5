"""Connections between simulated processes: bytes with lag, cuts at any byte, silence, resets.

A connection is two pipes. A pipe delivers bytes in order, in pieces that the seed draws. The
receiving machine's kernel takes them also while the process is paused, until its buffer is full.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tests.simulation.world import MS, US, S

if TYPE_CHECKING:
    from tests.simulation.world import Process, World

Place = tuple[str, int]
_FIRST_FD = 1_000_000
"""Far from any real descriptor, so that a system call on one of ours fails."""
PARTLY = 0
"""Instead of an error: only the first byte is sent."""
_BROKEN = (errno.ECONNRESET, errno.ETIMEDOUT, errno.EPIPE)
"""Errors after which a connection is gone."""


class Network:
    """Who listens where, and how each pair of machines is connected."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.listeners: dict[Place, SimListener] = {}
        self.chance = world.random("network")
        self.lag_us = (30, 400)
        self.pieces = 0.05
        """Share of deliveries that arrive in two pieces."""
        self.silent: set[tuple[str, str]] = set()
        """Directions between machines in which nothing arrives, until they are healed."""
        self.slow: dict[tuple[str, str], int] = {}
        """Directions with so many more microseconds of lag."""
        self.connections: list[tuple[SimSocket, SimSocket]] = []
        self.failing: int | None = None
        """The error of the socket call that is being made."""
        self._next_fd = _FIRST_FD
        self._next_port = 40_000

    def fd(self) -> int:
        self._next_fd += 1
        return self._next_fd

    def lag_ns(self, source: str, target: str) -> int:
        low, high = self.lag_us
        return (self.chance.randint(low, high) + self.slow.get((source, target), 0)) * US

    def connect(self, process: Process, place: Place, ended: asyncio.Future[SimSocket]) -> None:
        """Begin to connect; ``ended`` gets the socket or an error."""
        listener = self.listeners.get(place)
        there = place[0]
        us = process.machine.name
        if number := self.error_of("connect"):
            _fail(ended, OSError(number, os.strerror(number)))
            return
        if (us, there) in self.silent or (there, us) in self.silent:
            return  # the caller's own time-out ends it
        wait_ns = self.lag_ns(us, there) + self.lag_ns(there, us)

        def answer() -> None:
            if not process.alive or ended.done():
                return
            if listener is None or listener.closed or not listener.process.alive:
                error = ConnectionRefusedError(errno.ECONNREFUSED, "connection refused")
                process.loop.call_soon_threadsafe(_fail, ended, error)
                return
            ours = self._pair(process, listener)
            process.loop.call_soon_threadsafe(_give, ended, ours)

        if listener is not None or there in self.world.machines:
            self.world.after(wait_ns, answer)

    def _pair(self, process: Process, listener: SimListener) -> SimSocket:
        self._next_port += 1
        here = (process.machine.name, self._next_port)
        ours = SimSocket(self, process, here, listener.place)
        theirs = SimSocket(self, listener.process, listener.place, here)
        ours.peer, theirs.peer = theirs, ours
        ours.out, theirs.out = Pipe(self, ours, theirs), Pipe(self, theirs, ours)
        self.connections.append((ours, theirs))
        listener.backlog.append(theirs)
        listener.arm()
        return ours

    # -- faults -------------------------------------------------------------------

    def error_of(self, call: str) -> int | None:
        """A socket call is made: the number of its error, if it fails."""
        self.world.happened(f"socket {call}")
        number, self.failing = self.failing, None
        return number

    def between(self, one: str, other: str) -> list[tuple[SimSocket, SimSocket]]:
        """Open connections between two machines; ``*`` stands for any."""
        self.connections = [
            pair for pair in self.connections if not (pair[0].gone and pair[1].gone)
        ]
        ends = {one, other} - {"*"}
        return [
            pair
            for pair in self.connections
            if ends <= {pair[0].process.machine.name, pair[1].process.machine.name}
        ]

    def heal(self, source: str, target: str) -> None:
        """Let a silent direction speak again: what was sent meanwhile is sent once more."""
        self.silent.discard((source, target))
        for pair in self.connections:
            for sock in pair:
                pipe = sock.out
                if pipe is not None and pipe.held:
                    pipe.release()


def _give(future: asyncio.Future[SimSocket], sock: SimSocket) -> None:
    if future.done():
        sock.close()
    else:
        future.set_result(sock)


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


class Pipe:
    """One direction of a connection."""

    def __init__(self, network: Network, source: SimSocket, target: SimSocket) -> None:
        self.network, self.source, self.target = network, source, target
        self.capacity = network.chance.choice((16, 64, 256, 1024)) * 1024
        self.under_way = 0
        self.cut_after: int | None = None
        """So many more bytes arrive; then the connection is reset."""
        self.held: list[bytes | None] = []
        self._arrives_ns = 0

    @property
    def room(self) -> int:
        return self.capacity - self.under_way - len(self.target.arrived)

    @property
    def direction(self) -> tuple[str, str]:
        return self.source.process.machine.name, self.target.process.machine.name

    def send(self, data: bytes | None) -> None:
        """Put bytes on their way; None is the end (FIN)."""
        if data is not None:
            self.under_way += len(data)
            data = self._cut(data)
        if self.direction in self.network.silent:
            self.held.append(data)
        elif data is None or len(data) < 2 or self.network.chance.random() > self.network.pieces:
            self._deliver(data)
        else:
            at = self.network.chance.randrange(1, len(data))
            self._deliver(data[:at])
            self._deliver(data[at:])

    def _cut(self, data: bytes) -> bytes:
        if self.cut_after is None:
            return data
        left, self.cut_after = self.cut_after, max(0, self.cut_after - len(data))
        if len(data) < left:
            return data
        source = self.source
        self.network.world.after(self._lag_ns() + 1, source.reset_both, f"cut at byte {left}")
        self.under_way -= len(data) - left
        return data[:left]

    def release(self) -> None:
        held, self.held = self.held, []
        for data in held:
            self._deliver(data, 200 * MS)

    def _lag_ns(self) -> int:
        return self.network.lag_ns(*self.direction)

    def _deliver(self, data: bytes | None, extra_ns: int = 0) -> None:
        world = self.network.world
        self._arrives_ns = max(self._arrives_ns + 1, world.now_ns + self._lag_ns() + extra_ns)
        world.at(self._arrives_ns, self._arrive, data)

    def _arrive(self, data: bytes | None) -> None:
        target = self.target
        self.under_way -= len(data or b"")
        if target.gone:
            if data and not target.error and target.process.alive:
                self.network.world.after(self._lag_ns(), self.source.reset, errno.ECONNRESET)
            return
        if data is None:
            target.ended = True
        else:
            target.arrived += data
        target.arm()


class SimSocket:
    """What a process holds of a connection; the part of `socket.socket` that is used."""

    family, type, proto = socket.AF_INET, socket.SOCK_STREAM, 6

    def __init__(self, network: Network, process: Process, here: Place, there: Place) -> None:
        self.network, self.process = network, process
        self.here, self.there = here, there
        self.arrived = bytearray()
        self.ended = False
        self.gone = False
        self.error = 0
        self.peer: SimSocket
        self.out: Pipe | None = None
        self._shut = False
        self._fd = network.fd()
        process.sockets[self._fd] = self

    # -- what the selector asks -------------------------------------------------------

    @property
    def readable(self) -> bool:
        return bool(self.arrived or self.ended or self.error)

    @property
    def writable(self) -> bool:
        return bool(self.error or (self.out is not None and self.out.room > 0))

    def arm(self) -> None:
        self.process.hot[self._fd] = None
        self.process.wake()

    # -- what programs call -----------------------------------------------------------

    def fileno(self) -> int:
        return -1 if self.gone else self._fd

    def send(self, data: Any, flags: int = 0) -> int:
        if self._call("send") == PARTLY:
            data = memoryview(data)[:1]
        pipe = self.out
        assert pipe is not None
        if self._shut:
            raise BrokenPipeError(errno.EPIPE, "broken pipe")
        size = min(len(data), pipe.room)
        if size <= 0:
            raise BlockingIOError(errno.EAGAIN, "the buffer is full")
        pipe.send(bytes(memoryview(data)[:size]))
        return size

    def sendmsg(self, parts: Iterable[Any], *_: Any) -> int:
        return self.send(b"".join(parts))

    def recv(self, size: int, flags: int = 0) -> bytes:
        self._call("recv")
        if not self.arrived:
            if self.ended:
                return b""
            raise BlockingIOError(errno.EAGAIN, "nothing is here")
        data = bytes(self.arrived[:size])
        if not flags & socket.MSG_PEEK:
            self._took(len(data))
        return data

    def recv_into(self, buffer: Any, size: int = 0, flags: int = 0) -> int:
        data = self.recv(size or len(buffer), flags)
        buffer[: len(data)] = data
        return len(data)

    def _took(self, size: int) -> None:
        del self.arrived[:size]
        peer = self.peer
        if not peer.gone and peer.process.alive:  # its window opens
            self.network.world.after(self.network.lag_ns(self.here[0], self.there[0]), peer.arm)

    def _call(self, call: str) -> int | None:
        """Begin a call; raises its error."""
        number = self.network.error_of(call)
        if number in _BROKEN:
            self.reset_both(f"{call} fails")
        self._check()
        if number:
            raise OSError(number, os.strerror(number))
        return number

    def _check(self) -> None:
        if self.gone:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        if self.error:
            raise ConnectionResetError(self.error, os.strerror(self.error))

    def shutdown(self, how: int) -> None:
        self._call("shutdown")
        if how != socket.SHUT_RD and not self._shut and self.out is not None:
            self._shut = True
            self.out.send(None)

    def close(self) -> None:
        if self.gone:
            return
        self._leave()
        if self.error or self.out is None:
            return
        if self.arrived:  # closing with unread data sends RST
            self.network.world.after(self._lag_ns(), self.peer.reset, errno.ECONNRESET)
        elif not self._shut:
            self.out.send(None)

    def _leave(self) -> None:
        self.gone = True
        self.network.world.troubles += 1
        self.process.sockets.pop(self._fd, None)

    def _lag_ns(self) -> int:
        return self.network.lag_ns(self.here[0], self.there[0])

    def getsockname(self) -> Place:
        return self.here

    def getpeername(self) -> Place:
        if self.error:
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))
        return self.there

    def setsockopt(self, *_: Any) -> None:
        if number := self.network.error_of("setsockopt"):
            raise OSError(number, os.strerror(number))

    def getsockopt(self, *_: Any) -> int:
        return self.error

    def setblocking(self, _: bool) -> None: ...

    def settimeout(self, _: float | None) -> None: ...

    def gettimeout(self) -> float:
        return 0.0

    # -- what happens to it -----------------------------------------------------------

    def reset(self, number: int) -> None:
        """The connection is broken, and this end hears of it."""
        if self.gone or self.error:
            return
        self.error = number
        self.network.world.troubles += 1
        self.arrived.clear()
        self.arm()

    def reset_both(self, why: str) -> None:
        if not self.gone or not self.peer.gone:
            self.network.world.note(f"reset {self.here} {self.there} {why}")
        self.reset(errno.ECONNRESET)
        self.peer.reset(errno.ECONNRESET)

    def process_died(self, silent: bool) -> None:
        if not silent:
            self.close()
            return
        self._leave()  # a machine without power says nothing; its next life answers RST
        peer = self.peer
        self.network.world.after(20 * S, peer.reset, errno.ETIMEDOUT)


class SimListener:
    """A listening socket."""

    family, type = socket.AF_INET, socket.SOCK_STREAM
    writable = False

    def __init__(self, network: Network, process: Process, place: Place) -> None:
        self.network, self.process, self.place = network, process, place
        self.backlog: list[SimSocket] = []
        self.closed = False
        self._fd = network.fd()
        process.sockets[self._fd] = self
        network.listeners[place] = self

    @property
    def readable(self) -> bool:
        return bool(self.backlog)

    def arm(self) -> None:
        self.process.hot[self._fd] = None
        self.process.wake()

    def fileno(self) -> int:
        return -1 if self.closed else self._fd

    def accept(self) -> tuple[SimSocket, Place]:
        if not self.backlog:
            raise BlockingIOError(errno.EAGAIN, "nobody waits")
        if number := self.network.error_of("accept"):
            raise OSError(number, os.strerror(number))
        sock = self.backlog.pop(0)
        return sock, sock.there

    def getsockname(self) -> Place:
        return self.place

    def setblocking(self, _: bool) -> None: ...

    def close(self) -> None:
        self.closed = True
        self.process.sockets.pop(self._fd, None)
        if self.network.listeners.get(self.place) is self:
            del self.network.listeners[self.place]
        for sock in self.backlog:
            sock.close()

    def process_died(self, silent: bool) -> None:
        self.close()
