"""Our own requests and replies of the store on the wire.

Msgpack arrays, one struct each, answered by DATA with msgpack (`nexo.protocol.messages`). Values
inside are bytes with their type byte (`nexo.protocol.values`). A missing trailing field has its
default. The three requests of the existing client are in `nexo.protocol.store_classic`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

import msgspec

from nexo.errors import InvalidInput
from nexo.model import Buffer
from nexo.model.store import MAX_KEY_BYTES, KeyInfo, KeysPage, LeaseAnswer, RateAnswer, SetResult
from nexo.protocol.messages import unpack
from nexo.protocol.ops import Op

StoreKey: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_KEY_BYTES)]
ValueBytes: TypeAlias = Annotated[bytes, msgspec.Meta(min_length=1)]
Number: TypeAlias = int | float


class StoreRequest(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """Base of our requests."""


class SetKey(StoreRequest):
    """KEY_SET: set under a condition. Reply: `SetResult`."""

    key: StoreKey
    value: ValueBytes
    ttl_ms: int | None = None
    keep_ttl: bool = False
    if_absent: bool = False
    if_equal: ValueBytes | None = None
    get_previous: bool = False


class OneKey(StoreRequest):
    """A command about one key, without arguments."""

    key: StoreKey


class Keys(StoreRequest):
    """A command about several keys."""

    keys: list[StoreKey]


class SetMany(StoreRequest):
    """KEY_MSET: set all, with one TTL or none."""

    values: dict[StoreKey, ValueBytes]
    ttl_ms: int | None = None


class Increment(StoreRequest):
    """KEY_INCR: the TTL applies only to a new key."""

    key: StoreKey
    by: Number
    ttl_ms: int | None = None


class Expire(StoreRequest):
    """KEY_EXPIRE: set a new TTL."""

    key: StoreKey
    ttl_ms: int


class Scan(StoreRequest):
    """KEY_SCAN: a page of keys, in order, after ``cursor``."""

    prefix: Annotated[str, msgspec.Meta(max_length=MAX_KEY_BYTES)] = ""
    glob: Annotated[str, msgspec.Meta(max_length=1_024)] = ""
    cursor: str = ""
    limit: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 100


class DeleteIf(StoreRequest):
    """KEY_DELETE_IF: delete a key that holds this value. Reply: whether it was deleted."""

    key: StoreKey
    if_equal: ValueBytes


class TakeLease(StoreRequest):
    """LEASE_TAKE: one of ``limit`` leases of a key for ``holder``; renews its lease if it holds
    one. Waits up to ``wait_ms`` for a free one. Reply: `LeaseAnswer`.
    """

    key: StoreKey
    holder: str
    ttl_ms: int
    limit: int = 1
    wait_ms: int = 0


class RenewLease(StoreRequest):
    """LEASE_RENEW: restart the TTL. Reply: False if the lease has ended."""

    key: StoreKey
    holder: str
    ttl_ms: int


class ReleaseLease(StoreRequest):
    """LEASE_RELEASE. Reply: False if the lease had already ended."""

    key: StoreKey
    holder: str


class TakeTokens(StoreRequest):
    """RATE_BUCKET: take ``cost`` tokens from a bucket that refills. Reply: `RateAnswer`."""

    key: StoreKey
    capacity: Number
    per_second: Number
    cost: Number = 1


class CountInWindow(StoreRequest):
    """RATE_WINDOW: at most ``limit`` in any ``window_ms``. Reply: `RateAnswer`."""

    key: StoreKey
    limit: int
    window_ms: int
    cost: int = 1


class Clear(StoreRequest):
    """STORE_CLEAR: delete everything."""


class SetFields(StoreRequest):
    """FIELDS_SET on a map."""

    key: StoreKey
    fields: dict[str, ValueBytes]
    if_absent: bool = False


class Fields(StoreRequest):
    """A command about some fields of a map."""

    key: StoreKey
    fields: list[str]


class IncrementField(StoreRequest):
    """FIELDS_INCR on a map."""

    key: StoreKey
    field: str
    by: Number


class Push(StoreRequest):
    """LIST_PUSH, at the right end or the left."""

    key: StoreKey
    values: list[ValueBytes]
    left: bool = False


class PopItems(StoreRequest):
    """LIST_POP and SET_POP; a set has no ends."""

    key: StoreKey
    count: int = 1
    left: bool = False


class ListRange(StoreRequest):
    """LIST_RANGE and LIST_TRIM: a Python slice."""

    key: StoreKey
    start: int = 0
    stop: int | None = None


class Replace(StoreRequest):
    """LIST_REPLACE."""

    key: StoreKey
    index: int
    value: ValueBytes


class RemoveValue(StoreRequest):
    """LIST_REMOVE: the first ``count`` equal values, 0 for all."""

    key: StoreKey
    value: ValueBytes
    count: int = 0


class Members(StoreRequest):
    """A command about some members of a set."""

    key: StoreKey
    members: list[ValueBytes]


_OPTIONAL_VALUES = list[bytes | None]
_TABLE: Mapping[Op, tuple[type[StoreRequest], Any]] = {
    Op.KEY_SET: (SetKey, SetResult),
    Op.KEY_DELETE: (Keys, int),
    Op.KEY_EXISTS: (Keys, int),
    Op.KEY_MGET: (Keys, _OPTIONAL_VALUES),
    Op.KEY_MSET: (SetMany, None),
    Op.KEY_INCR: (Increment, Number),
    Op.KEY_GETDEL: (OneKey, bytes | None),
    Op.KEY_EXPIRE: (Expire, bool),
    Op.KEY_PERSIST: (OneKey, bool),
    Op.KEY_INSPECT: (OneKey, KeyInfo | None),
    Op.KEY_SCAN: (Scan, KeysPage),
    Op.STORE_CLEAR: (Clear, int),
    Op.KEY_DELETE_IF: (DeleteIf, bool),
    Op.LEASE_TAKE: (TakeLease, LeaseAnswer),
    Op.LEASE_RENEW: (RenewLease, bool),
    Op.LEASE_RELEASE: (ReleaseLease, bool),
    Op.RATE_BUCKET: (TakeTokens, RateAnswer),
    Op.RATE_WINDOW: (CountInWindow, RateAnswer),
    Op.FIELDS_SET: (SetFields, int),
    Op.FIELDS_GET: (Fields, _OPTIONAL_VALUES),
    Op.FIELDS_ALL: (OneKey, dict[str, bytes]),
    Op.FIELDS_DELETE: (Fields, int),
    Op.FIELDS_INCR: (IncrementField, Number),
    Op.FIELDS_COUNT: (OneKey, int),
    Op.LIST_PUSH: (Push, int),
    Op.LIST_POP: (PopItems, list[bytes]),
    Op.LIST_RANGE: (ListRange, list[bytes]),
    Op.LIST_REPLACE: (Replace, None),
    Op.LIST_TRIM: (ListRange, int),
    Op.LIST_REMOVE: (RemoveValue, int),
    Op.LIST_LENGTH: (OneKey, int),
    Op.SET_ADD: (Members, int),
    Op.SET_REMOVE: (Members, int),
    Op.SET_POP: (PopItems, list[bytes]),
    Op.SET_CONTAINS: (Members, list[bool]),
    Op.SET_MEMBERS: (OneKey, list[bytes]),
    Op.SET_SIZE: (OneKey, int),
}
"""The struct of each of our requests, and the type of its reply."""
REQUESTS: Mapping[Op, type[StoreRequest]] = {op: request for op, (request, _) in _TABLE.items()}


def decode_request(op: Op, payload: Buffer) -> StoreRequest:
    """One of our requests; `InvalidInput` says which field is wrong."""
    return unpack(_TABLE[op][0], payload, InvalidInput)


def decode_reply(op: Op, data: Buffer | None) -> Any:
    return unpack(_TABLE[op][1], data or b"")
