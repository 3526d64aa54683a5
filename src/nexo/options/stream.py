"""The options of streams and of their groups (SPEC E1, F1, G1, G6, I1), also in Kafka's words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from nexo.errors import AlreadyExists, Conflict, InvalidOption
from nexo.model import Persistence
from nexo.options.described import differences, merged
from nexo.options.option import option

Strategy: TypeAlias = Literal["range", "roundRobin"]
Cleanup: TypeAlias = Literal["delete", "compact", "delete,compact"]
KafkaCompression: TypeAlias = Literal["producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"]
Natural: TypeAlias = Annotated[int, Meta(ge=0)]
Positive: TypeAlias = Annotated[int, Meta(ge=1)]

MAX_PARTITIONS = 1_024
DAY_MS = 86_400_000


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of one stream. 0 means no limit.

    Each is described, for user interfaces that ask for it (SPEC K3).
    """

    partitions: Annotated[
        int,
        Meta(ge=1, le=MAX_PARTITIONS),
        option("May grow later, never shrink.", title="Partitions", usual=True),
    ] = 1
    persistence: Annotated[
        Persistence,
        option(
            "file_async answers once a record is written, file_sync once it is synced to disk, "
            "replicated once the object store has it too.",
            title="Durability",
            usual=True,
        ),
    ] = Persistence.FILE_ASYNC
    retention_ms: Annotated[
        Natural, option("Older records are removed; 0 for no limit.", title="Age limit", usual=True)
    ] = 7 * DAY_MS
    retention_bytes: Annotated[
        Natural,
        option(
            "Of the whole stream, of which every partition gets an equal share; 0 for no limit.",
            title="Size limit",
            usual=True,
        ),
    ] = 1024**3
    cleanup: Annotated[
        Cleanup,
        option(
            "delete removes what is past the limits, compact all but the newest of each key.",
            title="Clean-up",
            usual=True,
        ),
    ] = "delete"
    min_dirty_ratio: Annotated[
        float,
        Meta(ge=0, le=1),
        option(
            "Compaction runs once this share of a partition, 0 to 1, was written since the last.",
            title="Compact at",
        ),
    ] = 0.5
    delete_retention_ms: Annotated[
        Natural,
        option(
            "How long compaction keeps a tombstone, so that readers see the deletion.",
            title="Keep deletions",
        ),
    ] = DAY_MS
    max_message_bytes: Annotated[
        Natural,
        option("0 leaves only the server's limit on a whole request.", title="Largest value"),
    ] = 0
    kafka_compression: Annotated[
        KafkaCompression,
        option(
            "How batches of Kafka clients are kept: producer leaves them as they are sent.",
            title="Kafka's compression",
        ),
    ] = "producer"
    tiering: Annotated[
        bool, option("Retention frees nothing that the lake has not taken.", title="Tiering")
    ] = False

    @property
    def compacts(self) -> bool:
        """Whether old values of a key are removed."""
        return "compact" in self.cleanup

    @property
    def expires(self) -> bool:
        """Whether age and size limits apply."""
        return "delete" in self.cleanup


def options_from(given: Mapping[str, Any], base: StreamOptions) -> StreamOptions:
    """``base`` with what was ``given``; `InvalidOption` names an unknown or bad option."""
    return merged(given, base, "stream")


def updated(options: StreamOptions, given: Mapping[str, Any]) -> StreamOptions:
    """Options changed while the stream runs; there may be more partitions, never fewer.

    Then the size limit grows too, unless it is given: every partition keeps its share.
    """
    new, old = options_from(given, options), options.partitions
    if new.partitions < old:
        raise InvalidOption(
            f"partitions = {new.partitions}: the stream has {old}, and partitions may be added, "
            "never removed: create another stream and copy"
        )
    if new.partitions > old and "retention_bytes" not in given:
        kept = options.retention_bytes * new.partitions // old
        new = msgspec.structs.replace(new, retention_bytes=kept)
    return new


