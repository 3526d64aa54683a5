"""One well-formed request per opcode, about ``thing`` (and the group ``g``)."""

from __future__ import annotations

from typing import Any

import msgspec

from nexo.model.blocks import pack_block
from nexo.model.pubsub import Subscribe, Will
from nexo.protocol import pubsub, queue, store, store_classic, stream, xstreams
from nexo.protocol import stream_ordered as ordered
from nexo.protocol.frames import pack_str, pack_u32
from nexo.protocol.messages import pack, pack_headed
from nexo.protocol.ops import Op
from nexo.protocol.server import BackupBegin, SurveyAsk
from nexo.protocol.stream_publishing import TxAcks, TxBegin, TxInputs, publish_head

NAME = "thing"
GROUP = "g"
_ID = bytes(16)
_U64 = bytes(8)
_encode = msgspec.msgpack.encode
_STR = pack_str(NAME)
_OPTIONS = pack_str("{}")
_RUN = pubsub.message_frame(NAME.encode(), b"\x01hi", 1)
_STREAM_CONSUMER = _STR + pack_str(GROUP) + pack_str("c") + _U64

_FIELDS: dict[str, Any] = {
    "key": NAME, "keys": [NAME], "values": [b"\x01v"], "value": b"\x01v", "by": 1, "ttl_ms": 1,
    "fields": ["f"], "field": "f", "members": [b"\x01v"], "index": 0,
    "begun": [(1, [0, 1])],
    "queue": NAME, "stream": NAME, "group": GROUP, "topics": [NAME], "how": 0, "leases": [],
    "tokens": [1], "token": 1, "job": 1, "options": {}, "paused": True, "id": "0" * 32,
    "name": "n", "consumer": "c", "limit": 1, "wait_ms": 0, "generation": 1, "verb": "ack",
    "ranges": [(0, 0, 1)], "partition": 0, "offset": 0, "max_bytes": 1, "member": "m",
    "offsets": [(NAME, 0, 0, "")], "places": [(NAME, 0, 0)], "transaction": 1, "pattern": NAME,
    "prefix": NAME, "topic": NAME, "start": None, "count": 1, "max_pending": 1, "ids": [(1, 0)],
    "if_equal": b"\x01v", "holder": "h", "capacity": 1, "per_second": 1, "window_ms": 1,
    "min_idle_ms": 0, "first": (0, 0), "last": (1, 0), "max_length": 1, "time_ms": 1,
}  # fmt: skip


def request(kind: type[Any], **given: Any) -> bytes:
    """A struct with every field that needs a value, and every name."""
    values = {}
    for field in msgspec.structs.fields(kind):
        if field.required or field.encode_name in {"prefix", "pattern"}:
            values[field.name] = _FIELDS[field.name]
    return _encode(kind(**(values | given)))


