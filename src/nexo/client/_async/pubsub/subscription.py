"""Subscriptions: delivers messages to matching patterns, through bounded queues."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from threading import Lock
from typing import Any, Generic, TypeVar

from nexo.client._async import runtime
from nexo.client._async.handling import AsyncClosing
from nexo.client._async.link.link import Duplex, Link
from nexo.client.forks import from_before, on_fork
from nexo.client.pubsub_message import Message
from nexo.errors import Conflict, ConnectionLost, NexoError, Overloaded, RequestTimeout
from nexo.model import Policy
from nexo.model.patterns import SHARE, matches
from nexo.model.pubsub import Subscribe
from nexo.options.units import Duration, millis
from nexo.protocol.frames import pack_str
from nexo.protocol.messages import pack
from nexo.protocol.ops import Op
from nexo.protocol.pubsub import PushedMessages, parse_pushes

log = logging.getLogger("nexo.client")

T = TypeVar("T")

_MAX_TARGETS = 10_000
_CLOSE_S = 5.0
"""How long closing a client waits for handlers."""


class Subscription(AsyncClosing, Generic[T]):
    """Messages that match a pattern: ``async for message in subscription``.

    ``async with`` unsubscribes at the end. Messages wait in a queue of ``buffer``; when it is
    full, the policy applies and ``dropped`` counts. It survives a reconnect.
    """

    def __init__(
        self, inbox: SubscriptionInbox, options: Subscribe, type_: type[T] | None, buffer: int
    ) -> None:
        self.pattern = options.pattern
        self.dropped = 0
        """Messages dropped here, not taken fast enough; the server counts those it drops."""
        self._inbox = inbox
        self._options = options
        self.address = options.address
        """The server's name for it, distinct from others of the same pattern."""
        self._type = type_
        self._buffer = buffer
        self._waiting: deque[Message[T]] = deque()
        self._arrived = runtime.Event()
        self._leaving = False
        self._ended = False
        self._failure: NexoError | None = None
        self._task: runtime.Task | None = None

    def __repr__(self) -> str:
        state = "ended" if self._ended else f"{len(self._waiting)} messages wait"
        return f"<Subscription to {self.pattern!r}, {state}, {self.dropped} dropped>"

    def __aiter__(self) -> Subscription[T]:
        return self

    async def __anext__(self) -> Message[T]:
        try:
            return self._waiting.popleft()
        except IndexError:
            pass
        try:
            return await self.get()
        except ConnectionLost:
            raise StopAsyncIteration from None

    async def get(self, timeout: Duration | None = None) -> Message[T]:
        """The next message; `RequestTimeout` when none comes in time.

        Raises `ConnectionLost` when the subscription has ended, `Overloaded` when it ended because
        of its policy, or the error with which the server rejected it after a reconnect.
        """
        deadline_s = (
            None if timeout is None else runtime.now_s() + millis(timeout, "timeout") / 1_000
        )
        while True:
            try:
                return self._waiting.popleft()
            except IndexError:
                await self._wait(deadline_s)

    async def _wait(self, deadline_s: float | None) -> None:
        self._inbox.check()
        self._arrived.clear()
        if self._waiting or self._ended:  # just before the flag was cleared: wake the others too
            self._arrived.set()
        if self._waiting:
            return
        if self._failure is not None:
            raise self._failure
        if self._ended:
            raise ConnectionLost(f"the subscription to {self.pattern!r} has ended")
        left_s = None if deadline_s is None else max(0.0, deadline_s - runtime.now_s())
        if not await self._arrived.wait(left_s):
            raise RequestTimeout(f"no message for {self.pattern!r} in time")

    async def close(self) -> None:
        """End it; iteration ends after the messages that already arrived."""
        try:
            await self._inbox.remove(self)
        finally:
            self._end()
        await self._join()

    async def _join(self, timeout_s: float | None = None) -> None:
        if self._task is not None and not self._task.is_current():
            await self._task.join(timeout_s)

    # -- for the inbox and the client

    def is_leaving(self) -> bool:
        """Whether it is being ended, and need not be renewed."""
        return self._leaving

    def call_back(self, handler: Callable[[Message[T]], Any]) -> None:
        """Call ``handler`` with each message, one after another."""
        self._task = runtime.spawn(self._handle, handler, name=f"nexo-{self.pattern}")

    async def _handle(self, handler: Callable[[Message[T]], Any]) -> None:
        try:
            async for message in self:
                await self._call(handler, message)
        except NexoError as error:
            log.error("the subscription to %r ends: %s", self.pattern, error)

    async def _call(self, handler: Callable[[Message[T]], Any], message: Message[T]) -> None:
        try:
            await runtime.invoke(handler, message)
        except BaseException as error:
            if not runtime.is_failure(error):
                raise
            log.exception("the handler of %r failed on %r", self.pattern, message.topic)

    def _accept(self, topic: str, pushed: PushedMessages) -> None:
        """Queue messages; called by one thread at a time."""
        if self._ended:
            return
        retained, type_ = pushed.retained, self._type
        messages: list[Message[T]] = [
            Message(topic, value, ms, retained, type_, pushed.headers)
            for value, ms in pushed.messages
        ]
        excess = len(self._waiting) + len(messages) - self._buffer
        if excess > 0 and self._buffer:
            messages = self._overflow(messages, excess)
        self._waiting.extend(messages)
        self._arrived.set()

    def _overflow(self, messages: list[Message[T]], excess: int) -> list[Message[T]]:
        """Apply the policy until the messages fit."""
        self.dropped += excess
        if self._options.policy != Policy.DROP_OLDEST:
            if self._options.policy == Policy.DISCONNECT:
                self._fail(Overloaded(f"the subscription to {self.pattern!r} was too slow"))
            return messages[: len(messages) - excess]
        for _ in range(min(excess, len(self._waiting))):
            with suppress(IndexError):  # the reader was faster
                self._waiting.popleft()
        return messages[-self._buffer :]

    def _fail(self, error: NexoError) -> None:
        """End it with an error, raised after the messages that already arrived."""
        self._failure = error
        self._end()

    def _end(self) -> None:
        self._ended = True
        self._arrived.set()


