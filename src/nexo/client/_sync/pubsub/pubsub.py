# Generated from _async/pubsub/pubsub.py by tools/unasync.py; edit that file instead.
"""Pub/Sub as its users see it: publish to topics, subscribe to patterns (SPEC C)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Generic, Never, TypeVar, Unpack, overload

from nexo.client._sync.link.link import Link
from nexo.client._sync.pubsub.publisher import MessagePublisher
from nexo.client._sync.pubsub.requests import TopicRequests, responder, value_of
from nexo.client._sync.pubsub.subscription import Subscription, SubscriptionInbox
from nexo.client._sync.requests import request
from nexo.client.by_value import by_value
from nexo.client.checks import each, function, not_keywords, positive_millis, whole
from nexo.client.pubsub_message import Message, SubscribeOptions
from nexo.client.replies import check_sizes, room_bytes
from nexo.client.stream_records import Headers, headers_bytes
from nexo.errors import InvalidName, InvalidOption, NexoError
from nexo.model import Policy
from nexo.model.patterns import SHARE, check_topic, parse_pattern
from nexo.model.pubsub import RetainedTopic, Subscribe, SubscriptionInfo, Will
from nexo.options.units import Duration
from nexo.protocol.messages import pack
from nexo.protocol.ops import Op
from nexo.protocol.pubsub import (
    RUN_BYTES,
    Listing,
    Publish,
    pack_runs,
    parse_receivers,
)
from nexo.protocol.values import check_type, decode_value, encode_value, encode_values

T = TypeVar("T")

BUFFER = 10_000
"""Messages that a subscription buffers here before its policy applies."""


class PubSub:
    """The topics of one server; ``client.pubsub("a/b")`` is one of them, or a pattern."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._inbox = SubscriptionInbox(link)
        self._publisher = MessagePublisher(link)
        self._requests = TopicRequests(self)
        self._topics: dict[str, bytes] = {}
        self._will: Will | None = None
        self._forget_will: Callable[[], None] = lambda: None

    @overload
    def __call__(self, pattern: str) -> PubSubTopic[Any]: ...
    @overload
    def __call__(self, pattern: str, type_: type[T]) -> PubSubTopic[T]: ...
    def __call__(self, pattern: str, type_: type[T] | None = None) -> PubSubTopic[Any]:
        """A topic or pattern to publish to or subscribe to, with values of ``type_``.

        Handlers of a `PubSubTopic` get the value of each message; those of `subscribe` get the
        `Message`, with its topic and time.
        """
        return PubSubTopic(self, pattern, type_)

    def __repr__(self) -> str:
        return f"<PubSub of {self._link.address}>"

    def publish(
        self,
        topic: str,
        value: object,
        *misplaced: Never,
        headers: Headers = None,
        retain: bool = False,
        ttl: Duration | None = None,
    ) -> int:
        """Publish a message; the result is the number of receivers.

        ``headers`` are sent beside the value.

        ``retain`` keeps it as the topic's last value for later subscribers, for ``ttl`` (seconds,
        ``"5m"``, a timedelta) if given; an empty value (``b""`` or ``""``) clears it. Need not be
        awaited: messages of one loop turn are sent together.
        """
        if misplaced:
            raise not_keywords(misplaced, "publish(topic, value, retain=True)")
        try:
            raw = self._topics.get(topic) or self._checked(topic)
        except TypeError:  # not even hashable
            raise InvalidName(f"a topic is text, not {type(topic).__name__}") from None
        options = _options(retain, ttl) if retain or ttl is not None else None
        if headers:
            return self._publisher.send(raw, encode_value(value), options, headers_bytes(headers))
        return self._publisher.send(raw, encode_value(value), options)

    def publish_many(
        self,
        topic: str,
        values: Iterable[object],
        *,
        retain: bool = False,
        ttl: Duration | None = None,
    ) -> list[int]:
        """Publish messages to one topic in few requests; the receivers of each.

        A `ConnectionLost` may leave the first ones published. Options as in `publish`.
        """
        raw = self._checked(topic)
        options = _options(retain, ttl) if retain or ttl is not None else None
        encoded, now_ms = encode_values(list(each(values))), self._publisher.clock.now_ms()
        if self._link.welcome is None:
            self._link.call(Op.ECHO)  # to learn how much the server accepts at once
        welcome = self._link.welcome
        room, most = room_bytes(welcome, RUN_BYTES), self._publisher.most
        runs = list(pack_runs(raw, encoded, now_ms, room, most))
        check_sizes(welcome, map(len, runs))
        replies = self._publisher.send_all(runs, options)
        return parse_receivers(b"".join([reply or b"" for reply in replies]))

    @overload
    def subscribe(
        self,
        pattern: str,
        handler: Callable[[Message[Any]], Any] | None = None,
        **options: Unpack[SubscribeOptions],
    ) -> Subscription[Any]: ...
    @overload
    def subscribe(
        self,
        pattern: str,
        handler: Callable[[Message[T]], Any] | None = None,
        *,
        type_: type[T],
        **options: Unpack[SubscribeOptions],
    ) -> Subscription[T]: ...
    def subscribe(
        self,
        pattern: str,
        handler: Callable[[Message[Any]], Any] | None = None,
        *,
        type_: type[Any] | None = None,
        policy: str = "drop_oldest",
        max_messages: int | None = None,
        max_bytes: int | None = None,
        retained: bool = True,
        buffer: int = BUFFER,
    ) -> Subscription[Any]:
        """Receive what matches ``pattern``: by iterating the result, or through ``handler``.

        ``handler`` gets each `Message`; its exceptions are logged. If this client reads too slowly,
        the server keeps up to ``max_messages`` and ``max_bytes`` for it, and this client up to
        ``buffer`` messages (0: any number); beyond that ``policy`` applies: ``drop_oldest``,
        ``drop_newest`` or ``disconnect``. ``retained=False`` leaves out last values from before the
        subscription.
        """
        parse_pattern(pattern)
        if handler is not None:
            function(handler)
        whole(buffer, "buffer", 0, sys.maxsize)
        if policy not in list(Policy):
            raise InvalidOption(f"policy {policy!r} is not known; use one of {', '.join(Policy)}")
        options = Subscribe(
            pattern, policy, max_messages, max_bytes, not retained, self._inbox.new_address()
        )
        subscription: Subscription[Any] = Subscription(self._inbox, options, type_, buffer)
        self._inbox.add(subscription)
        if handler is not None:
            subscription.call_back(handler)
        return subscription

    # -- requests and replies

    @property
    def timeout_s(self) -> float:
        """The default timeout of a request."""
        return self._link.address.timeout_s

    @overload
    def request(self, topic: str, value: object, *, timeout: Duration | None = None) -> Any: ...
    @overload
    def request(
        self, topic: str, value: object, type_: type[T], *, timeout: Duration | None = None
    ) -> T: ...
    def request(
        self,
        topic: str,
        value: object,
        type_: type[Any] | None = None,
        *,
        timeout: Duration | None = None,
    ) -> Any:
        """Send a request and wait for the first reply, as a value of ``type_``.

        Raises `NoResponder` at once if nobody subscribes to ``topic``, `ReplyFailed` if the
        responder's handler failed, `RequestTimeout` if no reply came.
        """
        (reply,) = self._requests.ask(topic, value, timeout, 1)
        return decode_value(encode_value(value_of(reply)), type_) if type_ else value_of(reply)

    def request_many(
        self, topic: str, value: object, *, timeout: Duration | None = None, limit: int = 1_000
    ) -> list[Message[Any]]:
        """Send a request to every responder; returns all replies, or those that came in time."""
        return self._requests.ask(topic, value, timeout, limit)

    def reply(
        self, pattern: str, handler: Callable[[Message[Any]], Any], *, group: str | None = None
    ) -> Subscription[Any]:
        """Reply to requests on ``pattern`` with what ``handler`` returns for each `Message`.

        Responders of one ``group`` share the requests: each is sent to one of them.
        """
        function(handler)
        shared = pattern if group is None else f"{SHARE}/{group}/{pattern}"
        return self.subscribe(shared, responder(self, handler), retained=False)

    def will(
        self, topic: str, value: object, *, retain: bool = False, ttl: Duration | None = None
    ) -> None:
        """Let the server publish this if the client disconnects without `close` (SPEC C5)."""
        check_topic(topic)
        options = _options(retain, ttl)
        if self._will is None:
            self._forget_will = self._link.duplex().on_reconnect(self._send_will)
        self._will = Will(topic, encode_value(value), options.retain, options.ttl_ms)
        self._send_will()

    def clear_will(self) -> None:
        """Withdraw the last will."""
        if self._will is not None:
            self._will = None
            self._forget_will()
            if self._link.duplex().up:  # otherwise it ended with the connection
                self._send_will()

    def retained(self, pattern: str = "#", *, limit: int = 100) -> list[RetainedTopic]:
        """Topics that retain a message."""
        ask = Listing(pattern, limit)
        return request(self._link.repeat, Op.PS_RETAINED, ask, list[RetainedTopic])

    def subscriptions(self, *, limit: int = 100) -> list[SubscriptionInfo]:
        """All clients' subscriptions, with waiting and dropped messages (SPEC C4)."""
        ask = Listing(limit=limit)
        return request(self._link.repeat, Op.PS_SUBSCRIPTIONS, ask, list[SubscriptionInfo])

    def close(self) -> None:
        """Say goodbye: no last will is published."""
        with suppress(NexoError):  # a server that is gone needs no goodbye
            self.clear_will()

    def _send_will(self) -> None:
        self._link.duplex().call(Op.WILL, pack(self._will))

    def _checked(self, topic: str) -> bytes:
        check_topic(topic)
        if len(self._topics) >= 10_000:
            self._topics.clear()
        raw = self._topics[topic] = topic.encode()
        return raw


