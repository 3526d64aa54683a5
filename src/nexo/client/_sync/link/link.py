"""The sync client's link to one broker: a pool of connections, one per calling thread.

Plain calls need no background thread: the caller writes and reads itself. What needs one
connection that hears everything, subscriptions and consumers, takes `Link.duplex`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TypeVar

from nexo.client._sync.link.duplex import Duplex, Hook, added
from nexo.client._sync.link.poll import Poll
from nexo.client._sync.link.repeating import Repeating
from nexo.client._sync.link.wire import Wire, open_wire
from nexo.client.address import Address
from nexo.client.connecting import RESTART_S, Reached
from nexo.client.forks import NotPicklable, on_fork
from nexo.client.replies import Reply, cancel_frame
from nexo.errors import ClientClosed, ConnectionLost, NexoError, ProtocolError, ShuttingDown
from nexo.model import Broker, Buffer
from nexo.protocol.hello import Welcome

__all__ = ["Duplex", "Link", "Poll"]

T = TypeVar("T")


class Link(Repeating, NotPicklable):
    """One broker's connections as the brokers' clients use them; they open on first use."""

    def __init__(self, address: Address, broker: Broker, reached: Reached | None = None) -> None:
        self.address = address
        self.broker = broker
        self.welcome: Welcome | None = None
        """What the server said at the last HELLO."""
        self._reached = reached or Reached()
        self._timeout_s = address.timeout_s
        self._idle: list[Wire] = []
        self._lock = threading.Lock()
        self._close_hooks: list[Hook] = []
        self._duplex: Duplex | None = None
        self._closed = False
        on_fork(self)

    # -- for the brokers' clients

    def call(self, op: int, *parts: Buffer, timeout_s: float | None = None) -> Reply:
        """Send a request and wait for its reply; the parts follow one another as the payload.

        A timeout of None is the address's default.
        """
        return self._on_wire(lambda wire: wire.reply(wire.request(op, parts)), timeout_s)

    def each(self, op: int, payloads: Iterable[Buffer]) -> list[Reply | NexoError]:
        """Send small requests together, then wait for all; the reply to each, or why it failed."""
        asked = list(payloads)
        replies: list[Reply | NexoError] = [*self._each(op, asked)]
        while not self.fails_fast and (unrun := _unrun(replies)):
            time.sleep(RESTART_S)
            again = self._each(op, [asked[at] for at in unrun])
            for at, reply in zip(unrun, again, strict=True):
                replies[at] = reply
        return replies

    def _each(self, op: int, payloads: list[Buffer]) -> list[Reply | NexoError]:
        return self._on_wire(lambda wire: wire.replies(wire.requests(op, payloads)), None)

    def _on_wire(self, ask: Callable[[Wire], T], timeout_s: float | None) -> T:
        """Ask on a connection, and on the next one what a stopping server did not do (SPEC O3)."""
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        until_s = time.monotonic() + limit_s
        while True:
            wire = self._take(timeout_s)
            try:
                wire.set_timeout(limit_s)
                found = ask(wire)
            except BaseException as error:
                self._after(wire, error)
                again = not self.fails_fast and time.monotonic() < until_s
                if not (again and isinstance(error, ShuttingDown)):
                    raise
            else:
                self._give_back(wire)
                return found
            time.sleep(RESTART_S)

    @property
    def fails_fast(self) -> bool:
        """Whether a request fails while the server is down, instead of waiting."""
        return self.address.while_down == "fail"

    def poll(
        self,
        op: int,
        *parts: Buffer,
        timeout_s: float | None = None,
        on_late: Callable[[Reply], None] | None = None,
    ) -> Poll:
        """Send a long poll, which can be cut short.

        ``on_late`` has no effect here: a blocked thread is not cancelled.
        """
        poll = PoolPoll(self, op, parts, timeout_s)
        poll.send()
        return poll

    def begin(
        self, op: int, parts: tuple[Buffer, ...], timeout_s: float | None
    ) -> tuple[Wire, int]:
        """Send a request on a connection that is its own until the reply; returns its id too."""
        wire = self._take(timeout_s)
        try:
            wire.set_timeout(self._timeout_s if timeout_s is None else timeout_s)
            return wire, wire.request(op, parts)
        except BaseException as error:
            self._after(wire, error)
            raise

    def on_close(self, hook: Hook) -> Callable[[], None]:
        """Have ``hook`` called when the client is closed, while requests still work.

        Returns a function that removes the hook.
        """
        return added(self._close_hooks, hook)

    def duplex(self) -> Duplex:
        """The link for pushes and consumers: one connection, read by a thread of its own."""
        with self._lock:
            if self._duplex is None:
                if self._closed:
                    raise ClientClosed("the client is closed")
                self._duplex = Duplex(self.address, self.broker, self._reached)
            return self._duplex

    @property
    def open(self) -> bool:
        """Whether there is something to close."""
        return bool(self._idle) or (self._duplex is not None and self._duplex.open)

    def close(self) -> None:
        """End all connections."""
        hooks, self._close_hooks = self._close_hooks, []
        for hook in hooks:
            hook()
        if self._duplex is not None:
            self._duplex.close()
        self._closed = True
        self._drop_idle()

    def raise_unheard(self) -> None:
        """Every call here waits for its reply, so that nothing fails unheard."""

    def forked(self) -> None:
        """The child opens connections of its own; consumers and subscriptions are the parent's."""
        self._lock = threading.Lock()
        self._idle, self._close_hooks, self._duplex = [], [], None

    # -- the pool

    def _take(self, timeout_s: float | None) -> Wire:
        while self._idle:
            try:
                wire = self._idle.pop()
            except IndexError:
                break
            now_s = time.monotonic()
            idle_s = now_s - wire.used_s
            if idle_s < wire.trusted_s or not wire.is_dead(idle_s):
                wire.used_s = now_s
                return wire
            wire.close()
        if self._closed:
            raise ClientClosed("the client is closed")
        wire = open_wire(self.address, self.broker, timeout_s, was_up=self._reached.yes)
        self.welcome, self._reached.yes = wire.welcome, True
        return wire

    def _give_back(self, wire: Wire) -> None:
        if wire.cut:
            wire.close()
            return
        self._idle.append(wire)
        if self._closed:
            self._drop_idle()

    def _after(self, wire: Wire, error: BaseException) -> None:
        """Keep a connection only when it is surely at the border of a frame or can find it."""
        broken = wire.cut or isinstance(error, ConnectionLost | ProtocolError | ShuttingDown)
        if isinstance(error, NexoError) and not broken:
            self._give_back(wire)
            return
        wire.close()
        if isinstance(error, ConnectionLost):
            self._drop_idle()

    def _drop_idle(self) -> None:
        while self._idle:
            self._idle.pop().close()


