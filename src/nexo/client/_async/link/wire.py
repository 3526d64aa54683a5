"""One TCP connection of the async client: frames in, futures answered; frames out, coalesced.

A `Wire` lives as long as its connection; the `Link` above it outlives many.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from typing import TypeAlias, cast

from nexo.client._async.link.deadlines import MAX_ID, RequestDeadlines
from nexo.client.address import Address
from nexo.client.forks import on_fork
from nexo.client.replies import MAX_WELCOME_BYTES, Reply, check_frame, control_answer, error_of
from nexo.errors import (
    ConnectionLost,
    InvalidInput,
    NexoError,
    PayloadTooLarge,
    RequestTimeout,
    ShuttingDown,
)
from nexo.model import Buffer
from nexo.protocol.frames import HEADER, HEADER_SIZE, FrameKind, Status

ReplyFuture: TypeAlias = asyncio.Future[Reply]
PushHandler: TypeAlias = Callable[[memoryview], None]
SentRequest: TypeAlias = tuple[ReplyFuture, int, tuple[Buffer, ...], float | None]
"""A request without its response yet: where the reply goes, opcode, payload, timeout."""

BUFFER_BYTES = 256 * 1024
_LARGE_BYTES = 64 * 1024
"""Frames from this size on are received directly into their own buffer."""
_PART_BYTES = 4 * 1024
"""Parts larger than this on average are passed to the kernel one by one, never joined."""

_SHORTEST_SWEEP_S = 0.001
_HELD_UP_S = 0.2
"""A loop that comes back so late was held up: while nobody listens, nobody is silent."""

_pack, _unpack = HEADER.pack, HEADER.unpack_from
_REQUEST, _RESPONSE, _PUSH = int(FrameKind.REQUEST), int(FrameKind.RESPONSE), int(FrameKind.PUSH)
_GOODBYE = int(FrameKind.GOODBYE)
_PING = HEADER.pack(FrameKind.PING, 0, 0, 0)
_OK, _NULL, _DATA = int(Status.OK), int(Status.NULL), int(Status.DATA)


class Wire(asyncio.BufferedProtocol):
    """Matches responses to ``waiting`` by id and writes what one loop turn sends at once."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        address: Address,
        on_push: PushHandler,
        on_lost: Callable[[Wire], None],
        on_unrun: Callable[[Wire, SentRequest, ShuttingDown], None],
    ) -> None:
        """``on_unrun`` gets each request that the stopping server did not run."""
        self.waiting: dict[int, SentRequest] = {}
        """Every request without its response yet, oldest first; done futures are given-up
        ones, kept so that their id stays taken until the response came (SPEC A6)."""
        self.late: dict[int, Callable[[Reply], None]] = {}
        self.closed: asyncio.Future[NexoError] = loop.create_future()
        self.loop = loop
        self._new_future = loop.create_future
        self.max_bytes = MAX_ID
        self.max_frame = MAX_WELCOME_BYTES
        self._address = address
        self._next_id = 1
        self._deadlines = RequestDeadlines(address.timeout_s)
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._sweep_s = float("inf")
        self._heard_s = loop.time()
        self._on_push = on_push
        self._on_lost = on_lost
        self._on_unrun = on_unrun
        self._transport: asyncio.Transport | None = None
        self._out: list[Buffer] = []
        self._buffer = bytearray(BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._kept = 0
        self._large: memoryview | None = None
        self._large_at = 0
        self._error: NexoError | None = None

    # -- writing

    def request(
        self,
        op: int,
        parts: tuple[Buffer, ...],
        timeout_s: float | None,
        future: ReplyFuture | None = None,
    ) -> ReplyFuture:
        """Send a request; its reply settles the returned future, which is ``future`` if given."""
        size = len(parts[0]) if len(parts) == 1 else sum(map(len, parts))
        if size > self.max_bytes:
            raise PayloadTooLarge(
                f"the request has {size} bytes; the server takes at most {self.max_bytes}"
            )
        out = self._out
        if not out:
            self._begin_turn()
        request_id = self._next_id
        waiting = self.waiting
        while request_id in waiting:
            request_id = request_id % MAX_ID + 1
        self._next_id = request_id % MAX_ID + 1
        future = future or self._new_future()
        waiting[request_id] = future, op, parts, timeout_s
        out.append(_pack(_REQUEST, op, request_id, size))
        out += parts
        if timeout_s is not None:
            self._set_deadline(request_id, timeout_s)
        return future

    def send(self, *parts: Buffer) -> None:
        """Queue bytes for the one write at the end of this loop turn."""
        out = self._out
        if not out:
            self._begin_turn()
        out += parts

    def _begin_turn(self) -> None:
        check_loop(self.loop)
        self.loop.call_soon(self.flush)

    def flush(self) -> None:
        """Write what is queued, without waiting for the end of the turn."""
        out, self._out = self._out, []
        if not out or self._transport is None or self._transport.is_closing():
            return
        if sum(map(len, out)) > _PART_BYTES * len(out):
            self._transport.writelines(out)
        else:
            self._transport.write(b"".join(out))

    def abort(self, error: NexoError) -> None:
        """Cut the connection now; every waiting request fails with ``error``."""
        self._error = self._error or error
        if self._transport is not None:
            self._transport.abort()

    # -- timeouts: one sweep for all requests instead of a timer each

    def _set_deadline(self, request_id: int, timeout_s: float) -> None:
        due_s = self.loop.time() + timeout_s
        self._deadlines.set(request_id, due_s)
        if due_s < self._sweep_s:
            self._sweep_at(due_s)

    def _sweep_at(self, due_s: float) -> None:
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        self._sweep_timer = self.loop.call_at(due_s, self.sweep)
        self._sweep_s = due_s

    def sweep(self) -> None:
        """Fail overdue requests, check a silent connection, and schedule the next sweep."""
        now_s = self.loop.time()
        if (late_s := now_s - self._sweep_s) > _HELD_UP_S:
            self._heard_s = min(self._heard_s + late_s, now_s)
        last_id = (self._next_id - 2) % MAX_ID + 1
        for request_id in self._deadlines.overdue(self.waiting, last_id, now_s):
            error = RequestTimeout(f"no reply from {self._address} in time")
            self.waiting[request_id][0].set_exception(error)
        self._check_silence(now_s)
        soonest_s, latest_s = now_s + _SHORTEST_SWEEP_S, now_s + self._address.ping_s / 4
        self._sweep_at(min(max(self._deadlines.next_s(now_s), soonest_s), latest_s))

    def _check_silence(self, now_s: float) -> None:
        silent_s = now_s - self._heard_s
        if silent_s > 2 * self._address.ping_s:
            self.abort(ConnectionLost(f"{self._address} was silent for {silent_s:.0f} s"))
        elif silent_s > self._address.ping_s:
            self.send(_PING)

    # -- asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        on_fork(self)

    def forked(self) -> None:
        """After a fork the connection is the parent's; in this process it counts as ended.

        The descriptor stays open, because the transport is going to close it.
        """
        if self._transport is not None:
            ended, other = socket.socketpair()
            other.close()
            with ended:
                os.dup2(ended.fileno(), self._transport.get_extra_info("socket").fileno(), False)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail every request in flight (SPEC A5)."""
        reason = f": {exc}" if exc else ""
        error = self._error or ConnectionLost(
            f"the connection ended before the reply{reason}; the request may or may not have run"
        )
        self._transport = None
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        self._on_lost(self)
        waiting, self.waiting = self.waiting, {}
        self.late.clear()
        for future, *_ in waiting.values():
            if not future.done():
                future.set_exception(type(error)(*error.args))
        if not self.closed.done():
            self.closed.set_result(error)

    def get_buffer(self, sizehint: int) -> memoryview:
        """The buffer for the next bytes."""
        if self._large is not None:
            return self._large[self._large_at :]
        return self._view[self._kept :]

    def buffer_updated(self, nbytes: int) -> None:
        """Process ``nbytes`` that arrived."""
        self._heard_s = self.loop.time()
        try:
            if self._large is not None:
                self._fill_large(self._large, nbytes)
            else:
                self._take(bytes(self._view[: self._kept + nbytes]))
        except NexoError as error:
            self.abort(error)

    # -- reading

    def _take(self, data: bytes) -> None:
        at, end = 0, len(data)
        waiting = self.waiting
        while end - at >= HEADER_SIZE:
            kind, meta, request_id, length = _unpack(data, at)
            start = at + HEADER_SIZE
            stop = start + length
            if stop > end:
                break
            if kind == _RESPONSE:
                sent = waiting.pop(request_id, None)
                if sent is None or (future := sent[0]).done():
                    self._drop(request_id, meta, data[start:stop])
                elif meta == _DATA:
                    future.set_result(data[start:stop])
                elif meta == _OK:
                    future.set_result(b"")
                elif meta == _NULL:
                    future.set_result(None)
                else:
                    self._fail(sent, error_of(meta, data[start:stop]))
                at = stop
            elif kind == _PUSH:
                at = self._push_run(data, at, stop)
            else:
                self._control(kind, request_id)
                at = stop
        self._keep(data, at)

    def _push_run(self, data: bytes, first: int, stop: int) -> int:
        """Deliver consecutive pushes in one piece."""
        end = len(data)
        while end - stop >= HEADER_SIZE:
            kind, _, _, length = _unpack(data, stop)
            following = stop + HEADER_SIZE + length
            if kind != _PUSH or following > end:
                break
            stop = following
        self._on_push(memoryview(data)[first:stop])
        return stop

    def _fail(self, sent: SentRequest, error: NexoError) -> None:
        if isinstance(error, ShuttingDown):
            self._on_unrun(self, sent, error)
        else:
            sent[0].set_exception(error)

    def _part(self) -> None:
        """The server ends the connection, and has run nothing that it has not answered."""
        waiting, self.waiting = self.waiting, {}
        error = ShuttingDown(f"{self._address} is stopping; nothing was done")
        for sent in waiting.values():
            if not sent[0].done():
                self._on_unrun(self, sent, error)
        self._on_lost(self)
        self.abort(error)

    def _control(self, kind: int, request_id: int) -> None:
        if kind == _GOODBYE:
            self._part()
        elif answer := control_answer(kind, request_id):
            self.send(answer)

    def _drop(self, request_id: int, status: int, payload: Reply) -> None:
        """A response that nobody waits for any more; report it to ``on_late``, if given."""
        on_late = self.late.pop(request_id, None)
        if on_late is not None and status == _DATA:
            on_late(payload)

    def _keep(self, data: bytes, at: int) -> None:
        """Keep the beginning of an incomplete frame."""
        kept = len(data) - at
        if kept >= HEADER_SIZE:
            size = check_frame(self._address, data[at:], self.max_frame)
            if size > _LARGE_BYTES:
                self._start_large(data, at, size)
                return
        if at:
            self._buffer[:kept] = data[at:]
        self._kept = kept

    def _start_large(self, data: bytes, at: int, size: int) -> None:
        self._kept = 0
        self._large = memoryview(bytearray(size))
        self._large_at = len(data) - at
        self._large[: self._large_at] = data[at:]

    def _fill_large(self, large: memoryview, nbytes: int) -> None:
        self._large_at += nbytes
        if self._large_at < len(large):
            return
        self._large = None
        kind, meta, request_id, _ = _unpack(large)
        payload = large[HEADER_SIZE:]
        if kind == _PUSH:
            self._on_push(large)
        elif kind != _RESPONSE:
            self._control(kind, request_id)
        elif (sent := self.waiting.pop(request_id, None)) is None or sent[0].done():
            self._drop(request_id, meta, payload)
        elif meta == _DATA:
            sent[0].set_result(payload)
        else:
            self._fail(sent, error_of(meta, payload))


def check_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Raise unless the caller runs on ``loop``: another loop would wait for ever."""
    if asyncio.get_running_loop() is not loop:
        raise InvalidInput(
            "this client belongs to another event loop, or to the process this one was forked"
            " from: make one in each, with nexo.AsyncClient(url)"
        )