class SubscriptionInbox:
    """All subscriptions of one client, over one connection."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._subscriptions: tuple[Subscription[Any], ...] = ()
        self._turn = 0
        self._addresses = count(1)
        self._targets: dict[bytes, tuple[str, list[Subscription[Any]]]] = {}
        self._hooked: Duplex | None = None
        """The connection that feeds it; a forked process opens another."""
        self._guard = Lock()
        """In the sync client, several threads may subscribe and unsubscribe at once."""
        on_fork(self)

    def forked(self) -> None:
        """After a fork no other thread holds a lock here."""
        self._guard = Lock()

    def check(self) -> None:
        """Raise in a forked process, where messages would never arrive."""
        if self._hooked is not self._link.duplex():
            raise Conflict(from_before("the subscription"))

    def new_address(self) -> str:
        """A name for a subscription that no pattern can have."""
        return f"\0{next(self._addresses)}"

    async def add(self, subscription: Subscription[Any]) -> None:
        """Subscribe on the server, and deliver from now on."""
        with self._guard:
            self._hook()
            self._change((*self._subscriptions, subscription))
        try:
            await self._subscribe(subscription)
        except BaseException:
            self._drop(subscription)
            raise

    async def remove(self, subscription: Subscription[Any]) -> None:
        """Stop delivering; the server is notified when no other has the same pattern.

        Messages pushed before its reply are still delivered.
        """
        if subscription not in self._subscriptions:
            return
        subscription._leaving = True
        duplex = self._link.duplex()
        try:
            if duplex.up and not self._wanted(subscription.pattern):
                await duplex.call(Op.UNSUB, pack_str(subscription.pattern))
        except ConnectionLost:
            pass  # the subscription ended with the connection
        finally:
            self._drop(subscription)

    def _wanted(self, pattern: str) -> bool:
        return any(s.pattern == pattern and not s._leaving for s in self._subscriptions)

    def _hook(self) -> None:
        duplex = self._link.duplex()
        if self._hooked is not duplex:
            self._hooked = duplex
            self._change(())
            duplex.on_push(self._on_push)
            duplex.on_reconnect(self._resubscribe)
            duplex.on_close(self._client_closes)

    async def _client_closes(self) -> None:
        """End all subscriptions: their readers would wait for
        ever; a handler that hangs must not block.
        """
        deadline_s = runtime.now_s() + _CLOSE_S
        with self._guard:
            ending = self._subscriptions
            self._change(())
        for subscription in ending:
            subscription._end()
        for subscription in ending:
            await subscription._join(max(0.0, deadline_s - runtime.now_s()))

    async def _subscribe(self, subscription: Subscription[Any]) -> None:
        await self._link.duplex().call(Op.SUBSCRIBE, pack(subscription._options))

    async def _resubscribe(self) -> None:
        for subscription in self._subscriptions:
            if subscription.is_leaving():
                continue
            try:
                await self._subscribe(subscription)
            except ConnectionLost:
                raise  # the next connection starts over
            except NexoError as error:
                self._drop(subscription)
                subscription._fail(error)
            if subscription.is_leaving() and not self._wanted(subscription.pattern):
                await self._link.duplex().call(Op.UNSUB, pack_str(subscription.pattern))

    def _drop(self, subscription: Subscription[Any]) -> None:
        with self._guard:
            self._change(tuple(s for s in self._subscriptions if s is not subscription))

    def _change(self, subscriptions: tuple[Subscription[Any], ...]) -> None:
        self._subscriptions = subscriptions
        # A new dict, not a cleared one: a reader thread may be filling the old one.
        self._targets = {}

    def _on_push(self, frames: memoryview) -> None:
        """Deliver every message to its subscriptions."""
        targets = self._targets
        for pushed in parse_pushes(bytes(frames)):
            if pushed.pattern is not None:
                topic, receivers = pushed.topic.decode(), self._addressees(pushed)
            else:
                topic, receivers = targets.get(pushed.topic) or self._find(targets, pushed.topic)
            for receiver in receivers:
                receiver._accept(topic, pushed)

    def _find(
        self, targets: dict[bytes, tuple[str, list[Subscription[Any]]]], topic: bytes
    ) -> tuple[str, list[Subscription[Any]]]:
        text = topic.decode()
        plain = [s for s in self._subscriptions if not s.pattern.startswith(f"{SHARE}/")]
        if len(targets) >= _MAX_TARGETS:
            targets.clear()
        found = targets[topic] = (text, [s for s in plain if matches(s.pattern, text)])
        return found

    def _addressees(self, pushed: PushedMessages) -> list[Subscription[Any]]:
        """A retained copy is for the new subscription, a shared one for one of its pattern's."""
        to = (pushed.pattern or b"").decode()
        if pushed.retained:
            return [s for s in self._subscriptions if s.address == to]
        receivers = [s for s in self._subscriptions if s.pattern == to]
        self._turn += 1
        return receivers and [receivers[self._turn % len(receivers)]]
