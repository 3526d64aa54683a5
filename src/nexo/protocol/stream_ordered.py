"""Messages between members of ordered groups and the stream broker (SPEC G5, G6).

=================  ==================  ======================
opcode             request             reply
=================  ==================  ======================
S_ORDERED_JOIN     `OrderedJoin`       `Assigned`
S_HEARTBEAT        `Heartbeat`         `Assigned`; long poll
S_ORDERED_LEAVE    `OrderedLeave`      OK
S_COMMIT           `Commit`            OK
S_COMMITTED        `CommittedAsk`      list of `CommittedAt`
S_ORDERED_SEEK     `OrderedSeek`       generation
S_ORDERED_GROUPS   `OrderedAsk`        list of `OrderedInfo`
S_ORDERED_DELETE   `OrderedName`       OK
=================  ==================  ======================

Records are read with S_READ and S_READ_MANY. All are packed as `nexo.protocol.messages` says.
"""

from __future__ import annotations

from typing import Any

from nexo.model import AsMap
from nexo.model.stream import Assigned, CommittedAt, KafkaMember, OffsetRow, OrderedInfo

__all__ = ["Assigned", "CommittedAt", "KafkaMember", "OffsetRow", "OrderedInfo"]


class OrderedJoin(AsMap, frozen=True):
    """Become a member, or start over as one; the broker picks a name unless one is given."""

    group: str
    topics: list[str]
    member: str = ""
    options: dict[str, Any] = {}
    """``strategy``, ``session_timeout_ms``, ``rebalance_timeout_ms``."""


class Heartbeat(AsMap, frozen=True):
    """Keeps a member alive and confirms ``generation``.

    With ``wait_ms`` the reply is sent on a change: another generation, or a number of owned
    partitions other than ``known``.
    """

    group: str
    member: str
    generation: int
    wait_ms: int = 0
    known: int = 0


class OrderedLeave(AsMap, frozen=True):
    """Give up all partitions."""

    group: str
    member: str


class Commit(AsMap, frozen=True):
    """Store offsets, all or none; ``generation`` -1 without membership."""

    group: str
    offsets: list[OffsetRow]
    member: str = ""
    generation: int = -1
    rewind: bool = False
    """The member sought back, so lower offsets are intended."""


class CommittedAsk(AsMap, frozen=True):
    """Stored offsets, of all topics or one; an unknown group has none."""

    group: str
    topic: str | None = None


class OrderedSeek(AsMap, frozen=True):
    """Overwrite stored offsets; owners give up their partitions and start again from them."""

    group: str
    offsets: list[OffsetRow]


class OrderedName(AsMap, frozen=True):
    """An ordered group."""

    group: str


class OrderedAsk(AsMap, frozen=True):
    """All ordered groups, or one.

    With a ``stream``: the groups that read it, or the one named, reduced to what concerns that
    stream, so that permission to read the stream is enough.
    """

    group: str | None = None
    stream: str | None = None
