"""Every opcode, and which broker it belongs to.

The first block of each broker is the existing client's table and never changes; numbers
from 0x40 on, and the gaps, are ours. ``docs/reference/protocol.md`` is generated from here.
"""

from __future__ import annotations

import enum

from nexo.model import Broker


class Op(enum.IntEnum):
    """The meta byte of a request."""

    ECHO = 0x00
    """Any bytes. Reply: DATA, the same bytes."""
    HELLO = 0x01
    """``version u8, broker u8``, then a msgpack map (`nexo.protocol.hello`)."""

    # Store: 0x02-0x0F, 0x40-0x5F
    MAP_SET = 0x02
    """``key str, options str {ttl?: seconds}, value``. Reply: OK."""
    MAP_GET = 0x03
    """``key str``. Reply: DATA ``value``, or NULL."""
    MAP_DEL = 0x04
    """``key str``. Reply: OK."""
    # ours: the payload and the reply of each are in `nexo.protocol.store`
    KEY_SET = 0x05
    KEY_DELETE = 0x06
    KEY_EXISTS = 0x07
    KEY_MGET = 0x08
    KEY_MSET = 0x09
    KEY_INCR = 0x0A
    KEY_GETDEL = 0x0B
    KEY_EXPIRE = 0x0C
    KEY_PERSIST = 0x0D
    KEY_INSPECT = 0x0E
    KEY_SCAN = 0x0F
    STORE_CLEAR = 0x40
    FIELDS_SET = 0x41
    FIELDS_GET = 0x42
    FIELDS_ALL = 0x43
    FIELDS_DELETE = 0x44
    FIELDS_INCR = 0x45
    FIELDS_COUNT = 0x46
    LIST_PUSH = 0x48
    LIST_POP = 0x49
    LIST_RANGE = 0x4A
    LIST_REPLACE = 0x4B
    LIST_TRIM = 0x4C
    LIST_REMOVE = 0x4D
    LIST_LENGTH = 0x4E
    SET_ADD = 0x50
    SET_REMOVE = 0x51
    SET_POP = 0x52
    SET_CONTAINS = 0x53
    SET_MEMBERS = 0x54
    SET_SIZE = 0x55
    KEY_DELETE_IF = 0x56
    LEASE_TAKE = 0x57
    LEASE_RENEW = 0x58
    LEASE_RELEASE = 0x59
    RATE_BUCKET = 0x5A
    RATE_WINDOW = 0x5B

    # Queue: 0x10-0x1F, 0x60-0x7F
    Q_CREATE = 0x10
    """``name str, options str {visibilityTimeoutMs?, maxRetries?}``. Reply: OK."""
    Q_PUSH = 0x11
    """``name str, options str {priority?, delayMs?}, value``. Reply: OK."""
    Q_CONSUME = 0x12
    """``name str, options str {batchSize?, waitMs?}``.
    Reply: DATA ``count u32, {id 16 bytes, length u32, value}*``."""
    Q_ACK = 0x13
    """``id 16 bytes, name str``. Reply: OK, or ERR ``ACK failed``."""
    Q_EXISTS = 0x14
    """``name str``. Reply: OK or ERR."""
    Q_DELETE = 0x15
    """``name str``. Reply: OK or ERR."""
    Q_PEEK_DLQ = 0x16
    """``name str, limit u32, offset u32``. Reply, newest first: DATA ``total u32, count u32,
    {id 16 bytes, length u32, value, attempts u32, reason str}*``."""
    Q_MOVE_TO_QUEUE = 0x17
    """``name str, id 16 bytes``. Reply: DATA ``u8``, 1 done, 0 not found."""
    Q_DELETE_DLQ = 0x18
    """``name str, id 16 bytes``. Reply: DATA ``u8``, 1 done, 0 not found."""
    Q_PURGE_DLQ = 0x19
    """``name str``. Reply: DATA ``count u32``."""
    Q_NACK = 0x1A
    """``id 16 bytes, name str, reason str``. Reply: OK, or ERR ``NACK failed``."""
    Q_DECLARE = 0x60
    """msgpack `queue.Declare`: create a queue. Reply: its info."""
    Q_UPDATE = 0x61
    """msgpack `queue.Update`: change options. Reply: its info."""
    Q_INFO = 0x62
    """msgpack `queue.Look`. Reply: the queue's options and counts."""
    Q_LIST = 0x63
    """Nothing. Reply: a list of infos."""
    Q_PURGE = 0x64
    """msgpack `queue.Named`. Reply: how many jobs were removed."""
    Q_PAUSE = 0x65
    """msgpack `queue.Pause`. Reply: OK."""
    Q_PUSH_MANY = 0x66
    """`queue.PushHead`, then a block of values. Reply: `queue.PushReply`."""
    Q_POP = 0x67
    """msgpack `queue.PopJobs`, a long poll. Reply: `queue.PopReply`, pieces of blocks; or NULL."""
    Q_SETTLE = 0x68
    """msgpack `queue.SettleJobs`: ack, nack, reject or release. Reply: OK, or what was rejected."""
    Q_RENEW = 0x69
    """msgpack `queue.RenewLeases`. Reply: the tokens of lost leases."""
    Q_PROGRESS = 0x6A
    """msgpack `queue.ReportProgress`. Reply: OK."""
    Q_JOB = 0x6B
    """msgpack `queue.JobRequest`, a long poll. Reply: the job's state, progress and result."""
    Q_PEEK = 0x6C
    """msgpack `queue.PeekJobs`. Reply: waiting, scheduled or leased jobs with their values."""
    Q_CANCEL_JOB = 0x6D
    """msgpack `queue.Jobs`: remove jobs that have not started. Reply: how many."""
    Q_DLQ_LIST = 0x6E
    """msgpack `queue.PeekJobs`. Reply: dead letters with values and history, newest first."""
    Q_DLQ_REPLAY = 0x6F
    """msgpack `queue.Jobs`. Reply: how many wait again."""
    Q_DLQ_DELETE = 0x70
    """msgpack `queue.Jobs`. Reply: how many were removed."""
    Q_CRON_SET = 0x71
    """msgpack `queue.CronRequest`. Reply: when it first fires, in ms."""
    Q_CRON_DELETE = 0x72
    """msgpack `queue.CronRequest`. Reply: OK."""
    Q_CRON_LIST = 0x73
    """msgpack `queue.Named`. Reply: the queue's schedules."""
    Q_SURVEY = 0x74
    """msgpack `server.SurveyAsk`. Reply: `nexo.model.queue.QueueSurvey`."""

    Q_BEGIN = 0x75
    """msgpack `queue.Begin`: handlers begin. Reply: OK."""

    # Pub/Sub: 0x20-0x2F, 0x80-0x8F
    PUB = 0x21
    """``topic str, options str {retain?, ttl?: seconds}, value``. Reply: OK."""
    SUB = 0x22
    """``pattern str``. Reply: OK, then pushes."""
    UNSUB = 0x23
    """``pattern str``. Reply: OK."""
    PUBLISH_RUN = 0x24
    """Message frames (`nexo.protocol.pubsub`). Reply: u32 receivers of each; then, if any were
    rejected, the u32 indexes of messages that the user may not publish.
    """
    PUBLISH = 0x25
    """``u32 length``, msgpack `Publish`, message frames. Reply as PUBLISH_RUN, once retained."""
    SUBSCRIBE = 0x26
    """msgpack `Subscribe`."""
    WILL = 0x27
    """msgpack `Will`; nil withdraws it, which is how a client says goodbye."""
    PS_SUBSCRIPTIONS = 0x80
    """msgpack `Listing`. Reply: msgpack list of maps."""
    PS_RETAINED = 0x81
    """msgpack `Listing`. Reply: msgpack list of maps."""
    PS_TOPICS = 0x82
    """msgpack `Listing`: topics with messages, most recently used first. Reply: list of maps."""

    # Stream: 0x30-0x3F, 0x90-0xBF
    S_CREATE = 0x30
    """``name str, options str {retention?: {maxAgeMs?, maxBytes?}}``. Reply: OK."""
    S_PUB = 0x31
    """``name str, value``. Reply: DATA ``sequence u64``."""
    S_FETCH = 0x32
    """``name str, group str, consumer str, generation u64, limit u32, waitMs u32``.
    Reply: DATA ``count u32, {sequence u64, timestamp u64, length u32, value}*``."""
    S_JOIN = 0x33
    """``group str, name str``. Reply: DATA ``ack floor u64, generation u64, consumer str``."""
    S_ACK = 0x34
    """``name str, group str, consumer str, generation u64, sequence u64``. Reply: OK or ERR."""
    S_EXISTS = 0x35
    """``name str``. Reply: OK or ERR."""
    S_DELETE = 0x36
    """``name str``. Reply: OK or ERR."""
    S_NACK = 0x37
    """As S_ACK; sent by older clients."""
    S_SEEK = 0x38
    """``name str, group str, target u8`` (0 beginning, 1 end). Reply: OK."""
    S_LEAVE = 0x39
    """``name str, group str, consumer str, generation u64``. Reply: OK or ERR."""

    S_SURVEY = 0x3A
    """msgpack `server.SurveyAsk`. Reply: `nexo.model.stream.StreamSurvey`."""
    S_NEXT = 0x3B
    """msgpack `stream.Next`. Reply: `stream.TakeReply`, batches; long poll."""

    # ours: payloads and replies are in `nexo.protocol.stream` and the modules it names
    S_PUBLISH = 0x90
    S_TAKE = 0x91
    S_SETTLE = 0x92
    S_GROUP_JOIN = 0x93
    S_GROUP_LEAVE = 0x94
    S_GROUP_SEEK = 0x95
    S_GROUPS = 0x96
    S_GROUP_DELETE = 0x97
    S_PARKED = 0x98
    S_PARKED_SETTLE = 0x99
    S_MAKE = 0x9A
    S_DESCRIBE = 0x9B
    S_UPDATE = 0x9C
    S_LIST = 0x9D
    S_READ = 0x9E
    S_PRODUCER = 0x9F
    S_TX_BEGIN = 0xA0
    S_TX_PUBLISH = 0xA1
    S_TX_INPUTS = 0xA2
    S_TX_COMMIT = 0xA3
    S_TX_ABORT = 0xA4
    S_COMPACT = 0xA5
    S_GET = 0xA6
    S_STATE = 0xA7
    S_TIERED = 0xA8
    S_RETAIN = 0xA9
    S_READ_MANY = 0xAA
    S_OFFSETS_AT = 0xAB
    S_ADD = 0xAC
    S_ORDERED_JOIN = 0xB0
    S_ORDERED_LEAVE = 0xB1
    S_HEARTBEAT = 0xB2
    S_COMMIT = 0xB3
    S_COMMITTED = 0xB4
    S_ORDERED_SEEK = 0xB5
    S_ORDERED_GROUPS = 0xB6
    S_ORDERED_DELETE = 0xB7
    # ours: payloads and replies are in `nexo.protocol.xstreams`
    S_X_ADD = 0xB8
    S_X_GROUP = 0xB9
    S_X_READ = 0xBA
    S_X_ACK = 0xBB
    S_X_PENDING = 0xBC
    S_X_CLAIM = 0xBD
    S_X_CONSUMER_DELETE = 0xBE
    S_X_INFO = 0xBF
    S_X_RANGE = 0xAD
    S_X_DELETE = 0xAE
    S_X_TRIM = 0xAF
    S_X_RENEW = 0x3F
    # ours: payloads and replies are in `nexo.protocol.stream_publishing`
    S_TX_OUTCOME = 0x3E
    # ours: payload and reply are in `nexo.protocol.stream_publishing`
    S_PUBLISH_EACH = 0x3D

    # Any broker: 0xF0-0xFF. The payload's first byte names the broker.
    STATUS = 0xF0
    """Reply: the broker's status as a JSON value."""
    CANCEL = 0xF1
    """``broker u8, id u32``: answer that waiting request now, with nothing. No reply of its own."""
    BACKUP = 0xF2
    """``broker u8``, then a request of `nexo.protocol.server`."""
    PEERS = 0xF3
    """Reply: the connections of the broker's process as a JSON value, newest first."""


_RANGES = {
    Broker.STORE: (range(0x02, 0x10), range(0x40, 0x60)),
    Broker.QUEUE: (range(0x10, 0x20), range(0x60, 0x80)),
    Broker.PUBSUB: (range(0x20, 0x30), range(0x80, 0x90)),
    Broker.STREAM: (range(0x30, 0x40), range(0x90, 0xC0)),
}

BROKER_OF: tuple[Broker | None, ...] = tuple(
    next((broker for broker, ranges in _RANGES.items() if any(op in each for each in ranges)), None)
    for op in range(256)
)
"""The broker of each opcode; None for ECHO, HELLO and requests that any broker answers."""