class PoolPoll:
    """A request under way that another thread can cut short (`Op.CANCEL`)."""

    __slots__ = (
        "_cancelled",
        "_link",
        "_lock",
        "_op",
        "_parts",
        "_request_id",
        "_timeout_s",
        "_wire",
    )

    def __init__(
        self, link: Link, op: int, parts: tuple[Buffer, ...], timeout_s: float | None
    ) -> None:
        self._link = link
        self._op = op
        self._parts = parts
        self._timeout_s = timeout_s
        self._wire: Wire | None = None
        self._request_id = 0
        self._cancelled = False
        self._lock = threading.Lock()

    def send(self) -> None:
        """Send the request; on the next connection if a stopping server did not run it."""
        while True:
            try:
                wire, request_id = self._link.begin(self._op, self._parts, self._timeout_s)
            except ShuttingDown:
                if self._link.fails_fast:
                    raise
                time.sleep(RESTART_S)
            else:
                break
        with self._lock:
            self._wire, self._request_id = wire, request_id
        if self._cancelled:
            self.cancel()

    def reply(self) -> Reply:
        """Wait for the reply, once."""
        while True:
            wire = self._wire
            if wire is None:
                raise ConnectionLost("the reply was already taken")
            try:
                reply = wire.reply(self._request_id)
            except BaseException as error:
                self._let_go()
                self._link._after(wire, error)
                if self._link.fails_fast or not isinstance(error, ShuttingDown):
                    raise
            else:
                self._let_go()
                self._link._give_back(wire)
                return reply
            time.sleep(RESTART_S)
            self.send()

    def cancel(self) -> None:
        """Have the server answer now, with what it has: `reply` returns at once."""
        self._cancelled = True
        with self._lock:
            if self._wire is not None:
                with suppress(ConnectionLost):  # then `reply` ends with it
                    self._wire.send(cancel_frame(self._link.broker, self._request_id))

    def _let_go(self) -> None:
        """From here on the connection is another call's; no cancel may write to it."""
        with self._lock:
            self._wire = None


def _unrun(replies: list[Reply | NexoError]) -> list[int]:
    return [at for at, reply in enumerate(replies) if isinstance(reply, ShuttingDown)]
