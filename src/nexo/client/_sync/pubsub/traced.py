# Generated from _async/pubsub/traced.py by tools/unasync.py; edit that file instead.
"""Pub/sub whose messages carry the trace they belong to."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from nexo.client import telemetry
from nexo.client._sync import runtime
from nexo.client._sync.pubsub.pubsub import PubSub
from nexo.client._sync.pubsub.subscription import Subscription
from nexo.client.checks import function
from nexo.client.pubsub_message import Message
from nexo.client.stream_records import Headers


class TracedPubSub(PubSub):
    """``client.pubsub`` in an application that uses OpenTelemetry.

    A separate class, so that other applications pay nothing.
    """

    def publish(self, topic: str, value: object, *, headers: Headers = None, **options: Any) -> int:
        """See `PubSub.publish`; the span ends when the message is sent."""
        with telemetry.publishing(str(topic)) as carried:
            return super().publish(
                topic, value, headers=telemetry.joined(carried, headers), **options
            )

    def publish_many(self, topic: str, values: Iterable[object], **options: Any) -> list[int]:
        """See `PubSub.publish_many`; one span for all, which they do not carry."""
        with telemetry.publishing(str(topic)):
            return super().publish_many(topic, values, **options)

    def subscribe(
        self, pattern: str, handler: Callable[[Message[Any]], Any] | None = None, **options: Any
    ) -> Subscription[Any]:
        """See `PubSub.subscribe`; each call of ``handler`` is a span."""
        if handler is None:
            return super().subscribe(pattern, **options)
        function(handler)

        def traced(message: Message[Any]) -> None:
            named = {"messaging.destination.subscription.name": pattern}
            with telemetry.processing(message.topic, message.headers, named):
                runtime.invoke(handler, message)

        return super().subscribe(pattern, traced, **options)
