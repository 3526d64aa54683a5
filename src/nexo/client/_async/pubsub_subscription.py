"""Subscriptions: what arrives is given to those whose pattern matches, through bounded queues."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import TracebackType
from typing import Any, Generic, TypeVar

from nexo.brokers.pubsub.outbox import Policy
from nexo.brokers.pubsub.topics import SHARE, matches
from nexo.client._async import runtime
from nexo.client._async.connection import Link
from nexo.client.pubsub_message import Message
from nexo.errors import ConnectionLost, Overloaded
from nexo.protocol.frames import pack_str
from nexo.protocol.ops import Op
from nexo.protocol.pubsub import RETAINED, Subscribe, pack_command, parse_pushes

log = logging.getLogger("nexo.client")

T = TypeVar("T")


class Subscription(Generic[T]):
    """Messages that match a pattern: ``async for message in subscription``.

    ``async with`` unsubscribes at the end. Messages wait in a queue of ``buffer``; when it is
    full, the policy decides and ``dropped`` counts. After a reconnect, it goes on by itself.
    """

    def __init__(
        self, inbox: Inbox, options: Subscribe, type_: type[T] | None, buffer: int
    ) -> None:
        self.pattern = options.pattern
        self.dropped = 0
        """Messages lost here, not taken fast enough; the server counts those it drops."""
        self._inbox = inbox
        self._options = options
        self._type = type_
        self._queue: runtime.LocalQueue[Message[T]] = runtime.LocalQueue(buffer)
        self._overrun = False
        self._task: runtime.Task | None = None

    def __aiter__(self) -> Subscription[T]:
        return self

    async def __anext__(self) -> Message[T]:
        message = self._queue.take_oldest()
        if message is not None:
            return message
        try:
            return await self._queue.get()
        except ConnectionLost:
            if self._overrun:
                raise Overloaded(f"the subscription to {self.pattern!r} was too slow") from None
            raise StopAsyncIteration from None

    async def get(self, timeout_s: float | None = None) -> Message[T]:
        """The next message; `TimeoutError` when none comes in time."""
        return await self._queue.get(timeout_s)

    async def unsubscribe(self) -> None:
        """End it; iterating ends once what already arrived is taken."""
        await self._inbox.remove(self)
        self._queue.close()
        if self._task is not None and not self._task.is_current():
            await self._task.join()

    async def __aenter__(self) -> Subscription[T]:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.unsubscribe()

    # -- for the inbox and the client

    def call_back(self, handler: Callable[[Message[T]], Any]) -> None:
        """Have ``handler`` called with each message, one after another."""
        self._task = runtime.spawn(self._handle, handler, name=f"nexo-{self.pattern}")

    async def _handle(self, handler: Callable[[Message[T]], Any]) -> None:
        async for message in self:
            try:
                await runtime.invoke(handler, message)
            except Exception:
                log.exception("the handler of %r failed on %r", self.pattern, message.topic)

    def _deliver(self, topic: str, value: bytes, timestamp_ms: int, retained: bool) -> None:
        message = Message(topic, value, timestamp_ms, retained, self._type)
        if not self._queue.offer(message):
            self._overflow(message)

    def _overflow(self, message: Message[T]) -> None:
        self.dropped += 1
        match self._options.policy:
            case Policy.DROP_OLDEST:
                self._queue.take_oldest()
                self._queue.offer(message)
            case Policy.DISCONNECT:
                self._overrun = True
                self._queue.close()


class Inbox:
    """All subscriptions of one client, over one connection."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._subscriptions: tuple[Subscription[Any], ...] = ()
        self._turn = 0
        self._targets: dict[bytes, tuple[str, list[Subscription[Any]]]] = {}
        self._hooked = False

    async def add(self, subscription: Subscription[Any]) -> None:
        """Tell the server, and deliver from now on."""
        self._hook()
        self._change((*self._subscriptions, subscription))
        try:
            await self._subscribe(subscription)
        except BaseException:
            self._change(tuple(s for s in self._subscriptions if s is not subscription))
            raise

    async def remove(self, subscription: Subscription[Any]) -> None:
        """Deliver no more; the server is told when no other has the same pattern.

        What was pushed before its reply is still delivered.
        """
        others = [s for s in self._subscriptions if s is not subscription]
        if len(others) == len(self._subscriptions):
            return
        try:
            if all(other.pattern != subscription.pattern for other in others):
                await self._link.duplex().call(Op.UNSUB, pack_str(subscription.pattern))
        except ConnectionLost:
            pass  # the subscription went with the connection
        finally:
            self._change(tuple(s for s in self._subscriptions if s is not subscription))

    def _hook(self) -> None:
        if not self._hooked:
            self._hooked = True
            self._link.duplex().on_push(self._on_push)
            self._link.duplex().on_reconnect(self._resubscribe)

    async def _subscribe(self, subscription: Subscription[Any]) -> None:
        await self._link.duplex().call(Op.SUBSCRIBE, pack_command(subscription._options))

    async def _resubscribe(self) -> None:
        for subscription in self._subscriptions:
            await self._subscribe(subscription)

    def _change(self, subscriptions: tuple[Subscription[Any], ...]) -> None:
        self._subscriptions = subscriptions
        # A new dict, not a cleared one: a reader thread may be filling the old one.
        self._targets = {}

    def _on_push(self, frames: memoryview) -> None:
        targets = self._targets
        for meta, timestamp_ms, topic, value, pattern in parse_pushes(bytes(frames)):
            if pattern is not None:
                self._on_addressed(meta, timestamp_ms, topic, value, pattern.decode())
                continue
            text, receivers = targets.get(topic) or self._find(targets, topic)
            for receiver in receivers:
                receiver._deliver(text, value, timestamp_ms, False)

    def _find(
        self, targets: dict[bytes, tuple[str, list[Subscription[Any]]]], topic: bytes
    ) -> tuple[str, list[Subscription[Any]]]:
        text = topic.decode()
        plain = [s for s in self._subscriptions if not s.pattern.startswith(f"{SHARE}/")]
        if len(targets) >= 10_000:
            targets.clear()
        found = targets[topic] = (text, [s for s in plain if matches(s.pattern, text)])
        return found

    def _on_addressed(
        self, meta: int, timestamp_ms: int, topic: bytes, value: bytes, pattern: str
    ) -> None:
        """A retained copy is for all who have the pattern, a shared one for one of them."""
        receivers = [s for s in self._subscriptions if s.pattern == pattern]
        if receivers and not meta & RETAINED:
            self._turn += 1
            receivers = [receivers[self._turn % len(receivers)]]
        for receiver in receivers:
            receiver._deliver(topic.decode(), value, timestamp_ms, bool(meta & RETAINED))
