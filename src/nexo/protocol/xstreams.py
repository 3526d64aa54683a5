"""Messages between `nexo.xstreams` and the stream broker.

Messages are records of a stream with one partition. A message's id is ``ms-seq``, where
``ms`` is the record's timestamp and ``seq`` its offset. Timestamps of a partition never go
back and offsets always rise, so ids rise too, whatever the clock does; and each is found
from the other without a table.

====================  ==================  =========================================
opcode                request             reply
====================  ==================  =========================================
S_X_ADD               `Add`, a value      id
S_X_GROUP             `MakeGroup`         whether it is new
S_X_READ              `ReadGroup`         `XDelivered`, batches; long poll
S_X_ACK               `Ids`               how many were pending
S_X_PENDING           `PendingAsk`        list of `XPending`
S_X_CLAIM             `XClaim`            `XDelivered`, batches
S_X_RENEW             `XRenew`            list of the ids it still has
S_X_CONSUMER_DELETE   `ConsumerName`      how many it had pending
S_X_INFO              `XName`             `XInfo`
S_X_RANGE             `RangeAsk`          `XPage`, batches
S_X_DELETE            `Ids`               how many there were
S_X_TRIM              `Trim`              how many were removed
====================  ==================  =========================================

A message with a head that raw bytes follow is packed as `nexo.protocol.messages` says.
"""

from __future__ import annotations

from nexo.model import AsArray
from nexo.model.stream import Id, XDelivered, XGroup, XInfo, XPage, XPending

__all__ = ["Id", "XDelivered", "XGroup", "XInfo", "XPage", "XPending"]

PAGE = 1_000
"""How many rows one reply has."""


class Add(AsArray, frozen=True):
    """Add a message, and keep no more than ``max_length``; its value follows."""

    stream: str
    max_length: int


class MakeGroup(AsArray, frozen=True):
    """Create a group that starts after an id, or with new messages only."""

    stream: str
    group: str
    start: Id | None


class ReadGroup(AsArray, frozen=True):
    """New messages for a consumer, waiting up to ``wait_ms`` for the first."""

    stream: str
    group: str
    consumer: str
    count: int
    wait_ms: int
    max_pending: int


class Ids(AsArray, frozen=True):
    """Messages by id; of a group, or of the stream."""

    stream: str
    group: str
    ids: list[Id]


class PendingAsk(AsArray, frozen=True):
    """Pending messages from an offset on, at most `PAGE`; of one consumer or all."""

    stream: str
    group: str
    consumer: str | None
    offset: int


class XClaim(AsArray, frozen=True):
    """Take over messages that were last delivered ``min_idle_ms`` ago."""

    stream: str
    group: str
    consumer: str
    min_idle_ms: int
    count: int


class XRenew(AsArray, frozen=True):
    """Restart the idle time of messages that a consumer holds; nothing is counted."""

    stream: str
    group: str
    consumer: str
    ids: list[Id]


class ConsumerName(AsArray, frozen=True):
    """A consumer."""

    stream: str
    group: str
    consumer: str


class XName(AsArray, frozen=True):
    """A stream."""

    stream: str


class RangeAsk(AsArray, frozen=True):
    """Messages between two ids, inclusive, at most ``count``."""

    stream: str
    first: Id
    last: Id
    count: int
    offset: int = 0
    """Where to continue: `XPage.following` of the previous page."""


class Trim(AsArray, frozen=True):
    """Keep the newest ``max_length`` messages."""

    stream: str
    max_length: int