def check_same(name: str, has: StreamOptions, wanted: StreamOptions) -> None:
    """Raise `AlreadyExists` naming the options in which an existing stream differs."""
    if has == wanted:
        return
    do = (
        "use another name, as partitions are never removed"
        if has.partitions > wanted.partitions
        else "update it, create with update, or leave that out"
    )
    raise AlreadyExists(f"stream {name!r} exists with {differences(has, wanted)}: {do}")


MIN_TIMEOUT_MS, MAX_TIMEOUT_MS = 1_000, 86_400_000
"""Bounds of a group's two timeouts. A join changes them for every member, so one that no
member could meet would remove all of them."""
GroupTimeout: TypeAlias = Annotated[int, Meta(ge=MIN_TIMEOUT_MS, le=MAX_TIMEOUT_MS)]
MAX_TRANSACTION_MS = 900_000


def check_transaction(timeout_ms: int) -> int:
    """Check how long a transaction may stay open; both sides do."""
    if not 1 <= timeout_ms <= MAX_TRANSACTION_MS:
        raise InvalidOption(
            f"a transaction's timeout of {timeout_ms:,} ms: must be more than 0, at most "
            f"{MAX_TRANSACTION_MS // 1000} seconds"
        )
    return timeout_ms


class OrderedOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How an ordered group assigns partitions, and when it gives a member up."""

    strategy: Annotated[
        Strategy,
        option(
            "range gives members runs of partitions, roundRobin deals them in turn.",
            title="Strategy",
        ),
    ] = "range"
    session_timeout_ms: Annotated[
        GroupTimeout,
        option("A member that sends nothing for this long is removed.", title="Session"),
    ] = 30_000
    rebalance_timeout_ms: Annotated[
        GroupTimeout,
        option("A member that keeps a revoked partition longer is removed.", title="Rebalance"),
    ] = 30_000


class SharedOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a shared group delivers."""

    ack_wait_ms: Annotated[
        Positive, option("How long a delivered record may take to be acked.", title="Lease")
    ] = 30_000
    max_deliveries: Annotated[
        Natural, option("Before a record is parked; 0 for no limit.", title="Deliveries")
    ] = 5
    max_ack_pending: Annotated[
        Positive, option("Most records delivered and not yet settled.", title="In flight")
    ] = 10_000
    ordered_by: Annotated[
        Literal["key"] | None,
        option("key delivers the records of one key one after another.", title="Order", fixed=True),
    ] = None
    release: Annotated[
        Literal["claim"] | None,
        option(
            "With claim, a consumer keeps its records until they are acked or another claims them.",
            title="Release",
            fixed=True,
        ),
    ] = None

    def __post_init__(self) -> None:
        if self.release and self.ordered_by:
            raise InvalidOption("release = 'claim' cannot be combined with ordered_by")

    def check_members(self) -> None:
        """Raise `Conflict` if consumers of this group are names, not members that join."""
        if self.release:
            raise Conflict("the group's consumers keep what they are given: use nexo.xstreams")


OPTION_OF = {
    "retention.ms": "retention_ms",
    "retention.bytes": "retention_bytes",
    "cleanup.policy": "cleanup",
    "max.message.bytes": "max_message_bytes",
    "min.cleanable.dirty.ratio": "min_dirty_ratio",
    "delete.retention.ms": "delete_retention_ms",
}
"""A configuration of Kafka's topics: the option of our streams."""
_LIMITS = ("retention.ms", "retention.bytes")
"""No limit is Kafka's -1 and our 0."""


def from_kafka(key: str, value: Any) -> Any:
    """A value as our option has it; what Kafka and we write alike stays as it is."""
    if key in _LIMITS and value == -1:
        return 0
    if key == "cleanup.policy" and isinstance(value, str):  # a list, in any order
        return ",".join(sorted({word.strip() for word in value.split(",")}, reverse=True))
    return value


def to_kafka(key: str, value: Any) -> Any:
    """A value of our option as Kafka has it."""
    return -1 if key in _LIMITS and value == 0 else value