_STORE = {op: request(kind) for op, kind in store.REQUESTS.items() if kind is not store.SetMany} | {
    Op.KEY_MSET: _encode(store.SetMany({NAME: b"\x01v"})),
    Op.FIELDS_SET: _encode(store.SetFields(NAME, {"f": b"\x01v"})),
    Op.MAP_SET: store_classic.encode_map_set(NAME, b"\x01v"),
    Op.MAP_GET: store_classic.encode_map_key(NAME),
    Op.MAP_DEL: store_classic.encode_map_key(NAME),
}
_PUBSUB = {
    Op.PUB: _STR + _OPTIONS + b"\x01hi",
    Op.SUB: _STR,
    Op.UNSUB: _STR,
    Op.PUBLISH_RUN: _RUN,
    Op.PUBLISH: pack_headed(pubsub.Publish()) + _RUN,
    Op.SUBSCRIBE: request(Subscribe),
    Op.WILL: request(Will),
    Op.PS_SUBSCRIPTIONS: request(pubsub.Listing),
    Op.PS_RETAINED: request(pubsub.Listing),
    Op.PS_TOPICS: request(pubsub.Listing),
}
_QUEUE = {
    Op.Q_CREATE: _STR + _OPTIONS,
    Op.Q_PUSH: _STR + _OPTIONS + b"\x01v",
    Op.Q_CONSUME: _STR + _OPTIONS,
    Op.Q_ACK: _ID + _STR,
    Op.Q_EXISTS: _STR,
    Op.Q_DELETE: _STR,
    Op.Q_PEEK_DLQ: _STR + pack_u32(1) + pack_u32(0),
    Op.Q_MOVE_TO_QUEUE: _STR + _ID,
    Op.Q_DELETE_DLQ: _STR + _ID,
    Op.Q_PURGE_DLQ: _STR,
    Op.Q_NACK: _ID + _STR + pack_str("no"),
    Op.Q_PUSH_MANY: queue.encode_head(queue.PushHead(NAME)) + pack_block([b"\x01v"]),
    Op.Q_LIST: b"",
} | {
    op: request(kind)
    for op, kind in {
        Op.Q_DECLARE: queue.Declare,
        Op.Q_UPDATE: queue.Update,
        Op.Q_INFO: queue.Look,
        Op.Q_BEGIN: queue.Begin,
        Op.Q_PURGE: queue.Named,
        Op.Q_PAUSE: queue.Pause,
        Op.Q_POP: queue.PopJobs,
        Op.Q_SETTLE: queue.SettleJobs,
        Op.Q_RENEW: queue.RenewLeases,
        Op.Q_PROGRESS: queue.ReportProgress,
        Op.Q_JOB: queue.JobRequest,
        Op.Q_PEEK: queue.PeekJobs,
        Op.Q_CANCEL_JOB: queue.Jobs,
        Op.Q_DLQ_LIST: queue.PeekJobs,
        Op.Q_DLQ_REPLAY: queue.Jobs,
        Op.Q_DLQ_DELETE: queue.Jobs,
        Op.Q_CRON_SET: queue.CronRequest,
        Op.Q_CRON_DELETE: queue.CronRequest,
        Op.Q_CRON_LIST: queue.Named,
        Op.Q_SURVEY: SurveyAsk,
    }.items()
}
_STREAM = {
    Op.S_CREATE: _STR + _OPTIONS,
    Op.S_PUB: _STR + b"\x01v",
    Op.S_FETCH: _STREAM_CONSUMER + pack_u32(1) + pack_u32(0),
    Op.S_JOIN: pack_str(GROUP) + _STR,
    Op.S_ACK: _STREAM_CONSUMER + _U64,
    Op.S_NACK: _STREAM_CONSUMER + _U64,
    Op.S_EXISTS: _STR,
    Op.S_DELETE: _STR,
    Op.S_SEEK: _STR + pack_str(GROUP) + b"\0",
    Op.S_LEAVE: _STREAM_CONSUMER,
    Op.S_PUBLISH: publish_head(NAME, -1),
    Op.S_PUBLISH_EACH: publish_head(NAME, -1),
    Op.S_ADD: publish_head(NAME, -1) + b"\0x",
    Op.S_PRODUCER: pack_str("p"),
    Op.S_TX_PUBLISH: _U64 + publish_head(NAME, -1),
    Op.S_TX_COMMIT: _encode(1),
    Op.S_TX_ABORT: _encode(1),
    Op.S_TX_OUTCOME: _encode(1),
    Op.S_TX_INPUTS: request(TxInputs, acks=[TxAcks(NAME, GROUP, "c", 1, [(0, 0, 1)])]),
    Op.S_NEXT: _encode(
        stream.Next(
            stream.SettleRecords(NAME, GROUP, "c", 1, "ack", [(0, 0, 1)]),
            stream.Take(NAME, GROUP, "c", 1, 0),
        )
    ),
    Op.S_X_ADD: stream.pack_headed(xstreams.Add(NAME, 10)) + b"\x01v",
    Op.S_GET: request(stream.Get, key=b"k"),
    Op.S_ORDERED_GROUPS: request(ordered.OrderedAsk, stream=NAME, group=GROUP),
    Op.S_PARKED_SETTLE: request(stream.ParkedSettle, verb="replay"),
} | {
    op: request(kind)
    for op, kind in {
        Op.S_TAKE: stream.Take,
        Op.S_SETTLE: stream.SettleRecords,
        Op.S_GROUP_JOIN: stream.GroupJoin,
        Op.S_GROUP_LEAVE: stream.GroupLeave,
        Op.S_GROUP_SEEK: stream.GroupSeek,
        Op.S_GROUPS: stream.GroupsAsk,
        Op.S_GROUP_DELETE: stream.GroupName,
        Op.S_PARKED: stream.ListParked,
        Op.S_MAKE: stream.Make,
        Op.S_DESCRIBE: stream.StreamName,
        Op.S_UPDATE: stream.Make,
        Op.S_LIST: stream.ListAsk,
        Op.S_READ: stream.Read,
        Op.S_TX_BEGIN: TxBegin,
        Op.S_COMPACT: stream.StreamName,
        Op.S_STATE: stream.StateAsk,
        Op.S_TIERED: stream.TieredTo,
        Op.S_RETAIN: stream.StreamName,
        Op.S_READ_MANY: stream.ReadMany,
        Op.S_OFFSETS_AT: stream.OffsetsAt,
        Op.S_ORDERED_JOIN: ordered.OrderedJoin,
        Op.S_ORDERED_LEAVE: ordered.OrderedLeave,
        Op.S_HEARTBEAT: ordered.Heartbeat,
        Op.S_COMMIT: ordered.Commit,
        Op.S_COMMITTED: ordered.CommittedAsk,
        Op.S_ORDERED_SEEK: ordered.OrderedSeek,
        Op.S_ORDERED_DELETE: ordered.OrderedName,
        Op.S_SURVEY: SurveyAsk,
        Op.S_X_GROUP: xstreams.MakeGroup,
        Op.S_X_READ: xstreams.ReadGroup,
        Op.S_X_ACK: xstreams.Ids,
        Op.S_X_PENDING: xstreams.PendingAsk,
        Op.S_X_CLAIM: xstreams.XClaim,
        Op.S_X_RENEW: xstreams.XRenew,
        Op.S_X_CONSUMER_DELETE: xstreams.ConsumerName,
        Op.S_X_INFO: xstreams.XName,
        Op.S_X_RANGE: xstreams.RangeAsk,
        Op.S_X_DELETE: xstreams.Ids,
        Op.S_X_TRIM: xstreams.Trim,
    }.items()
}

REQUESTS: dict[Op, bytes] = (
    _STORE
    | _PUBSUB
    | _QUEUE
    | _STREAM
    | {
        Op.ECHO: b"hi",
        Op.STATUS: b"\x01",
        Op.PEERS: b"\x01",
        Op.CANCEL: b"\x01" + pack_u32(1),
        Op.BACKUP: b"\x01" + pack(BackupBegin()),
    }
)
"""By opcode; HELLO is no request to be permitted."""
