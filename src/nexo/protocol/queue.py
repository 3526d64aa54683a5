"""The queue's own requests and replies, as both ends write and read them.

Hot requests are ``head length u32 · head (msgpack array) · raw bytes``; all others are one
msgpack map. The raw bytes are blocks of values; blocks and job ids are in `nexo.model.blocks`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

from nexo.errors import InvalidInput
from nexo.model import Buffer
from nexo.model.blocks import WORD, values_of, words_of
from nexo.model.queue import JobOutcome, PushReply
from nexo.protocol.messages import pack, pack_headed, split_headed, unpack

__all__ = ["PushReply"]

# -- hot requests and replies -------------------------------------------------


class PushHead(msgspec.Struct, array_like=True, frozen=True):
    """Q_PUSH_MANY; the block follows."""

    queue: str
    priority: int = 0
    delay_ms: int = 0
    ttl_ms: int = 0
    keys: list[str | None] | None = None
    dedup_keys: list[str | None] | None = None
    replace: bool = False
    headers: list[bytes | None] | None = None
    """One JSON object per job, or nil."""


class PopJobs(msgspec.Struct, array_like=True, frozen=True):
    """Q_POP: lease up to ``limit`` jobs, waiting for the first."""

    queue: str
    limit: int = 1
    wait_ms: int = 0
    lease_ms: int = 0
    """0 for the queue's default."""
    reports: bool = False
    """Q_BEGIN will report which handlers have begun."""


class Piece(msgspec.Struct, array_like=True, frozen=True):
    """Neighbouring jobs of a delivery; their ends and contents follow the head."""

    first: int
    count: int
    priority: int
    pushed_ms: int


class PopReply(msgspec.Struct, array_like=True, frozen=True):
    """Head of the reply to Q_POP; NULL if there was nothing."""

    incarnation: int
    token: int
    lease_ms: int
    pieces: list[Piece]
    attempts: dict[int, int] = {}
    """The attempt numbers of jobs that were delivered before."""
    keys: dict[int, str] = {}
    keeps_results: bool = True
    """Whether the queue keeps the results sent with acks."""
    max_retries: int = -1
    """How often a job may fail before it is dead; -1 if unknown."""
    headers: dict[int, bytes] = {}
    """Headers of the jobs that have some: a JSON object each."""
    returned: list[int] = []
    """The jobs that a worker has seen and given back."""


class Settled(msgspec.Struct, array_like=True, frozen=True):
    """How jobs of one lease are settled."""

    token: int
    runs: list[int] | None = None
    """Flat ``[lo, hi, lo, hi, …]``; None for all the lease still holds."""
    results: dict[int, bytes] = {}


class SettleJobs(msgspec.Struct, array_like=True, frozen=True):
    """Q_SETTLE: ack, nack, reject, release or return jobs.

    The reply lists the ``[token, job]`` pairs rejected because the lease was lost; job -1
    stands for the whole lease.
    """

    queue: str
    how: JobOutcome
    """0 to ack, 1 to nack, 2 to reject, 3 to release, 4 to return what the worker has seen."""
    leases: list[Settled]
    error: str = ""
    delay_ms: int = -1
    """For NACK: the wait before the retry; -1 for the queue's policy."""


class RenewLeases(msgspec.Struct, array_like=True, frozen=True):
    """Q_RENEW: extend leases from now; the reply lists the tokens of lost leases."""

    queue: str
    tokens: list[int]
    lease_ms: int = 0


class Begin(msgspec.Struct, array_like=True, frozen=True):
    """Q_BEGIN, before handlers run: their deliveries count from now on."""

    queue: str
    begun: list[tuple[int, list[int]]]
    """The token of a lease, and jobs of it: flat ``[lo, hi, lo, hi, …]``."""


class ReportProgress(msgspec.Struct, array_like=True, frozen=True):
    """Q_PROGRESS: the progress of a running job."""

    queue: str
    token: int
    job: int
    value: bytes


# -- admin requests -----------------------------------------------------------


class Named(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A queue and nothing else: Q_PURGE, Q_CRON_LIST."""

    queue: str


class Look(Named, frozen=True):
    """Q_INFO; ``to_use`` creates the queue if creation on first use is allowed."""

    to_use: bool = False


class Declare(Named, frozen=True):
    """Q_DECLARE: create, or with ``update`` change what exists."""

    options: dict[str, Any] = {}
    update: bool = False


class Update(Named, frozen=True):
    """Q_UPDATE: change some options."""

    options: dict[str, Any]


class Pause(Named, frozen=True):
    """Q_PAUSE: stop or resume deliveries."""

    paused: bool


class PeekJobs(Named, frozen=True):
    """Q_PEEK and Q_DLQ_LIST: some of many; ``state`` is for Q_PEEK alone."""

    limit: int = 100
    offset: int = 0
    state: str = "waiting"
    """``waiting``, ``scheduled`` or ``working``."""


class Jobs(Named, frozen=True):
    """Q_DLQ_REPLAY, Q_DLQ_DELETE: these jobs, or all for None. Q_CANCEL_JOB: these."""

    ids: list[str] | None = None


class JobRequest(Named, frozen=True):
    """Q_JOB: the state of a job; with ``wait_ms``, once it has ended."""

    id: str
    wait_ms: int = 0


class CronRequest(Named, frozen=True):
    """Q_CRON_SET, and with the name alone Q_CRON_DELETE."""

    name: str
    cron: str = ""
    value: bytes = b""
    priority: int = 0
    key: str | None = None
    zone: str = ""
    """A name of the tz database; empty for UTC."""


T = TypeVar("T")

encode = pack
encode_head = pack_headed
split_head = split_headed


def decode(data: Buffer, type_: type[T]) -> T:
    """A message from outside; `InvalidInput` names the invalid field."""
    return unpack(type_, data, InvalidInput)


NO_JOBS = encode_head(PopReply(0, 0, 0, []))
"""The delivery that a NULL reply stands for."""


def pieces_of(delivery: PopReply, raw: memoryview) -> Iterator[tuple[Piece, list[bytes]]]:
    at = 0
    for piece in delivery.pieces:
        middle = at + WORD * (piece.count + 1)
        words = words_of(raw[at:middle])
        end = middle + words[-1] - words[0]
        yield piece, values_of(raw[at:middle], raw[middle:end])
        at = end
