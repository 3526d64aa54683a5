"""A connection with a reader thread: for pushes and consumers, used by many threads at once.

It reconnects by itself, as the async link does, and answers the same calls. Its thread does not
keep it alive: it ends with the connection when nobody else has a use for it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TypeAlias
from weakref import ref

from nexo.client._sync.link.poll import Poll
from nexo.client._sync.link.repeating import Repeating
from nexo.client._sync.link.wire import Wire, connect_any
from nexo.client.address import Address
from nexo.client.connecting import Reached, is_final, pause_s
from nexo.client.forks import NotPicklable, from_before, on_fork
from nexo.client.replies import Reply, cancel_frame, control_answer, error_of
from nexo.errors import ClientClosed, ConnectionLost, NexoError, RequestTimeout, ShuttingDown
from nexo.model import Broker, Buffer
from nexo.protocol.frames import HEADER, HEADER_SIZE, FrameKind, Status
from nexo.protocol.hello import Welcome

log = logging.getLogger("nexo.client")

PushHandler: TypeAlias = Callable[[memoryview], None]
Hook: TypeAlias = Callable[[], object]

_unpack = HEADER.unpack_from
_PING = HEADER.pack(FrameKind.PING, 0, 0, 0)


class Duplex(Repeating, NotPicklable):
    """Like `Link`, over one connection that a thread of its own reads."""

    def __init__(self, address: Address, broker: Broker, reached: Reached) -> None:
        self.address = address
        self.broker = broker
        self.welcome: Welcome | None = None
        """What the server said at the last HELLO."""
        self._reached = reached
        self._wire: Wire | None = None
        self._waiting: dict[int, DuplexPoll] = {}
        self._held: list[DuplexPoll] = []
        """What a stopping server did not run: the next connection sends it again (SPEC O3)."""
        self._send_lock = threading.Lock()
        self._change = threading.Condition()
        self._hooks: list[Hook] = []
        self._close_hooks: list[Hook] = []
        self._push: PushHandler = _ignore
        self._thread: threading.Thread | None = None
        self._end: SimpleQueue[None] = SimpleQueue()
        """Wakes the thread from its pauses; it may be told wherever garbage is collected."""
        self._failure: NexoError | None = None
        self._closed = False
        self._was_up = False
        self._is_first_try = True
        """Whether the thread has yet to learn if it can connect."""
        self._ended = "the client is closed"
        on_fork(self)

    # -- for the brokers' clients

    def call(self, op: int, *parts: Buffer, timeout_s: float | None = None) -> Reply:
        """Send a request and wait for its reply; any thread may call."""
        return self.poll(op, *parts, timeout_s=timeout_s).reply()

    def poll(
        self,
        op: int,
        *parts: Buffer,
        timeout_s: float | None = None,
        on_late: Callable[[Reply], None] | None = None,
        impatient: bool = False,
    ) -> Poll:
        """Send a request that the server may answer much later, and that can be cut short.

        ``impatient`` fails at once while the server is down, as waiting for it cannot be cut
        short. ``on_late`` has no use here, as a blocked thread is not cancelled.
        """
        limit_s = self.address.timeout_s if timeout_s is None else timeout_s
        fail_fast = impatient or self.address.while_down == "fail"
        patience_s = self.address.patience_s(limit_s, was_up=self._reached.yes)
        poll = DuplexPoll(self, op, parts, limit_s, fails_fast=fail_fast)
        while True:
            wire = self._up(patience_s, fail_fast=fail_fast)
            with self._send_lock:
                if self._wire is wire:
                    self._request(wire, poll)
                    return poll

    def on_push(self, handler: PushHandler) -> None:
        """Give every run of push frames, headers included, to ``handler``, on the reader thread."""
        self._push = handler

    def on_reconnect(self, hook: Hook) -> Callable[[], None]:
        """Have ``hook`` called after each reconnect; returns a function that takes it out."""
        return added(self._hooks, hook)

    def duplex(self) -> Duplex:
        """Itself."""
        return self

    def on_close(self, hook: Hook) -> Callable[[], None]:
        """Have ``hook`` called when the client is closed, while requests still work.

        Returns a function that removes the hook.
        """
        return added(self._close_hooks, hook)

    @property
    def up(self) -> bool:
        """Whether there is a connection now."""
        return self._usable() is not None

    def ready(self, timeout_s: float | None = None) -> bool:
        """Wait for a connection, however long it takes; False if ``timeout_s`` ran out first."""
        return self._awaited(timeout_s, fail_fast=False) is not None

    def close(self) -> None:
        """End the connection and its thread; requests in flight fail with `ConnectionLost`."""
        hooks, self._close_hooks = self._close_hooks, []
        for hook in hooks:
            hook()
        with self._change:
            self._closed = True
            self._interrupt()
            self._change.notify_all()
        self._fail_held(ClientClosed(self._ended))
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(self.address.connect_timeout_s)

    @property
    def open(self) -> bool:
        """Whether there is something to close."""
        return self._thread is not None and not self._closed

    def __del__(self) -> None:
        self._interrupt()

    def _interrupt(self) -> None:
        """Have the thread find out that it is of no use any more."""
        self._end.put(None)
        if self._wire is not None:
            self._wire.interrupt()

    def forked(self) -> None:
        """Its thread is not here, and what it was used for belongs to the parent."""
        self._send_lock, self._change = threading.Lock(), threading.Condition()
        self._wire, self._thread, self._waiting, self._end = None, None, {}, SimpleQueue()
        self._held = []
        self._hooks, self._close_hooks = [], []
        self._closed, self._ended = True, from_before("the subscription or consumer")

    # -- sending

    def _request(self, wire: Wire, poll: DuplexPoll) -> None:
        """Send a request, with the lock held."""
        while wire.next_id in self._waiting:
            wire.skip_id()
        request_id = wire.next_id
        self._waiting[request_id] = poll
        poll.sent(wire, request_id)
        try:
            wire.send_request(poll.op, poll.parts)
        except ConnectionLost:
            pass  # the thread reads what the server said last, and so learns whether it has run
        except BaseException:
            self._waiting.pop(request_id, None)
            raise

    def _up(self, limit_s: float, *, fail_fast: bool) -> Wire:
        """The connection, waiting for one as the address allows (SPEC A5)."""
        wire = self._awaited(limit_s, fail_fast=fail_fast)
        if wire is None:
            raise self._failure or ConnectionLost(f"no connection to {self.address}")
        return wire

    def _awaited(self, limit_s: float | None, *, fail_fast: bool) -> Wire | None:
        """The connection; None if there was none within ``limit_s``."""
        deadline_s = None if limit_s is None else time.monotonic() + limit_s
        with self._change:
            self._start()
            while (wire := self._usable()) is None:
                self._raise_if_hopeless(fail_fast=fail_fast)
                rest_s = None if deadline_s is None else deadline_s - time.monotonic()
                if rest_s is not None and rest_s <= 0:
                    return None
                self._change.wait(rest_s)
            return wire

    def _usable(self) -> Wire | None:
        """The connection, unless it is one that the reader thread has yet to find cut."""
        wire = self._wire
        return None if wire is None or wire.cut else wire

    def _raise_if_hopeless(self, *, fail_fast: bool) -> None:
        if self._closed:
            raise ClientClosed(self._ended)
        if is_final(self._failure, was_up=self._reached.yes):
            raise self._failure
        is_down = self._was_up and not self._is_first_try
        if fail_fast and (self._failure is not None or is_down):
            raise self._failure or ConnectionLost(f"not connected to {self.address}")

    # -- the reader thread

    def _start(self) -> None:
        if self._thread is None and not self._closed:
            self._failure, self._is_first_try = None, True
            self._thread = threading.Thread(
                target=_run, args=(ref(self),), name=f"nexo-{self.broker.label}", daemon=True
            )
            self._thread.start()

    def _try_again(self, error: NexoError) -> bool:
        with self._change:
            self._failure, self._is_first_try = error, False
            self._change.notify_all()
            if not is_final(error, was_up=self._reached.yes):
                return True
            self._thread = None
        self._fail_held(error)
        return False

    def _lost(self, error: NexoError) -> None:
        with self._change:
            self._wire = None
        self._fail_waiting(error)

    def _announce(self, wire: Wire) -> None:
        self._send_held(wire)
        with self._change:
            self._wire, self._failure, self.welcome = wire, None, wire.welcome
            again, self._was_up, self._is_first_try = self._was_up, True, False
            self._reached.yes = True
            if self._closed:
                wire.interrupt()
            self._change.notify_all()
        if again and self._hooks:
            # The hooks make calls, whose replies this thread has to read.
            threading.Thread(target=self._run_hooks, name="nexo-reconnect", daemon=True).start()

    def _run_hooks(self) -> None:
        for hook in list(self._hooks):
            try:
                hook()
            except NexoError as error:
                log.warning("after reconnecting to %s: %s", self.address, error)

    def _take(self, wire: Wire, block: bytes | memoryview) -> None:
        at, end = 0, len(block)
        while at < end:
            kind, meta, request_id, length = _unpack(block, at)
            first, start = at, at + HEADER_SIZE
            at = start + length
            if kind == FrameKind.RESPONSE:
                self._answer(request_id, meta, block[start:at])
            elif kind == FrameKind.PUSH:
                while at < end and block[at] == FrameKind.PUSH:
                    at += HEADER_SIZE + _unpack(block, at)[3]
                self._push(memoryview(block)[first:at])
            elif kind == FrameKind.GOODBYE:
                raise wire.parted()
            elif answer := control_answer(kind, request_id):
                self.send(wire, answer)

    def _answer(self, request_id: int, status: int, payload: Buffer) -> None:
        poll = self._waiting.pop(request_id, None)
        if poll is None or (future := poll.future).done():
            return
        match status:
            case Status.DATA:
                future.set_result(payload)  # type: ignore[arg-type]  # a slice of a block
            case Status.OK:
                future.set_result(b"")
            case Status.NULL:
                future.set_result(None)
            case _:
                self._fail(poll, error_of(status, payload))

    def send(self, wire: Wire, frames: bytes) -> None:
        """Write frames between the requests of other threads."""
        with self._send_lock:
            wire.send(frames)

    def _fail_waiting(self, error: NexoError) -> None:
        with self._send_lock:
            waiting, self._waiting = self._waiting, {}
        for poll in waiting.values():
            if not poll.future.done():
                self._fail(poll, error)

    # -- what a stopping server did not run

    def _fail(self, poll: DuplexPoll, error: NexoError) -> None:
        with self._change:
            if isinstance(error, ShuttingDown) and not (poll.fails_fast or self._closed):
                self._held.append(poll)
                return
        poll.future.set_exception(type(error)(*error.args))

    def _send_held(self, wire: Wire) -> None:
        with self._change:
            held, self._held = self._held, []
        with self._send_lock:
            for poll in held:
                self._request(wire, poll)

    def _fail_held(self, error: NexoError) -> None:
        with self._change:
            held, self._held = self._held, []
        for poll in held:
            poll.future.set_exception(type(error)(*error.args))

    def withdraw(self, poll: DuplexPoll) -> bool:
        """Answer a request with nothing if it is not sent; returns whether it was so."""
        with self._change:
            if poll not in self._held:
                return False
            self._held.remove(poll)
        poll.future.set_result(b"")
        return True


# -- the thread's own work, during which it holds a `Duplex` only while there is something to do


def _run(found: ref[Duplex]) -> None:
    """Connect, read until the cut, and again, with growing pauses in between."""
    failures = 0
    while (connect := _plan(found)) is not None:
        address, broker, end = connect
        try:
            wire = connect_any(address, broker)
        except NexoError as error:
            failures += 1
            if (duplex := found()) is None or not duplex._try_again(error):
                return
            del duplex
            with suppress(Empty):
                end.get(timeout=pause_s(failures, len(address.places)))
            continue
        failures = 0
        _serve(found, wire)


def _plan(found: ref[Duplex]) -> tuple[Address, Broker, SimpleQueue[None]] | None:
    """What it takes to connect; None when nobody wants it."""
    duplex = found()
    if duplex is None or duplex._closed:
        return None
    return duplex.address, duplex.broker, duplex._end


def _serve(found: ref[Duplex], wire: Wire) -> None:
    wire.set_timeout(wire.address.ping_s)
    error: NexoError = ConnectionLost("the connection ended before the reply")
    try:
        _wanted(found)._announce(wire)
        _read(found, wire)
    except NexoError as reason:
        error = reason
    except Exception:
        # This thread owns the connection: without it nobody would open the next one.
        log.exception("what came from %s could not be read", wire.address)
    if (duplex := found()) is not None:
        duplex._lost(error)
    wire.close()


def _read(found: ref[Duplex], wire: Wire) -> None:
    """Read until the connection ends; silence is answered with a ping, then given up."""
    silent = False
    while True:
        try:
            block = wire.read_block()
            silent = False
        except RequestTimeout:
            if silent:
                raise ConnectionLost(f"{wire.address} does not answer") from None
            silent = True
            _wanted(found).send(wire, _PING)
            continue
        _wanted(found)._take(wire, block)


def _wanted(found: ref[Duplex]) -> Duplex:
    duplex = found()
    if duplex is None:
        raise ConnectionLost("nobody uses the connection any more")
    return duplex


class DuplexPoll:
    """A request under way that any thread can cut short."""

    __slots__ = (
        "_duplex", "_limit_s", "_request_id", "_sent_s", "_wire", "fails_fast", "future", "op",
        "parts",
    )  # fmt: skip

    def __init__(
        self,
        duplex: Duplex,
        op: int,
        parts: tuple[Buffer, ...],
        limit_s: float,
        *,
        fails_fast: bool,
    ) -> None:
        self._duplex = duplex
        self.op = op
        self.parts = parts
        self._limit_s = limit_s
        self.fails_fast = fails_fast
        """Whether it fails, rather than being sent again, if a stopping server did not run it."""
        self.future: Future[Reply] = Future()
        self._wire: Wire
        self._request_id = 0
        self._sent_s = 0.0

    def sent(self, wire: Wire, request_id: int) -> None:
        """It is about to leave, and has its time from now on."""
        self._wire, self._request_id, self._sent_s = wire, request_id, time.monotonic()

    def reply(self) -> Reply:
        """Wait for the reply."""
        while True:
            left_s = self._sent_s + self._limit_s - time.monotonic()
            try:
                return self.future.result(max(left_s, 0))
            except NexoError:
                raise
            except TimeoutError:
                if left_s > 0:
                    continue  # it may have been sent again meanwhile
                # The future stays in the table, so that its id is taken until the reply came,
                # and is not cancelled, as the reply may be coming right now.
                raise RequestTimeout(
                    f"no reply from {self._duplex.address} within {self._limit_s:g} s"
                ) from None

    def on_reply(self, call: Callable[[], None]) -> None:
        """Call ``call`` when the reply is here, or an error instead; on the reader's thread."""
        self.future.add_done_callback(lambda _: call())

    def cancel(self) -> None:
        """Have the server answer now, with what it has: `reply` returns at once."""
        if not self.future.done() and not self._duplex.withdraw(self):
            with suppress(ConnectionLost):  # then `reply` ends with it
                self._duplex.send(self._wire, cancel_frame(self._duplex.broker, self._request_id))


def added(hooks: list[Hook], hook: Hook) -> Callable[[], None]:
    """Add ``hook``; returns a function that removes it."""
    hooks.append(hook)
    return lambda: hooks.remove(hook) if hook in hooks else None


def _ignore(frames: memoryview) -> None:
    """Pushes on a link that has no subscriber."""
