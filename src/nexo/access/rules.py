"""What every request needs: the actions that permit it, and the names it is about.

The names are read with the protocol's own decoders, so a request that cannot be read is
refused here as it would be behind the guard. An opcode without a rule is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from nexo.access.grants import Action, Extent
from nexo.protocol import pubsub, store, stream, xstreams
from nexo.protocol import stream_ordered as ordered
from nexo.protocol.frames import Reader
from nexo.protocol.ops import Op

Names: TypeAlias = Callable[[memoryview], Iterable[str]]

READ, WRITE, ADMIN = (Action.READ,), (Action.WRITE,), (Action.ADMIN,)
ANY = tuple(Action)


@dataclass(frozen=True, slots=True)
class Rule:
    """One of ``actions`` is needed for every one of ``names``; without names, a login."""

    actions: tuple[Action, ...]
    names: Names
    extent: Extent = Extent.NAME
    rows: Extent | None = None
    """Of a list, what each row stands for: who may not see them all is shown those for which
    one of ``actions`` is permitted."""


def _nothing(payload: memoryview) -> Iterable[str]:
    return ()


def _all(payload: memoryview) -> Iterable[str]:
    return ("",)


LOGIN = Rule((), _nothing)
"""Anyone who is logged in may."""


def _everything(actions: tuple[Action, ...], rows: Extent | None = None) -> Rule:
    return Rule(actions, _all, Extent.PREFIX, rows)


NOBODY = _everything(())
"""No permission is enough."""


# -- store ---------------------------------------------------------------------------

_STORE = dict.fromkeys(
    [*store.REQUESTS, Op.MAP_SET, Op.MAP_GET, Op.MAP_DEL], LOGIN
)  # the service asks for the permission

# -- pub/sub -------------------------------------------------------------------------


def _first_text(payload: memoryview) -> Iterable[str]:
    return (Reader(payload).text(),)


def _topics(run: pubsub.Run) -> Iterable[str]:
    return (topic.decode("utf-8", "replace") for topic in set(run.topics))


def _will_topic(payload: memoryview) -> Iterable[str]:
    will = pubsub.parse_will(payload)
    return (will.topic,) if will else ()


def _listed_topics(payload: memoryview) -> Iterable[str]:
    return (pubsub.parse_listing(payload).pattern,)


def _every_topic(payload: memoryview) -> Iterable[str]:
    """Whatever the pattern: the list of subscriptions is of all."""
    pubsub.parse_listing(payload)
    return ("#",)


_PUBSUB = {
    Op.PUB: Rule(WRITE, _first_text, Extent.TOPICS),
    Op.PUBLISH_RUN: Rule(WRITE, lambda p: _topics(pubsub.parse_run(bytes(p))), Extent.TOPICS),
    Op.PUBLISH: Rule(WRITE, lambda p: _topics(pubsub.parse_publish(p)[1]), Extent.TOPICS),
    Op.WILL: Rule(WRITE, _will_topic, Extent.TOPICS),
    Op.SUB: Rule(READ, _first_text, Extent.TOPICS),
    Op.UNSUB: Rule(READ, _first_text, Extent.TOPICS),
    Op.SUBSCRIBE: Rule(READ, lambda p: (pubsub.parse_subscribe(p).pattern,), Extent.TOPICS),
    Op.PS_RETAINED: Rule(READ, _listed_topics, Extent.TOPICS, rows=Extent.TOPICS),
    Op.PS_TOPICS: Rule(READ, _listed_topics, Extent.TOPICS, rows=Extent.TOPICS),
    Op.PS_SUBSCRIPTIONS: Rule(
        (Action.READ, Action.ADMIN), _every_topic, Extent.TOPICS, rows=Extent.TOPICS
    ),
}

# -- queue ---------------------------------------------------------------------------


_QUEUE = dict.fromkeys((op for op in Op if op.name.startswith("Q_")), LOGIN)
"""The use cases ask themselves."""

# -- stream --------------------------------------------------------------------------


def _stream(kind: type[Any]) -> Names:
    return lambda payload: (stream.unpack(kind, payload).stream,)


def _stream_group(kind: type[Any]) -> Names:
    def names(payload: memoryview) -> Iterable[str]:
        ask = stream.unpack(kind, payload)
        return (in_group(ask.stream, ask.group),)

    return names


def in_group(name: str, group: str | None) -> str:
    """A stream as one group reads it; every group of it for None."""
    return name if group is None else f"{name}@{group}"


def _text_and_group(payload: memoryview) -> Iterable[str]:
    reader = Reader(payload)
    return (in_group(reader.text(), reader.text()),)


def _group_and_text(payload: memoryview) -> Iterable[str]:
    reader = Reader(payload)
    group = reader.text()
    return (in_group(reader.text(), group),)


def _places(payload: memoryview) -> Iterable[str]:
    return {place[0] for place in stream.unpack(stream.ReadMany, payload).places}


def _joined(payload: memoryview) -> Iterable[str]:
    ask = stream.unpack(ordered.OrderedJoin, payload)
    return [in_group(topic, ask.group) for topic in ask.topics]


def _offsets(kind: type[Any]) -> Names:
    def names(payload: memoryview) -> Iterable[str]:
        ask = stream.unpack(kind, payload)
        return {in_group(row[0], ask.group) for row in ask.offsets}

    return names


def _ordered_groups(payload: memoryview) -> Iterable[str]:
    """What is asked for of one stream; else everything, as a group may read any stream."""
    ask = stream.unpack(ordered.OrderedAsk, payload)
    return ("",) if ask.stream is None else (in_group(ask.stream, ask.group),)


def _group(kind: type[Any]) -> Rule:
    return Rule(READ, lambda payload: (stream.unpack(kind, payload).group,), Extent.GROUP)


_ASKS_ITSELF = (
    Op.S_PUBLISH, Op.S_PUBLISH_EACH, Op.S_ADD, Op.S_PRODUCER, Op.S_GROUPS, Op.S_GROUP_DELETE,
    Op.S_MAKE, Op.S_DESCRIBE, Op.S_UPDATE, Op.S_LIST, Op.S_SURVEY, Op.S_TIERED, Op.S_RETAIN,
    Op.S_TX_BEGIN, Op.S_TX_PUBLISH, Op.S_TX_INPUTS, Op.S_TX_COMMIT, Op.S_TX_ABORT,
    Op.S_TX_OUTCOME, Op.S_COMPACT, Op.S_GET, Op.S_STATE,
)  # fmt: skip
"""Requests whose use case asks for permission (`nexo.access.permit`)."""

_STREAM = dict.fromkeys(_ASKS_ITSELF, LOGIN) | {
    Op.S_CREATE: Rule(ADMIN, _first_text),
    Op.S_PUB: Rule(WRITE, _first_text),
    Op.S_FETCH: Rule(READ, _text_and_group),
    Op.S_JOIN: Rule(READ, _group_and_text),
    Op.S_ACK: Rule(READ, _text_and_group),
    Op.S_EXISTS: Rule(ANY, _first_text),
    Op.S_DELETE: Rule(ADMIN, _first_text),
    Op.S_NACK: Rule(READ, _text_and_group),
    Op.S_SEEK: Rule(READ, _text_and_group),
    Op.S_LEAVE: Rule(READ, _text_and_group),
    Op.S_TAKE: Rule(READ, _stream_group(stream.Take)),
    Op.S_SETTLE: Rule(READ, _stream_group(stream.Settle)),
    Op.S_GROUP_JOIN: Rule(READ, _stream_group(stream.GroupJoin)),
    Op.S_GROUP_LEAVE: Rule(READ, _stream_group(stream.GroupLeave)),
    Op.S_GROUP_SEEK: Rule(READ, _stream_group(stream.GroupSeek)),
    Op.S_PARKED: Rule(READ, _stream_group(stream.ParkedAsk)),
    Op.S_PARKED_SETTLE: Rule(ADMIN, _stream_group(stream.ParkedSettle)),
    Op.S_READ: Rule(READ, _stream(stream.Read)),
    Op.S_READ_MANY: Rule(READ, _places),
    Op.S_OFFSETS_AT: Rule(READ, _stream(stream.OffsetsAt)),
    Op.S_ORDERED_JOIN: Rule(READ, _joined),
    Op.S_ORDERED_LEAVE: _group(ordered.OrderedLeave),
    Op.S_HEARTBEAT: _group(ordered.Heartbeat),
    Op.S_COMMIT: Rule(READ, _offsets(ordered.Commit)),
    Op.S_COMMITTED: _group(ordered.CommittedAsk),
    Op.S_ORDERED_SEEK: Rule(READ, _offsets(ordered.OrderedSeek)),
    Op.S_ORDERED_GROUPS: Rule(READ, _ordered_groups),
    Op.S_ORDERED_DELETE: _everything(ADMIN),
    Op.S_X_ADD: Rule(WRITE, lambda p: (stream.unpack_headed(xstreams.Add, p)[0].stream,)),
    Op.S_X_GROUP: Rule(READ, _stream_group(xstreams.MakeGroup)),
    Op.S_X_READ: Rule(READ, _stream_group(xstreams.ReadGroup)),
    Op.S_X_ACK: Rule(READ, _stream_group(xstreams.Ids)),
    Op.S_X_PENDING: Rule(READ, _stream_group(xstreams.PendingAsk)),
    Op.S_X_CLAIM: Rule(READ, _stream_group(xstreams.Claim)),
    Op.S_X_RENEW: Rule(READ, _stream_group(xstreams.Renew)),
    Op.S_X_CONSUMER_DELETE: Rule(READ, _stream_group(xstreams.ConsumerName)),
    Op.S_X_INFO: Rule(READ, _stream(xstreams.Name)),
    Op.S_X_RANGE: Rule(READ, _stream(xstreams.RangeAsk)),
    Op.S_X_DELETE: Rule(ADMIN, _stream(xstreams.Ids)),
    Op.S_X_TRIM: Rule(ADMIN, _stream(xstreams.Trim)),
}

# -- any broker ------------------------------------------------------------------------

_ANY_BROKER = dict.fromkeys((Op.ECHO, Op.STATUS, Op.PEERS, Op.BACKUP, Op.CANCEL), LOGIN)
"""The session asks for those that need a permission."""

RULES: Mapping[Op, Rule] = _STORE | _PUBSUB | _QUEUE | _STREAM | _ANY_BROKER
"""By opcode; HELLO needs none."""
