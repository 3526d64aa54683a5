"""Requests and replies of pub/sub, in values that all layers share."""

from __future__ import annotations

from typing import Annotated

import msgspec

from nexo.model import AsMap


class Subscribe(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """SUBSCRIBE: omitted options take the server's settings."""

    pattern: str
    policy: str = "drop_oldest"
    max_messages: int | None = None
    max_bytes: int | None = None
    no_retained: bool = False
    address: Annotated[str, msgspec.Meta(max_length=64)] = ""
    """Addresses retained copies instead of the pattern, which several subscriptions may have."""


class Will(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """WILL: what the broker publishes if this connection ends without a goodbye."""

    topic: str
    value: bytes
    retain: bool = False
    ttl_ms: int | None = None
    headers: bytes = b""
    """A JSON object, or empty."""


class RetainedTopic(AsMap, frozen=True):
    """A topic that retains a message."""

    topic: str
    bytes: int
    expires_ms: int | None


class SubscriptionInfo(AsMap, frozen=True):
    """One client's subscription, as the server sees it."""

    client: str
    pattern: str
    policy: str
    waiting: int
    """Messages that wait because the client reads too slowly."""
    waiting_bytes: int
    dropped: int
