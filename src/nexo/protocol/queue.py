"""The queue's own requests and replies, as both ends write and read them.

A *block* is the values of some jobs: ``count u32``, ``int32`` ends ``[count + 1]`` and the
values one after another, each with its type byte; little-endian, as in Arrow. A block is
never taken apart between the producer and the consumer, only cut.

Hot requests are ``head length u32 · head (msgpack array) · raw bytes``; all others are one
msgpack map. A job's id is 16 bytes, the queue's incarnation and the job's number, so that
the job is found without a search; people see it as 32 hexadecimal digits.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from struct import Struct
from sys import byteorder
from typing import Any, TypeVar

import msgspec

from nexo.errors import InvalidInput, ProtocolError
from nexo.protocol.frames import Buffer
from nexo.protocol.messages import pack, pack_headed, split_headed, unpack

# -- job ids ------------------------------------------------------------------

_ID = Struct(">QQ")
ID_SIZE = _ID.size


def pack_id(incarnation: int, job: int) -> bytes:
    """A job's id on the wire."""
    return _ID.pack(incarnation, job)


def unpack_id(raw: Buffer) -> tuple[int, int]:
    """Incarnation and number of a job."""
    incarnation, job = _ID.unpack(raw)
    return incarnation, job


def id_text(incarnation: int, job: int) -> str:
    """A job's id as people see it."""
    return f"{incarnation:016x}{job:016x}"


def parse_id(text: str) -> bytes:
    """The 16 bytes of an id; `InvalidInput` if it is none."""
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raw = b""
    if len(raw) != ID_SIZE:
        raise InvalidInput(f"{text[:64]!r} is not a job id: it has 32 hexadecimal digits")
    return raw


# -- blocks -------------------------------------------------------------------

_COUNT = Struct("<I")
_WORD = 4
MAX_BLOCK_JOBS = 1_000_000


def _words(raw: Buffer) -> array[int]:
    words = array("i")
    words.frombytes(raw)
    if byteorder == "big":
        words.byteswap()
    return words


def pack_block(values: Sequence[bytes]) -> bytes:
    """The block of encoded values (`nexo.protocol.values`)."""
    ends = array("i", accumulate(map(len, values), initial=0))
    if byteorder == "big":
        ends.byteswap()
    return b"".join((_COUNT.pack(len(values)), ends.tobytes(), *values))


def check_block(block: bytes) -> int:
    """How many jobs a block from outside holds; `ProtocolError` if it makes no sense."""
    if len(block) < _COUNT.size:
        raise ProtocolError("a block of jobs needs at least its count")
    (count,) = _COUNT.unpack_from(block)
    start = _COUNT.size + _WORD * (count + 1)
    if not 0 < count <= MAX_BLOCK_JOBS or start > len(block):
        raise ProtocolError(f"a block of {len(block)} bytes cannot hold {count} jobs")
    ends = _words(block[_COUNT.size : start]).tolist()
    if ends[0] != 0 or ends[-1] != len(block) - start or sorted(set(ends)) != ends:
        raise ProtocolError("the ends of a block's values are wrong, or a value is empty")
    return int(count)


def block_count(block: Buffer) -> int:
    """How many jobs a checked block holds."""
    return int(_COUNT.unpack_from(block)[0])


def cut(block: bytes, start: int, stop: int) -> tuple[bytes, bytes]:
    """The ends and the content of some jobs of a checked block, as a delivery carries them."""
    ends = block[_COUNT.size + _WORD * start : _COUNT.size + _WORD * (stop + 1)]
    first, last = _words(ends[:_WORD])[0], _words(ends[-_WORD:])[0]
    content = _COUNT.size + _WORD * (block_count(block) + 1)
    return ends, block[content + first : content + last]


def values_of(ends: Buffer, content: Buffer) -> list[bytes]:
    """The values in what `cut` gave; a slice each, nothing else is copied."""
    raw, words = bytes(content), _words(ends).tolist()
    first = words[0]
    return [raw[start - first : stop - first] for start, stop in pairwise(words)]


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


class PushReply(msgspec.Struct, array_like=True, frozen=True):
    """The jobs are numbered from ``base`` on, except where another job stands for one."""

    incarnation: int
    base: int
    count: int
    instead: dict[int, int] = {}