class PubSubTopic(Generic[T]):
    """One topic or pattern, as ``client.pubsub(pattern)`` returns it.

    It handles values, as in other Nexo clients: its handlers get the value alone. For the topic
    or time of a message use `messages`, or `PubSub.subscribe`.
    """

    def __init__(self, pubsub: PubSub, pattern: str, type_: type[T] | None) -> None:
        self.pattern = pattern
        self._pubsub = pubsub
        self._type: Any = type_

    def __repr__(self) -> str:
        return f"<Topic {self.pattern!r}>"

    def publish(
        self,
        value: T,
        *misplaced: Never,
        headers: Headers = None,
        retain: bool = False,
        ttl: Duration | None = None,
    ) -> int:
        """See `PubSub.publish`; a value that does not fit the type is rejected."""
        if misplaced:
            raise not_keywords(misplaced, "publish(value, retain=True)")
        check_type(self._type, value)
        return self._pubsub.publish(self.pattern, value, headers=headers, retain=retain, ttl=ttl)

    def subscribe(
        self, handler: Callable[[T], Any], **options: Unpack[SubscribeOptions]
    ) -> Subscription[T]:
        """Call ``handler`` with the value of each message, without its topic and time.

        Options as in `PubSub.subscribe`, whose handler gets the whole `Message`.
        """
        return self._pubsub.subscribe(self.pattern, by_value(handler), type_=self._type, **options)

    def messages(self, **options: Unpack[SubscribeOptions]) -> Subscription[T]:
        """Receive by iterating; options as in `PubSub.subscribe`."""
        return self._pubsub.subscribe(self.pattern, type_=self._type, **options)

    def shared(self, group: str) -> PubSubTopic[T]:
        """The same pattern, each message delivered to one member of ``group`` (SPEC C5)."""
        return PubSubTopic(self._pubsub, f"{SHARE}/{group}/{self.pattern}", self._type)


def _options(retain: bool, ttl: Duration | None) -> Publish:
    if ttl is None:
        return Publish(retain)
    if not retain:
        raise InvalidOption("a ttl applies only to retained messages: others are not kept")
    return Publish(retain, positive_millis(ttl, "ttl"))
