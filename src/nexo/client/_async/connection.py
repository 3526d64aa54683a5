"""The async client's link to one broker: it connects, reconnects, times out and pipelines.

`Link.call` is the hot path of every operation, hence plain: it frames the request,
notes its future and returns it. All requests of one loop turn leave in one write.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from nexo.client._async.deadlines import MAX_ID, Deadlines
from nexo.client._async.wire import PushHandler, ReplyFuture, Wire
from nexo.client.address import Address, tls_context
from nexo.client.backoff import pause_s
from nexo.client.replies import Reply, cancel_frame, hello_frame
from nexo.errors import (
    ConnectionLost,
    NexoError,
    PayloadTooLarge,
    RequestTimeout,
    Unauthenticated,
)
from nexo.model import Broker
from nexo.protocol.frames import HEADER, Buffer, Kind
from nexo.protocol.hello import Welcome, decode_welcome

log = logging.getLogger("nexo.client")

Hook = Callable[[], Awaitable[None]]

_REQUEST = int(Kind.REQUEST)
_pack = HEADER.pack
_SHORTEST_SWEEP_S = 0.001
_PING = HEADER.pack(Kind.PING, 0, 0, 0)


class Link:
    """One broker's connection as the brokers' clients use it; it opens on first use.

    Belongs to the event loop it is first used on.
    """

    def __init__(self, address: Address, broker: Broker) -> None:
        self.address = address
        self.broker = broker
        self.welcome: Welcome | None = None
        """What the server said at the last HELLO."""
        self._wire: Wire | None = None
        self._next_id = 1
        self._max_bytes = MAX_ID
        self._deadlines = Deadlines(address.timeout_s)
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._sweep_s = 0.0
        self._held: list[_Held] = []
        self._hooks: list[Hook] = []
        self._close_hooks: list[Hook] = []
        self._push: PushHandler = _ignore
        self._runner: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[None] | None = None
        self._closed = False
        self._was_up = False

    # -- for the brokers' clients

    def call(self, op: int, *parts: Buffer, timeout_s: float | None = None) -> ReplyFuture:
        """Send a request; await the result for its reply.

        The parts follow one another as the payload. A timeout of None is the address's
        default. Giving up on the result is safe: its reply is dropped when it comes.
        """
        wire = self._wire
        if wire is None:
            return self._hold(op, parts, timeout_s)
        future: ReplyFuture = wire.loop.create_future()
        self._send(wire, future, op, parts, timeout_s)
        return future

    def poll(
        self,
        op: int,
        *parts: Buffer,
        timeout_s: float | None = None,
        on_late: Callable[[Reply], None] | None = None,
    ) -> Poll:
        """Send a request that the server may answer much later, and that can be cut short.

        ``on_late`` gets a reply with data that came after the waiting task was cancelled,
        to hand back what it holds.
        """
        return Poll(self, self.call(op, *parts, timeout_s=timeout_s), on_late)

    def on_push(self, handler: PushHandler) -> None:
        """Give every run of push frames, headers included, to ``handler``."""
        self._push = handler

    def on_reconnect(self, hook: Hook) -> Callable[[], None]:
        """Have ``hook`` awaited after each reconnect, before requests that waited for it.

        Returns a function that takes the hook out again.
        """
        return _added(self._hooks, hook)

    def on_close(self, hook: Hook) -> Callable[[], None]:
        """Have ``hook`` awaited when the client is closed, while requests still work.

        Returns a function that takes the hook out again.
        """
        return _added(self._close_hooks, hook)

    def duplex(self) -> Link:
        """A link for pushes and consumers, where one connection must see everything.

        Here that is the link itself; the sync client opens one with a reader thread.
        """
        return self

    async def ready(self) -> None:
        """Wait for a connection, however long it takes."""
        if self._closed:
            raise ConnectionLost("the client is closed")
        self._start()
        if self._ready is not None:
            await asyncio.shield(self._ready)

    async def close(self) -> None:
        """End the connection; requests in flight fail with `ConnectionLost`."""
        hooks, self._close_hooks = self._close_hooks, []
        for hook in hooks:
            await hook()
        self._closed = True
        self._fail_waiters(ConnectionLost("the client is closed"))
        if self._runner is not None:
            self._runner.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._runner
            self._runner = None
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()

    # -- sending

    def _send(
        self,
        wire: Wire,
        future: ReplyFuture,
        op: int,
        parts: tuple[Buffer, ...],
        timeout_s: float | None,
    ) -> None:
        size = len(parts[0]) if len(parts) == 1 else sum(map(len, parts))
        if size > self._max_bytes:
            raise PayloadTooLarge(
                f"the request has {size} bytes; the server takes at most {self._max_bytes}"
            )
        request_id = self._next_id
        waiting = wire.waiting
        while request_id in waiting:
            request_id = request_id % MAX_ID + 1
        self._next_id = request_id % MAX_ID + 1
        waiting[request_id] = future
        wire.send(_pack(_REQUEST, op, request_id, size), *parts)
        if timeout_s is not None:
            self._set_deadline(wire, request_id, timeout_s)

    def _hold(self, op: int, parts: tuple[Buffer, ...], timeout_s: float | None) -> ReplyFuture:
        """A request without a connection: keep it until there is one, or fail (SPEC A5)."""
        loop = asyncio.get_running_loop()
        future: ReplyFuture = loop.create_future()
        if self._closed:
            future.set_exception(ConnectionLost("the client is closed"))
            return future
        if self.address.while_down == "fail" and self._was_up:
            self._start()
            future.set_exception(ConnectionLost(f"not connected to {self.address}"))
            return future
        self._held.append(_Held(self, future, op, parts, timeout_s))
        self._start()
        return future

    def _release_held(self, wire: Wire) -> None:
        held, self._held = self._held, []
        for request in held:
            request.timer.cancel()
            if not request.future.done():
                try:
                    self._send(wire, request.future, request.op, request.parts, request.timeout_s)
                except PayloadTooLarge as error:
                    request.future.set_exception(error)

    def _fail_waiters(self, error: NexoError) -> None:
        """There will be no connection."""
        self._fail_held(error)
        self._settle_ready(error)

    def _fail_held(self, error: NexoError) -> None:
        held, self._held = self._held, []
        for request in held:
            request.give_up(error)

    # -- timeouts: one sweep for all requests instead of a timer each

    def _set_deadline(self, wire: Wire, request_id: int, timeout_s: float) -> None:
        due_s = wire.loop.time() + timeout_s
        self._deadlines.set(request_id, due_s)
        if due_s < self._sweep_s:
            self._sweep_at(wire, due_s)

    def _sweep_at(self, wire: Wire, due_s: float) -> None:
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        self._sweep_timer = wire.loop.call_at(due_s, self._sweep, wire)
        self._sweep_s = due_s

    def _sweep(self, wire: Wire) -> None:
        """Fail what is overdue and see to a silent connection."""
        if wire is not self._wire:
            return
        now_s = wire.loop.time()
        last_id = (self._next_id - 2) % MAX_ID + 1
        for request_id in self._deadlines.overdue(wire.waiting, last_id, now_s):
            error = RequestTimeout(f"no reply from {self.address} in time")
            wire.waiting[request_id].set_exception(error)
        self._check_silence(wire, now_s)
        soonest_s, latest_s = now_s + _SHORTEST_SWEEP_S, now_s + self.address.ping_s / 4
        due_s = self._deadlines.next_s(now_s)
        self._sweep_at(wire, min(max(due_s, soonest_s), latest_s))

    def _check_silence(self, wire: Wire, now_s: float) -> None:
        silent_s = now_s - wire.heard_s
        if silent_s > 2 * self.address.ping_s:
            wire.abort(ConnectionLost(f"{self.address} was silent for {silent_s:.0f} s"))
        elif silent_s > self.address.ping_s:
            wire.send(_PING)

    # -- the connection's life

    def _start(self) -> None:
        if self._runner is None and not self._closed:
            loop = asyncio.get_running_loop()
            self._ready = self._ready or loop.create_future()
            self._runner = loop.create_task(self._run(), name=f"nexo-{self.broker.label}")

    async def _run(self) -> None:
        """Connect, serve until the cut, and again, with growing pauses in between."""
        failures = 0
        while True:
            try:
                wire = await self._connect()
            except Unauthenticated as error:
                self._runner = None
                self._fail_waiters(error)
                return
            except (OSError, TimeoutError, NexoError) as error:
                failures += 1
                self._connect_failed(error)
                await asyncio.sleep(pause_s(failures))
                continue
            failures = 0
            try:
                await self._serve(wire)
            finally:
                wire.abort(ConnectionLost("the client is closed"))
                await wire.closed

    async def _connect(self) -> Wire:
        loop = asyncio.get_running_loop()
        address = self.address
        context = tls_context(address, self.broker) if address.tls else None
        async with asyncio.timeout(address.connect_timeout_s):
            _, wire = await loop.create_connection(
                lambda: Wire(loop, self._pushed, self._lost),
                address.host,
                address.port,
                ssl=context,
            )
            hello: ReplyFuture = loop.create_future()
            wire.waiting[0] = hello
            wire.send(hello_frame(address, self.broker))
            try:
                self.welcome = decode_welcome(await hello or b"")
            except BaseException:
                wire.abort(ConnectionLost("the connection could not be opened"))
                raise
        self._max_bytes = self.welcome.max_payload_bytes
        return wire

    def _connect_failed(self, error: Exception) -> None:
        text = str(error) or "no answer in time"
        if self.address.while_down == "fail":
            self._fail_held(ConnectionLost(f"cannot connect to {self.address}: {text}"))
        for request in self._held:
            request.reason = text

    async def _serve(self, wire: Wire) -> None:
        if wire.closed.done():
            return
        self._deadlines = Deadlines(self.address.timeout_s)
        self._wire = wire
        self._sweep_at(wire, wire.loop.time())
        if self._was_up:
            await self._run_hooks()
        self._was_up = True
        if not wire.closed.done():
            self._release_held(wire)
            self._settle_ready(None)
        await asyncio.shield(wire.closed)

    async def _run_hooks(self) -> None:
        for hook in list(self._hooks):
            try:
                await hook()
            except Exception as error:
                # This task owns the connection: a hook's failure must not end it.
                log.warning("after reconnecting to %s: %r", self.address, error)

    def _settle_ready(self, error: NexoError | None) -> None:
        ready, self._ready = self._ready, None
        if ready is None or ready.done():
            return
        if error is None:
            ready.set_result(None)
        else:
            ready.set_exception(error)
            ready.exception()  # seen: often nobody waits for it

    def _lost(self, wire: Wire) -> None:
        """No request may be given to a connection that has ended."""
        if self._wire is wire:
            self._wire = None
            self._ready = wire.loop.create_future()

    def _pushed(self, frames: memoryview) -> None:
        self._push(frames)


class Poll:
    """A request under way that can be cut short (`Op.CANCEL`)."""

    __slots__ = ("_future", "_link", "_on_late")

    def __init__(
        self, link: Link, future: ReplyFuture, on_late: Callable[[Reply], None] | None
    ) -> None:
        self._link = link
        self._future = future
        self._on_late = on_late

    async def reply(self) -> Reply:
        """Wait for the reply; cancelling the waiting task also ends the poll on the server."""
        try:
            return await self._future
        except asyncio.CancelledError:
            self._abandon()
            raise

    def cancel(self) -> None:
        """Have the server answer now, with what it has: `reply` returns at once."""
        if self._future.done():
            return
        if (request_id := self._id()) is not None:
            self._ask_to_end(request_id)
        else:
            self._future.set_result(b"")

    def _abandon(self) -> None:
        request_id = self._id()
        if request_id is None or self._link._wire is None:
            return
        if self._on_late is not None:
            self._link._wire.late[request_id] = self._on_late
        self._ask_to_end(request_id)

    def _ask_to_end(self, request_id: int) -> None:
        if self._link._wire is not None:
            self._link._wire.send(cancel_frame(self._link.broker, request_id))

    def _id(self) -> int | None:
        """Looked up only when needed: polls are few, and most are never cut short."""
        waiting = self._link._wire.waiting if self._link._wire else {}
        return next((key for key, value in waiting.items() if value is self._future), None)


class _Held:
    """A request that waits for a connection."""

    __slots__ = ("future", "op", "parts", "reason", "timeout_s", "timer")

    def __init__(
        self,
        link: Link,
        future: ReplyFuture,
        op: int,
        parts: tuple[Buffer, ...],
        timeout_s: float | None,
    ) -> None:
        self.future = future
        self.op = op
        self.parts = parts
        self.timeout_s = timeout_s
        self.reason = "no answer yet"
        limit_s = min(link.address.down_wait_s, timeout_s or link.address.timeout_s)
        self.timer = asyncio.get_running_loop().call_later(limit_s, self._expire, link, limit_s)

    def _expire(self, link: Link, limit_s: float) -> None:
        self.give_up(
            ConnectionLost(f"no connection to {link.address} within {limit_s:g} s: {self.reason}")
        )
        if self in link._held:
            link._held.remove(self)

    def give_up(self, error: NexoError) -> None:
        self.timer.cancel()
        if not self.future.done():
            self.future.set_exception(error)


def _added(hooks: list[Hook], hook: Hook) -> Callable[[], None]:
    hooks.append(hook)
    return lambda: hooks.remove(hook) if hook in hooks else None


def _ignore(frames: memoryview) -> None:
    """Pushes on a link that has no subscriber."""
