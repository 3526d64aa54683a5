"""What every request needs: the actions that permit it, and the names it is about.

The names are read with the protocol's own decoders, so a request that cannot be read is
refused here as it would be behind the guard. An opcode without a rule is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from nexo.access.grants import Action, Extent
from nexo.model import Broker
from nexo.protocol import stream
from nexo.protocol.frames import Reader
from nexo.protocol.ops import BROKER_OF, Op

Names: TypeAlias = Callable[[memoryview], Iterable[str]]

READ, WRITE, ADMIN = (Action.READ,), (Action.WRITE,), (Action.ADMIN,)
ANY = tuple(Action)


@dataclass(frozen=True, slots=True)
class Rule:
    """One of ``actions`` is needed for every one of ``names``; without names, a login."""

    actions: tuple[Action, ...]
    names: Names
    extent: Extent = Extent.NAME


def _nothing(payload: memoryview) -> Iterable[str]:
    return ()


def _all(payload: memoryview) -> Iterable[str]:
    return ("",)


LOGIN = Rule((), _nothing)
"""Anyone who is logged in may."""


def _everything(actions: tuple[Action, ...]) -> Rule:
    return Rule(actions, _all, Extent.PREFIX)


NOBODY = _everything(())
"""No permission is enough."""


# -- store, pub/sub, queue -----------------------------------------------------------------

_STORE = dict.fromkeys((op for op in Op if BROKER_OF[op] is Broker.STORE), LOGIN)
_PUBSUB = dict.fromkeys((op for op in Op if BROKER_OF[op] is Broker.PUBSUB), LOGIN)
_QUEUE = dict.fromkeys((op for op in Op if op.name.startswith("Q_")), LOGIN)
"""The use cases ask themselves."""


def _first_text(payload: memoryview) -> Iterable[str]:
    return (Reader(payload).text(),)


# -- stream --------------------------------------------------------------------------


def _stream(kind: type[Any]) -> Names:
    return lambda payload: (stream.unpack(kind, payload).stream,)


_ASKS_ITSELF = (
    Op.S_FETCH, Op.S_JOIN, Op.S_ACK, Op.S_NACK, Op.S_SEEK, Op.S_LEAVE, Op.S_TAKE, Op.S_SETTLE,
    Op.S_GROUP_JOIN, Op.S_GROUP_LEAVE, Op.S_GROUP_SEEK, Op.S_PARKED, Op.S_PARKED_SETTLE,
    Op.S_ORDERED_JOIN, Op.S_ORDERED_LEAVE, Op.S_HEARTBEAT, Op.S_COMMIT, Op.S_COMMITTED,
    Op.S_ORDERED_SEEK, Op.S_ORDERED_GROUPS, Op.S_ORDERED_DELETE, Op.S_X_ADD, Op.S_X_GROUP,
    Op.S_X_READ, Op.S_X_ACK, Op.S_X_PENDING, Op.S_X_CLAIM, Op.S_X_RENEW, Op.S_X_CONSUMER_DELETE,
    Op.S_X_INFO, Op.S_X_RANGE, Op.S_X_DELETE, Op.S_X_TRIM,
    Op.S_PUBLISH, Op.S_PUBLISH_EACH, Op.S_ADD, Op.S_PRODUCER, Op.S_GROUPS, Op.S_GROUP_DELETE,
    Op.S_MAKE, Op.S_DESCRIBE, Op.S_UPDATE, Op.S_LIST, Op.S_SURVEY, Op.S_TIERED, Op.S_RETAIN,
    Op.S_TX_BEGIN, Op.S_TX_PUBLISH, Op.S_TX_INPUTS, Op.S_TX_COMMIT, Op.S_TX_ABORT,
    Op.S_TX_OUTCOME, Op.S_COMPACT, Op.S_GET, Op.S_STATE, Op.S_READ, Op.S_READ_MANY,
    Op.S_OFFSETS_AT,
)  # fmt: skip
"""Requests whose use case asks for permission (`nexo.access.permit`)."""

_STREAM = dict.fromkeys(_ASKS_ITSELF, LOGIN) | {
    Op.S_CREATE: Rule(ADMIN, _first_text),
    Op.S_PUB: Rule(WRITE, _first_text),
    Op.S_EXISTS: Rule(ANY, _first_text),
    Op.S_DELETE: Rule(ADMIN, _first_text),
}

# -- any broker ------------------------------------------------------------------------

_ANY_BROKER = dict.fromkeys((Op.ECHO, Op.STATUS, Op.PEERS, Op.BACKUP, Op.CANCEL), LOGIN)
"""The session asks for those that need a permission."""

RULES: Mapping[Op, Rule] = _STORE | _PUBSUB | _QUEUE | _STREAM | _ANY_BROKER
"""By opcode; HELLO needs none."""
