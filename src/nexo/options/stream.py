"""The options of streams and of their groups (SPEC E1, F1, G1, G6, I1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from nexo.config import Settings
from nexo.errors import AlreadyExists, Conflict, InvalidOption
from nexo.model import Persistence
from nexo.options.described import differences, merged, option

Strategy: TypeAlias = Literal["range", "roundRobin"]
Cleanup: TypeAlias = Literal["delete", "compact", "delete,compact"]
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
        option("Partitions", "Fixed at creation.", usual=True, fixed=True),
    ] = 1
    persistence: Annotated[
        Persistence,
        option(
            "Durability",
            "file_async answers once a record is written, file_sync once it is synced to disk, "
            "replicated once the object store has it too.",
            usual=True,
        ),
    ] = Persistence.FILE_ASYNC
    retention_ms: Annotated[
        Natural, option("Age limit", "Older records are removed; 0 for no limit.", "ms", usual=True)
    ] = 7 * DAY_MS
    retention_bytes: Annotated[
        Natural,
        option(
            "Size limit",
            "Of the whole stream, of which every partition gets an equal share; 0 for no limit.",
            "bytes",
            usual=True,
        ),
    ] = 1024**3
    cleanup: Annotated[
        Cleanup,
        option(
            "Clean-up",
            "delete removes what is past the limits, compact all but the newest of each key.",
            usual=True,
        ),
    ] = "delete"
    min_dirty_ratio: Annotated[
        float,
        Meta(ge=0, le=1),
        option(
            "Compact at",
            "Compaction runs once this share of a partition, 0 to 1, was written since the last.",
        ),
    ] = 0.5
    delete_retention_ms: Annotated[
        Natural,
        option(
            "Keep deletions",
            "How long compaction keeps a tombstone, so that readers see the deletion.",
            "ms",
        ),
    ] = DAY_MS
    max_message_bytes: Annotated[
        Natural,
        option(
            "Largest value",
            "0 leaves only the server's limit on a whole request.",
            "bytes",
        ),
    ] = 0
    tiering: Annotated[
        bool, option("Tiering", "Retention frees nothing that the lake has not taken.")
    ] = False

    @property
    def compacts(self) -> bool:
        """Whether old values of a key are removed."""
        return "compact" in self.cleanup

    @property
    def expires(self) -> bool:
        """Whether age and size limits apply."""
        return "delete" in self.cleanup


def defaults(settings: Settings) -> StreamOptions:
    """Options of a stream that is created without any."""
    return StreamOptions(
        persistence=Persistence(settings.stream_persistence),
        retention_ms=settings.retention_ms,
        retention_bytes=settings.retention_bytes,
    )


def options_from(given: Mapping[str, Any], base: StreamOptions) -> StreamOptions:
    """``base`` with what was ``given``; `InvalidOption` names an unknown or bad option."""
    return merged(given, base, "stream")


def updated(options: StreamOptions, given: Mapping[str, Any]) -> StreamOptions:
    """Options changed while the stream runs; the partition count is fixed."""
    if given.get("partitions", options.partitions) != options.partitions:
        raise InvalidOption("partitions are fixed at creation: create another stream and copy")
    return options_from(given, options)


def check_same(name: str, has: StreamOptions, wanted: StreamOptions) -> None:
    """Raise `AlreadyExists` naming the options in which an existing stream differs."""
    if has == wanted:
        return
    fixed = has.partitions != wanted.partitions
    do = "use another name, as partitions are fixed" if fixed else "update it, or leave that out"
    raise AlreadyExists(f"stream {name!r} exists with {differences(has, wanted)}: {do}")


MIN_TIMEOUT_MS, MAX_TIMEOUT_MS = 1_000, 86_400_000
"""Bounds of a group's two timeouts. A join changes them for every member, so one that no
member could meet would remove all of them."""
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
            "Strategy", "range gives members runs of partitions, roundRobin deals them in turn."
        ),
    ] = "range"
    session_timeout_ms: Annotated[
        Positive, option("Session", "A member that sends nothing for this long is removed.", "ms")
    ] = 30_000
    rebalance_timeout_ms: Annotated[
        Positive,
        option("Rebalance", "A member that keeps a revoked partition longer is removed.", "ms"),
    ] = 30_000


class SharedOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a shared group delivers."""

    ack_wait_ms: Annotated[
        Positive, option("Lease", "How long a delivered record may take to be acked.", "ms")
    ] = 30_000
    max_deliveries: Annotated[
        Natural, option("Deliveries", "Before a record is parked; 0 for no limit.")
    ] = 5
    max_ack_pending: Annotated[
        Positive, option("In flight", "Most records delivered and not yet settled.")
    ] = 10_000
    ordered_by: Annotated[
        Literal["key"] | None,
        option("Order", "key delivers the records of one key one after another.", fixed=True),
    ] = None
    release: Annotated[
        Literal["claim"] | None,
        option(
            "Release",
            "With claim, a consumer keeps its records until they are acked or another claims them.",
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
