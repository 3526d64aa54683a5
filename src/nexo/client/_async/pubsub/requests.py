"""Requests and replies over pub/sub (SPEC O2).

A request is a message whose headers name a topic of the asking client and a number; a reply is
a message to that topic with the same number.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any, NamedTuple, Protocol

from nexo.client._async import runtime
from nexo.client._async.pubsub.subscription import Subscription
from nexo.client.checks import failure_text, seconds, whole
from nexo.client.pubsub_message import Message
from nexo.errors import NoResponder, ReplyFailed, RequestTimeout
from nexo.options.units import Duration

REPLY_TO, REQUEST, ERROR = "reply-to", "request", "error"
"""Headers of requests and replies."""
_MAX_REPLIES = 1_000_000


class RequestTransport(Protocol):
    """Pub/sub as requests and replies use it."""

    @property
    def timeout_s(self) -> float:
        """The default timeout of a request."""

    def publish(self, topic: str, value: object, *, headers: dict[str, Any]) -> Awaitable[int]:
        """Publish a message; the result is the number of receivers."""

    async def subscribe(
        self, pattern: str, handler: Callable[[Message[Any]], Any], *, retained: bool
    ) -> Subscription[Any]:
        """Call ``handler`` with each message."""


class _PendingRequest(NamedTuple):
    """A request in flight."""

    replies: list[Message[Any]]
    arrived: runtime.Event


class TopicRequests:
    """The requests of one client; replies arrive through its own subscription."""

    def __init__(self, pubsub: RequestTransport) -> None:
        self._pubsub = pubsub
        self._topic = f"$reply/{secrets.token_hex(16)}/replies"
        self._numbers = count(1)
        self._waiting: dict[int, _PendingRequest] = {}
        self._subscribing = runtime.Mutex()
        self._subscription: Subscription[Any] | None = None

    async def ask(
        self, topic: str, value: object, timeout: Duration | None, limit: int
    ) -> list[Message[Any]]:
        """Up to ``limit`` replies: of all responders, or those that came in time.

        Raises `NoResponder` at once if nobody gets it, `RequestTimeout` if no reply came.
        """
        limit_s = seconds(timeout)
        until_s = runtime.now_s() + (self._pubsub.timeout_s if limit_s is None else limit_s)
        whole(limit, "limit", 1, _MAX_REPLIES)
        await self._subscribe()
        number, waiting = next(self._numbers), _PendingRequest([], runtime.Event())
        self._waiting[number] = waiting
        try:
            headers = {REPLY_TO: self._topic, REQUEST: number}
            receivers = await self._pubsub.publish(topic, value, headers=headers)
            if not receivers:
                raise NoResponder(f"nobody subscribes to {topic!r}, so nobody can reply")
            return await self._replies(topic, waiting, min(limit, receivers), until_s)
        finally:
            del self._waiting[number]

    async def _replies(
        self, topic: str, waiting: _PendingRequest, wanted: int, until_s: float
    ) -> list[Message[Any]]:
        while len(waiting.replies) < wanted:
            waiting.arrived.clear()
            left_s = max(0.0, until_s - runtime.now_s())
            if len(waiting.replies) < wanted and not await waiting.arrived.wait(left_s):
                break
        if not waiting.replies:
            raise RequestTimeout(f"no reply to the request on {topic!r} in time")
        return waiting.replies[:wanted]

    async def _subscribe(self) -> None:
        async with self._subscribing:
            if self._subscription is None:
                self._subscription = await self._pubsub.subscribe(
                    self._topic, self._arrived, retained=False
                )

    def _arrived(self, message: Message[Any]) -> None:
        waiting = self._waiting.get(message.headers.get(REQUEST, 0))
        if waiting is not None:
            waiting.replies.append(message)
            waiting.arrived.set()


def value_of(reply: Message[Any]) -> Any:
    """The value of a reply; `ReplyFailed` if the responder's handler failed."""
    if (error := reply.headers.get(ERROR)) is not None:
        raise ReplyFailed(f"the responder failed: {error}")
    return reply.value


def responder(
    pubsub: RequestTransport, handler: Callable[[Message[Any]], Any]
) -> Callable[[Message[Any]], Any]:
    """A handler that replies with what ``handler`` returns, or with its error."""

    async def respond(message: Message[Any]) -> None:
        topic = message.headers.get(REPLY_TO)
        headers: dict[str, Any] = {REQUEST: message.headers.get(REQUEST)}
        result: Any = None
        try:
            result = await runtime.invoke(handler, message)
        except BaseException as error:
            if topic is None or not runtime.is_failure(error):
                raise
            headers[ERROR] = failure_text(error)
        if topic is not None:
            await pubsub.publish(topic, result, headers=headers)

    return respond