class Pop(msgspec.Struct, array_like=True, frozen=True):
    """Q_POP: lease up to ``limit`` jobs, waiting for the first."""

    queue: str
    limit: int = 1
    wait_ms: int = 0
    lease_ms: int = 0
    """0 for the queue's own."""


class Piece(msgspec.Struct, array_like=True, frozen=True):
    """Neighbouring jobs of a delivery; their ends and content follow the head."""

    first: int
    count: int
    priority: int
    pushed_ms: int


class Delivery(msgspec.Struct, array_like=True, frozen=True):
    """Head of the reply to Q_POP; NULL if there was nothing."""

    incarnation: int
    token: int
    lease_ms: int
    pieces: list[Piece]
    attempts: dict[int, int] = {}
    """Of the jobs that were delivered before."""
    keys: dict[int, str] = {}
    keeps_results: bool = True
    """Whether the queue keeps what acks bring along."""
    max_retries: int = -1
    """How often a job may fail before it is dead; -1 is not told."""


ACK, NACK, REJECT, RELEASE = range(4)


class Settled(msgspec.Struct, array_like=True, frozen=True):
    """What becomes of jobs of one lease."""

    token: int
    runs: list[int] | None = None
    """Flat ``[lo, hi, lo, hi, …]``; None for all the lease still holds."""
    results: dict[int, bytes] = {}


class Settle(msgspec.Struct, array_like=True, frozen=True):
    """Q_SETTLE: ack, nack, reject or release jobs.

    The reply is the list of ``[token, job]`` that were refused because the lease was lost;
    job -1 stands for the whole lease.
    """

    queue: str
    how: int
    leases: list[Settled]
    error: str = ""
    delay_ms: int = -1
    """For NACK: the wait before the retry; -1 for the queue's policy."""


class Renew(msgspec.Struct, array_like=True, frozen=True):
    """Q_RENEW: lengthen leases from now; the reply lists the tokens of those that were lost."""

    queue: str
    tokens: list[int]
    lease_ms: int = 0


class Progress(msgspec.Struct, array_like=True, frozen=True):
    """Q_PROGRESS: what a running job says of itself."""

    queue: str
    token: int
    job: int
    value: bytes


# -- admin requests -----------------------------------------------------------


class Named(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A queue and nothing else: Q_INFO, Q_PURGE, Q_CRON_LIST."""

    queue: str


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


class Page(Named, frozen=True):
    """Q_PEEK and Q_DLQ_LIST: some of many; ``state`` is for Q_PEEK alone."""

    limit: int = 100
    offset: int = 0
    state: str = "waiting"
    """``waiting``, ``scheduled`` or ``working``."""


class Jobs(Named, frozen=True):
    """Q_DLQ_REPLAY, Q_DLQ_DELETE: these jobs, or all for None. Q_CANCEL_JOB: these."""

    ids: list[str] | None = None


class JobRequest(Named, frozen=True):
    """Q_JOB: where a job is; with ``wait_ms``, once it has ended."""

    id: str
    wait_ms: int = 0


class CronRequest(Named, frozen=True):
    """Q_CRON_SET, and with the name alone Q_CRON_DELETE."""

    name: str
    cron: str = ""
    value: bytes = b""
    priority: int = 0
    key: str | None = None


T = TypeVar("T")

encode = pack
encode_head = pack_headed
split_head = split_headed


def decode(data: Buffer, type_: type[T]) -> T:
    """A message from outside; `InvalidInput` names the field that is wrong."""
    return unpack(type_, data, InvalidInput)


NO_JOBS = encode_head(Delivery(0, 0, 0, []))
"""The delivery that a NULL reply stands for."""


def pieces_of(delivery: Delivery, raw: memoryview) -> Iterator[tuple[Piece, list[bytes]]]:
    """Each piece of a delivery with its values."""
    at = 0
    for piece in delivery.pieces:
        middle = at + _WORD * (piece.count + 1)
        words = _words(raw[at:middle])
        end = middle + words[-1] - words[0]
        yield piece, values_of(raw[at:middle], raw[middle:end])
        at = end
