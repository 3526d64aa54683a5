"""Our own requests and replies of the store on the wire.

Msgpack arrays, one struct each, answered by DATA with msgpack. Values inside are bytes with
their type byte (`nexo.protocol.values`). A missing trailing field has its default. The three
requests of the existing client are in `nexo.protocol.store_classic`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

import msgspec

from nexo.errors import InvalidInput, ProtocolError
from nexo.model import Buffer
from nexo.protocol.ops import Op
from nexo.refusals import UNWRITABLE, in_words, unwritable
from nexo.values import MAX_KEY_BYTES

Key: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_KEY_BYTES)]
Value: TypeAlias = Annotated[bytes, msgspec.Meta(min_length=1)]
Number: TypeAlias = int | float


class StoreRequest(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """Base of our requests."""


class SetKey(StoreRequest):
    """KEY_SET: set under a condition. Reply: `SetReply`."""

    key: Key
    value: Value
    ttl_ms: int | None = None
    keep_ttl: bool = False
    if_absent: bool = False
    if_equal: Value | None = None
    get_previous: bool = False


class SetReply(StoreRequest):
    """Whether it was set, and the previous value if requested."""

    done: bool
    previous: bytes | None


class OneKey(StoreRequest):
    """A command about one key, without arguments."""

    key: Key


class Keys(StoreRequest):
    """A command about several keys."""

    keys: list[Key]


class SetMany(StoreRequest):
    """KEY_MSET: set all, with one TTL or none."""

    values: dict[Key, Value]
    ttl_ms: int | None = None


class Increment(StoreRequest):
    """KEY_INCR: the TTL applies only to a new key."""

    key: Key
    by: Number
    ttl_ms: int | None = None


class Expire(StoreRequest):
    """KEY_EXPIRE: set a new TTL."""

    key: Key
    ttl_ms: int


class KeyInfoReply(StoreRequest):
    """What KEY_INSPECT replies for a key that exists."""

    kind: str
    """``value``, ``map``, ``list`` or ``set``."""
    items: int
    size_bytes: int
    ttl_ms: int | None


class Scan(StoreRequest):
    """KEY_SCAN: a page of keys, in order, after ``cursor``."""

    prefix: Annotated[str, msgspec.Meta(max_length=MAX_KEY_BYTES)] = ""
    glob: Annotated[str, msgspec.Meta(max_length=1_024)] = ""
    cursor: str = ""
    limit: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 100


class KeysReply(StoreRequest):
    """Keys, and the cursor of the next page unless this was the last."""

    keys: list[str]
    cursor: str | None


class DeleteIf(StoreRequest):
    """KEY_DELETE_IF: delete a key that holds this value. Reply: whether it was deleted."""

    key: Key
    if_equal: Value


class TakeLease(StoreRequest):
    """LEASE_TAKE: one of ``limit`` leases of a key for ``holder``; renews its lease if it holds
    one. Waits up to ``wait_ms`` for a free one. Reply: `LeaseReply`.
    """

    key: Key
    holder: str
    ttl_ms: int
    limit: int = 1
    wait_ms: int = 0


class LeaseReply(StoreRequest):
    """The fencing number, which grows with every lease granted; if all are taken, None and the
    time in ms until the next one ends.
    """

    number: int | None
    retry_ms: int


class RenewLease(StoreRequest):
    """LEASE_RENEW: restart the TTL. Reply: False if the lease has ended."""

    key: Key
    holder: str
    ttl_ms: int


class ReleaseLease(StoreRequest):
    """LEASE_RELEASE. Reply: False if the lease had already ended."""

    key: Key
    holder: str


class TakeTokens(StoreRequest):
    """RATE_BUCKET: take ``cost`` tokens from a bucket that refills. Reply: `RateReply`."""

    key: Key
    capacity: Number
    per_second: Number
    cost: Number = 1


class CountInWindow(StoreRequest):
    """RATE_WINDOW: at most ``limit`` in any ``window_ms``. Reply: `RateReply`."""

    key: Key
    limit: int
    window_ms: int
    cost: int = 1


class RateReply(StoreRequest):
    """Whether it is allowed, what is left now, and in how many ms to retry."""

    allowed: bool
    remaining: Number
    retry_ms: int


class Clear(StoreRequest):
    """STORE_CLEAR: delete everything."""


class SetFields(StoreRequest):
    """FIELDS_SET on a map."""

    key: Key
    fields: dict[str, Value]
    if_absent: bool = False


class Fields(StoreRequest):
    """A command about some fields of a map."""

    key: Key
    fields: list[str]


class IncrementField(StoreRequest):
    """FIELDS_INCR on a map."""

    key: Key
    field: str
    by: Number


class Push(StoreRequest):
    """LIST_PUSH, at the right end or the left."""

    key: Key
    values: list[Value]
    left: bool = False


class PopItems(StoreRequest):
    """LIST_POP and SET_POP; a set has no ends."""

    key: Key
    count: int = 1
    left: bool = False


class ListRange(StoreRequest):
    """LIST_RANGE and LIST_TRIM: a Python slice."""

    key: Key
    start: int = 0
    stop: int | None = None


class Replace(StoreRequest):
    """LIST_REPLACE."""

    key: Key
    index: int
    value: Value


class RemoveValue(StoreRequest):
    """LIST_REMOVE: the first ``count`` equal values, 0 for all."""

    key: Key
    value: Value
    count: int = 0


class Members(StoreRequest):
    """A command about some members of a set."""

    key: Key
    members: list[Value]


REQUESTS: Mapping[Op, type[StoreRequest]] = {
    Op.KEY_SET: SetKey,
    Op.KEY_DELETE: Keys,
    Op.KEY_EXISTS: Keys,
    Op.KEY_MGET: Keys,
    Op.KEY_MSET: SetMany,
    Op.KEY_INCR: Increment,
    Op.KEY_GETDEL: OneKey,
    Op.KEY_EXPIRE: Expire,
    Op.KEY_PERSIST: OneKey,
    Op.KEY_INSPECT: OneKey,
    Op.KEY_SCAN: Scan,
    Op.STORE_CLEAR: Clear,
    Op.KEY_DELETE_IF: DeleteIf,
    Op.LEASE_TAKE: TakeLease,
    Op.LEASE_RENEW: RenewLease,
    Op.LEASE_RELEASE: ReleaseLease,
    Op.RATE_BUCKET: TakeTokens,
    Op.RATE_WINDOW: CountInWindow,
    Op.FIELDS_SET: SetFields,
    Op.FIELDS_GET: Fields,
    Op.FIELDS_ALL: OneKey,
    Op.FIELDS_DELETE: Fields,
    Op.FIELDS_INCR: IncrementField,
    Op.FIELDS_COUNT: OneKey,
    Op.LIST_PUSH: Push,
    Op.LIST_POP: PopItems,
    Op.LIST_RANGE: ListRange,
    Op.LIST_REPLACE: Replace,
    Op.LIST_TRIM: ListRange,
    Op.LIST_REMOVE: RemoveValue,
    Op.LIST_LENGTH: OneKey,
    Op.SET_ADD: Members,
    Op.SET_REMOVE: Members,
    Op.SET_POP: PopItems,
    Op.SET_CONTAINS: Members,
    Op.SET_MEMBERS: OneKey,
    Op.SET_SIZE: OneKey,
}
"""The struct of each of our requests."""

_OPTIONAL_VALUES = list[bytes | None]
REPLIES: Mapping[Op, Any] = {
    Op.KEY_SET: SetReply,
    Op.KEY_DELETE: int,
    Op.KEY_EXISTS: int,
    Op.KEY_MGET: _OPTIONAL_VALUES,
    Op.KEY_MSET: None,
    Op.KEY_INCR: Number,
    Op.KEY_GETDEL: bytes | None,
    Op.KEY_EXPIRE: bool,
    Op.KEY_PERSIST: bool,
    Op.KEY_INSPECT: KeyInfoReply | None,
    Op.KEY_SCAN: KeysReply,
    Op.STORE_CLEAR: int,
    Op.KEY_DELETE_IF: bool,
    Op.LEASE_TAKE: LeaseReply,
    Op.LEASE_RENEW: bool,
    Op.LEASE_RELEASE: bool,
    Op.RATE_BUCKET: RateReply,
    Op.RATE_WINDOW: RateReply,
    Op.FIELDS_SET: int,
    Op.FIELDS_GET: _OPTIONAL_VALUES,
    Op.FIELDS_ALL: dict[str, bytes],
    Op.FIELDS_DELETE: int,
    Op.FIELDS_INCR: Number,
    Op.FIELDS_COUNT: int,
    Op.LIST_PUSH: int,
    Op.LIST_POP: list[bytes],
    Op.LIST_RANGE: list[bytes],
    Op.LIST_REPLACE: None,
    Op.LIST_TRIM: int,
    Op.LIST_REMOVE: int,
    Op.LIST_LENGTH: int,
    Op.SET_ADD: int,
    Op.SET_REMOVE: int,
    Op.SET_POP: list[bytes],
    Op.SET_CONTAINS: list[bool],
    Op.SET_MEMBERS: list[bytes],
    Op.SET_SIZE: int,
}
"""The reply type of each of our requests."""

encode_reply = msgspec.msgpack.Encoder().encode
_request_decoders = {op: msgspec.msgpack.Decoder(kind) for op, kind in REQUESTS.items()}
_reply_decoders = {op: msgspec.msgpack.Decoder(kind) for op, kind in REPLIES.items()}


def encode_request(command: StoreRequest) -> bytes:
    """One of our requests."""
    try:
        return encode_reply(command)
    except UNWRITABLE as error:
        raise unwritable(error) from None


def decode_request(op: Op, payload: Buffer) -> StoreRequest:
    """One of our requests; `InvalidInput` says which field is wrong."""
    try:
        return _request_decoders[op].decode(payload)
    except msgspec.ValidationError as error:
        raise InvalidInput(in_words(error, REQUESTS[op])) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"{op.name} request is not msgpack: {error}") from None


def decode_reply(op: Op, data: Buffer | None) -> Any:
    """The server's reply to one of our requests; see `REPLIES`."""
    return _reply_decoders[op].decode(data or b"")
