"""What a queue writes to its log: every change that must survive a crash.

Each is a msgpack array led by its number; an entry of the log holds the records of one turn.
Deliveries are not logged: a crash ends every connection, and with it every lease (SPEC D8).
Jobs are named by their number in the queue; runs of them as flat ``[lo, hi, lo, hi, …]`` lists.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from nexo.errors import Corrupt


class QueueCreated(msgspec.Struct, array_like=True, tag=1, frozen=True):
    """The queue's first record."""

    incarnation: int
    """Distinguishes this queue, in every job id, from an earlier one of the same name."""
    now_ms: int
    options: dict[str, Any]
    """`nexo.options.queue.QueueOptions`, by stored names."""


class Changed(msgspec.Struct, array_like=True, tag=2, frozen=True):
    """The options changed, or the queue was paused or resumed."""

    options: dict[str, Any]
    """`nexo.options.queue.QueueOptions`, by stored names."""
    paused: bool


class Pushed(msgspec.Struct, array_like=True, tag=3, frozen=True):
    """A batch of jobs, numbered from ``base`` on."""

    base: int
    count: int
    now_ms: int
    block: bytes
    """The values (`nexo.model.blocks`); never read here."""
    priority: int = 0
    due_ms: int = 0
    expires_ms: int = 0
    keys: list[str | None] | None = None
    dedup_keys: list[str | None] | None = None
    dropped: list[int] | None = None
    """Indexes of jobs that were dropped because their dedup key was taken."""
    owner: str = ""
    """The user who pushed them, if users log in."""
    headers: list[bytes | None] | None = None
    """One per job, kept beside its value and never read here."""


class Finished(msgspec.Struct, array_like=True, tag=4, frozen=True):
    """Jobs that are over: acknowledged, expired, cancelled, purged, or deleted when dead."""

    runs: list[int]


class Failed(msgspec.Struct, array_like=True, tag=5, frozen=True):
    """One failed delivery of each job; each may run again from its due time on."""

    jobs: list[int]
    due_ms: list[int]
    now_ms: int
    reason: str


class Died(msgspec.Struct, array_like=True, tag=6, frozen=True):
    """The last failed delivery of each job; they are dead letters now."""

    jobs: list[int]
    now_ms: int
    cause: str
    reason: str


class Revived(msgspec.Struct, array_like=True, tag=7, frozen=True):
    """Dead letters that wait again, with no failures counted."""

    jobs: list[int]


class CronSet(msgspec.Struct, array_like=True, tag=8, frozen=True):
    """A schedule, new or changed."""

    name: str
    text: str
    value: bytes
    priority: int
    key: str | None
    next_ms: int
    zone: str = ""
    """The time zone of the expression; empty for UTC."""


class CronMoved(msgspec.Struct, array_like=True, tag=9, frozen=True):
    """A schedule ran; its next time. -1 removes it."""

    name: str
    next_ms: int


class Resulted(msgspec.Struct, array_like=True, tag=10, frozen=True):
    """What a job's handler returned."""

    job: int
    expires_ms: int
    value: bytes


class Moved(msgspec.Struct, array_like=True, tag=11, frozen=True):
    """Values of old jobs, copied here so that the front of the log can be dropped."""

    jobs: list[int]
    pushed_ms: list[int]
    block: bytes
    headers: list[bytes | None] | None = None


class Replaced(msgspec.Struct, array_like=True, tag=12, frozen=True):
    """A waiting job was replaced by a new one with its dedup key."""

    job: int
    by: int


QueueRecord: TypeAlias = (
    QueueCreated | Changed | Pushed | Finished | Failed | Died | Revived | CronSet | CronMoved
    | Resulted | Moved | Replaced
)  # fmt: skip

encode_record = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[QueueRecord] = msgspec.msgpack.Decoder(QueueRecord)


def decode_record(data: bytes | memoryview) -> QueueRecord:
    """One record; `Corrupt` if the bytes are not what `encode_record` wrote."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Corrupt(f"malformed queue record: {error}") from None
