"""The async client's link to one broker: connecting, reconnecting, timeouts, pipelining.

`Link.call` is the hot path of every operation and therefore simple: it frames the request,
stores its future and returns it. The requests of one loop turn are sent in one write, or
earlier once enough has gathered to keep the server busy.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from nexo.client._async.link.gathering import Gatherer
from nexo.client._async.link.offline import HeldRequest, HeldRequests
from nexo.client._async.link.poll import Poll
from nexo.client._async.link.repeating import Repeating
from nexo.client._async.link.wire import PushHandler, ReplyFuture, SentRequest, Wire, check_loop
from nexo.client.address import Address, door_path, tls_context
from nexo.client.connecting import Reached, is_final, no_welcome, pause_s, reason
from nexo.client.forks import NotPicklable
from nexo.client.replies import MAX_REPLY_BYTES, Reply, hello_frame
from nexo.errors import ClientClosed, ConnectionLost, NexoError, ShuttingDown
from nexo.model import Broker, Buffer
from nexo.protocol.hello import Welcome, decode_welcome
from nexo.protocol.ops import Op

__all__ = ["Duplex", "Link", "Poll"]

log = logging.getLogger("nexo.client")

Hook = Callable[[], Awaitable[None]]


class Link(Repeating, NotPicklable):
    """One broker's connection as the brokers' clients use it; it opens on first use.

    Belongs to the event loop it is first used on.
    """

    def __init__(self, address: Address, broker: Broker, reached: Reached | None = None) -> None:
        self.address = address
        self.broker = broker
        self.welcome: Welcome | None = None
        """The server's last reply to HELLO."""
        self._wire: Wire | None = None
        self._opening: Wire | None = None
        """A new connection that only hooks may use yet; other requests wait."""
        self._reached = reached or Reached()
        self._held = HeldRequests(address, self._reached)
        self.gatherer = Gatherer()
        self._hooks: list[Hook] = []
        self._close_hooks: list[Hook] = []
        self._unawaited: set[asyncio.Future[Any]] = set()
        self._push: PushHandler = _ignore
        self._loop: asyncio.AbstractEventLoop | None = None
        self._runner: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[None] | None = None
        self._closed = False
        self._was_up = False
        self._place = 0
        """Which of the address's servers is tried next."""

    # -- for the brokers' clients

    def call(self, op: int, *parts: Buffer, timeout_s: float | None = None) -> ReplyFuture:
        """Send a request; await the result for its reply.

        The parts follow one another as the payload. A timeout of None is the address's default.
        Cancelling the result is safe: its reply is then dropped.
        """
        if self.gatherer.unsent and not self._is_hook():
            return self.gatherer.call(self, op, parts, timeout_s)
        wire = self._wire
        if wire is None:
            return self._hold(op, parts, timeout_s)
        return wire.request(op, parts, timeout_s)

    def send(
        self,
        op: int,
        parts: tuple[Buffer, ...],
        timeout_s: float | None = None,
        future: ReplyFuture | None = None,
    ) -> ReplyFuture:
        """Send a request ahead of gathered ones; its reply settles ``future``, if given."""
        wire = self._wire
        if wire is None:
            return self._hold(op, parts, timeout_s, future)
        return wire.request(op, parts, timeout_s, future)

    def poll(
        self,
        op: int,
        *parts: Buffer,
        timeout_s: float | None = None,
        on_late: Callable[[Reply], None] | None = None,
        impatient: bool = False,
    ) -> Poll:
        """Send a long poll, which can be cut short.

        ``impatient`` matters in the sync client only: here the wait for a connection can always
        be cut short. ``on_late``
        gets a reply with data that arrived after the waiting task was cancelled, to release what it
        holds.
        """
        future = self.call(op, *parts, timeout_s=timeout_s)
        return Poll(lambda: self._wire, self.broker, future, on_late)

    def flush(self) -> None:
        """Send the requests made so far before the loop's turn ends."""
        if self._wire is not None:
            self._wire.flush()

    def on_push(self, handler: PushHandler) -> None:
        """Pass every run of push frames, headers included, to ``handler``."""
        self._push = handler

    def on_reconnect(self, hook: Hook) -> Callable[[], None]:
        """Await ``hook`` after each reconnect, before requests that waited for it.

        Returns a function that removes the hook.
        """
        return _added(self._hooks, hook)

    def on_close(self, hook: Hook) -> Callable[[], None]:
        """Await ``hook`` when the client is closed, while requests still work.

        Returns a function that removes the hook.
        """
        return _added(self._close_hooks, hook)

    def duplex(self) -> Link:
        """A link for pushes and consumers, where one connection must see everything.

        Here that is the link itself; the sync client opens one with a reader thread.
        """
        return self

    @property
    def up(self) -> bool:
        """Whether there is a connection now."""
        return self._wire is not None

    async def ready(self, timeout_s: float | None = None) -> bool:
        """Wait for a connection; False if ``timeout_s`` ran out first."""
        self._check_loop()
        if self._closed:
            raise ClientClosed("the client is closed")
        self._start()
        if (ready := self._ready) is None:
            return True
        done, _ = await asyncio.wait({ready}, timeout=timeout_s)
        if done:
            ready.result()
        return bool(done)

    @property
    def open(self) -> bool:
        """Whether there is something to close."""
        running = self._runner is not None and not self._runner.done()
        return running and self._loop is not None and not self._loop.is_closed()

    async def close(self) -> None:
        """End the connection; requests in flight fail with `ConnectionLost`."""
        if self._loop is not None and self._loop.is_closed():
            self._closed = True  # everything else ended with its loop
            return
        self._check_loop()
        hooks, self._close_hooks = self._close_hooks, []
        for hook in hooks:
            await hook()
        await self._await_unawaited()
        self._closed = True
        self._fail_waiters(ClientClosed("the client is closed"))
        if self._runner is not None:
            self._runner.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._runner
            self._runner = None

    def raise_unheard(self) -> None:
        """Raise the failure of a send that nobody awaited; called when the client closes."""
        self.gatherer.raise_unheard(closing=True)

    def let_end(self, work: asyncio.Future[Any]) -> None:
        """Let `close` wait for requests that their callers need not await."""
        self._unawaited.add(work)
        work.add_done_callback(self._unawaited.discard)

    async def _await_unawaited(self) -> None:
        self.gatherer.flush()
        await asyncio.sleep(0)  # let finished tasks release this link
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.address.timeout_s):
                while self._unawaited:
                    await asyncio.wait(self._unawaited)

    # -- without a connection (SPEC A5)

    def _hold(
        self,
        op: int,
        parts: tuple[Buffer, ...],
        timeout_s: float | None,
        future: ReplyFuture | None = None,
    ) -> ReplyFuture:
        """Hold a request until there is a connection, or fail it, as the address says."""
        self._check_loop()
        by_hook = self._is_hook()
        if by_hook and self._opening is not None:
            return self._opening.request(op, parts, timeout_s)
        future = future or asyncio.get_running_loop().create_future()
        fails_at_once = self.address.while_down == "fail" and self._was_up
        if self._closed:
            future.set_exception(ClientClosed("the client is closed"))
        elif by_hook or (fails_at_once and self._opening is None):
            future.set_exception(ConnectionLost(f"not connected to {self.address}"))
        else:
            self._held.add(HeldRequest(future, op, parts, timeout_s))
        self._start()
        return future

    def _is_hook(self) -> bool:
        """Whether a hook is calling: its requests precede those that wait for the connection."""
        return self._runner is not None and asyncio.current_task() is self._runner

    def _fail_waiters(self, error: NexoError) -> None:
        """Fail everyone who waits for a connection."""
        self._held.fail(error)
        self._settle_ready(error)

    # -- the connection's life

    def _check_loop(self) -> None:
        """Bind the link to the first loop it is used on."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        check_loop(self._loop)

    def _start(self) -> None:
        if self._runner is None and not self._closed:
            loop = asyncio.get_running_loop()
            self._ready = self._ready or loop.create_future()
            self._runner = loop.create_task(self._run(), name=f"nexo-{self.broker.label}")

    async def _run(self) -> None:
        """Connect and serve until the connection ends; repeat with growing pauses."""
        failures = 0
        while True:
            try:
                wire = await self._connect()
            except (OSError, TimeoutError, NexoError) as error:
                if is_final(error, was_up=self._reached.yes):
                    self._runner = None
                    self._fail_waiters(error)
                    return
                self._place += 1  # the next address may be reachable
                if self._place % len(self.address.places):
                    continue
                failures += 1
                self._connect_failed(error)
                await asyncio.sleep(pause_s(failures, len(self.address.places)))
                continue
            failures = 0
            try:
                await self._serve(wire)
            finally:
                wire.abort(ClientClosed("the client is closed"))
                await wire.closed

    async def _connect(self) -> Wire:
        loop = asyncio.get_running_loop()
        address = self.address
        context = tls_context(address, self.broker) if address.tls else None

        def opened() -> Wire:
            return Wire(loop, address, self._pushed, self._lost, self._unrun)

        async with asyncio.timeout(address.connect_timeout_s):
            if address.door_folder is not None:
                path = door_path(address.door_folder, self.broker)
                _, wire = await loop.create_unix_connection(opened, path)
            else:
                host, port = address.places[self._place % len(address.places)]
                _, wire = await loop.create_connection(opened, host, port, ssl=context)
            hello: ReplyFuture = loop.create_future()
            wire.waiting[0] = hello, Op.HELLO, (), None
            wire.send(hello_frame(address, self.broker))
            try:
                self.welcome = decode_welcome(await hello or b"")
            except ConnectionLost as error:
                raise no_welcome(address, error) from None
            except BaseException:
                wire.abort(ConnectionLost("the connection could not be opened"))
                raise
        wire.max_bytes, wire.max_frame = self.welcome.max_payload_bytes, MAX_REPLY_BYTES
        return wire

    def _connect_failed(self, error: Exception) -> None:
        self._held.reason = reason(error)
        if self.address.while_down == "fail":
            text = f"cannot connect to {self.address}: {self._held.reason}"
            self._held.fail(ConnectionLost(text))

    async def _serve(self, wire: Wire) -> None:
        if wire.closed.done():
            return
        wire.sweep()
        if self._was_up:
            self._opening = wire
            await self._run_hooks()
            self._opening = None
        self._was_up = self._reached.yes = True
        if not wire.closed.done():
            self._wire = wire
            self._held.release(wire)
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
            ready.exception()  # mark as retrieved: often nobody waits for it

    def _lost(self, wire: Wire) -> None:
        """Detach a connection that has ended, so that it gets no more requests."""
        if self._opening is wire:
            self._opening = None
        if self._wire is wire:
            self._wire = None
            self._ready = wire.loop.create_future()

    def _unrun(self, wire: Wire, sent: SentRequest, error: ShuttingDown) -> None:
        """A stopping server did not run a request: the next connection sends it again (SPEC O3)."""
        future, op, parts, timeout_s = sent
        if self._wire is not wire or self._closed or self.address.while_down == "fail":
            future.set_exception(type(error)(*error.args))
        elif op in _ASKED_AGAIN:
            future.set_exception(ConnectionLost(*error.args))
        else:
            self._held.add(HeldRequest(future, op, parts, timeout_s))

    def _pushed(self, frames: memoryview) -> None:
        self._push(frames)


_ASKED_AGAIN = frozenset((Op.S_READ_MANY, Op.S_HEARTBEAT))
"""Polls of topic consumers, who ask again once there is a connection, and wait no longer than they
were told."""

Duplex: TypeAlias = Link
"""The result of `Link.duplex`; a separate class in the sync client."""


def _added(hooks: list[Hook], hook: Hook) -> Callable[[], None]:
    hooks.append(hook)
    return lambda: hooks.remove(hook) if hook in hooks else None


def _ignore(frames: memoryview) -> None:
    """Ignore pushes on a link without subscribers."""
