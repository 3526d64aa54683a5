"""Values that clients of queues, the store and contracts return and accept; no I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from operator import itemgetter
from typing import Any, Generic, NamedTuple, TypedDict, TypeVar

import msgspec

from nexo import limits
from nexo.client.checks import pairs, positive_millis, text, whole
from nexo.client.replies import Reply, check_sizes, room_bytes
from nexo.client.stream_records import shown
from nexo.errors import DoesNotFit, InvalidInput, LeaseLost, ProtocolError
from nexo.model import Buffer
from nexo.model.blocks import id_text, id_texts
from nexo.model.queue import JobState
from nexo.options.described import to_stored
from nexo.options.queue import MAX_DELAY_MS, MAX_POP, QueueOptions
from nexo.options.units import Duration, millis
from nexo.protocol.hello import Welcome
from nexo.protocol.queue import PopJobs, PushReply, decode
from nexo.protocol.values import ValueType, decode_value, json_bytes

T = TypeVar("T")


class QueueSettings(TypedDict, total=False):
    """Options of a queue, as `create` and `update` take them."""

    visibility_timeout: Duration
    max_retries: int
    persistence: str
    backoff: str
    backoff_delay: Duration
    backoff_max: Duration
    backoff_jitter: float
    fair: bool
    key_concurrency: int
    rate: float
    rate_burst: int
    key_rate: float
    key_rate_burst: int
    result_ttl: Duration
    time_limit: Duration
    max_jobs: int


def wire_options(given: dict[str, Any]) -> dict[str, Any]:
    """Options by their stored names; `InvalidOption` for one that does not exist."""
    return to_stored(QueueOptions, given)


def pop_request(
    queue: str, batch: int, wait: Duration, lease: Duration | None, *, reports: bool = False
) -> PopJobs:
    """The request of a pop; subscriptions repeat it."""
    lease_ms = 0 if lease is None else positive_millis(lease, "lease", MAX_DELAY_MS)
    wait_ms = millis(wait, "wait", limits.QUEUE_WAIT_MS)
    return PopJobs(queue, whole(batch, "batch", 1, MAX_POP), wait_ms, lease_ms, reports)


CHUNK_BYTES = 4 * 1024 * 1024
CHUNK_JOBS = 100_000
"""`Queue.push_many` sends more than this in several requests."""
_JOB_BYTES = 8
"""The overhead of each job, and of each of its keys, in bytes."""

JobKeys = Sequence[str | None] | None


def chunks(
    raw: Sequence[bytes], keys: JobKeys, dedup_keys: JobKeys, welcome: Welcome | None,
    headers: Sequence[bytes | None] | None = None,
) -> list[tuple[int, int]]:  # fmt: skip
    """Cut jobs so that no request grows too large; `PayloadTooLarge` if one alone is."""
    most, count = room_bytes(welcome, CHUNK_BYTES), len(raw)
    sizes = _sizes(raw, keys, dedup_keys) if keys or dedup_keys or headers else None
    if sizes is not None and headers is not None:
        sizes = [
            size + _JOB_BYTES + len(each or b"") for size, each in zip(sizes, headers, strict=True)
        ]
    total = sum(map(len, raw)) + _JOB_BYTES * count if sizes is None else sum(sizes)
    if count <= CHUNK_JOBS and total <= most:
        return [(0, count)] if raw else []
    sizes = sizes or _sizes(raw)
    check_sizes(welcome, map(len, raw))
    cuts, start, taken = [], 0, 0
    for index, size in enumerate(sizes):
        if index > start and (taken + size > most or index - start >= CHUNK_JOBS):
            cuts.append((start, index))
            start, taken = index, 0
        taken += size
    return [*cuts, (start, count)]


def _sizes(raw: Sequence[bytes], *columns: JobKeys) -> list[int]:
    """About how many bytes each job takes in a request, with its keys."""
    sizes = [len(value) + _JOB_BYTES for value in raw]
    for column in columns:
        if column is not None:
            sizes = [
                size + _JOB_BYTES + (0 if key is None else len(text(key, "a key").encode()))
                for size, key in zip(sizes, column, strict=True)
            ]
    return sizes


_kind, _content = itemgetter(0), itemgetter(slice(1, None))


def decode_values(raw: Sequence[bytes], type_: type[Any] | None) -> list[Any]:
    """`decode_value` of many, with a fast path for bytes."""
    if type_ in (None, bytes) and set(map(_kind, raw)) == {ValueType.RAW}:
        return list(map(_content, raw))
    if type_ is None:
        return [decode_value(value) for value in raw]
    return [decode_value(value, type_) for value in raw]


def pushed_ids(replies: Iterable[PushReply]) -> list[str]:
    """The ids of pushed jobs, in order."""
    found: list[str] = []
    for reply in replies:
        ids = id_texts(reply.incarnation, reply.base, reply.count)
        for index, older in reply.instead.items():
            ids[index] = id_text(reply.incarnation, older)
        found += ids
    return found


def pushed_id(reply: PushReply, index: int) -> str:
    """The id of one job of a push; the older job's if a dedup key was taken."""
    return id_text(reply.incarnation, reply.instead.get(index, reply.base + index))


@dataclass(frozen=True, slots=True, repr=False)
class JobView(Generic[T]):
    """A job that waits, is scheduled, or is dead; its value is decoded when it is asked for."""

    id: str
    encoded: bytes
    """The value as it travels (`nexo.protocol.values`): its type byte, then the content."""
    type_: Any
    """The type that `value` is checked against and converted to, if any."""
    priority: int
    key: str | None
    pushed_ms: int
    due_ms: int
    attempts: int
    """Failed deliveries so far."""
    history: list[tuple[int, str]]
    """Time and reason of the last failures, oldest first."""
    headers: dict[str, Any]
    """The headers it was pushed with."""

    @property
    def value(self) -> T:
        """The pushed value; `InvalidInput` if it does not fit the queue's type."""
        return decode_value(self.encoded, self.type_)  # type: ignore[no-any-return]

    @property
    def payload(self) -> bytes:
        """The value's bytes, not decoded."""
        return self.encoded[1:]

    def __repr__(self) -> str:
        kind = type(self).__name__
        return f"<{kind} {self.id}, value {shown(self)}, {self.attempts} failed attempts>"


@dataclass(frozen=True, slots=True, repr=False)
class DeadJob(JobView[T]):
    """A dead letter (SPEC D5)."""

    cause: str
    """``nack``, ``rejected``, ``timeout``, or ``lost`` with the connection of its worker."""
    died_ms: int
    reason: str
    """Why it failed the last time: what `nack` or `reject` was given, or the handler's error."""


def write_headers(headers: Mapping[str, Any] | None) -> bytes | None:
    """Headers as a job carries them: a JSON object."""
    if not headers:
        return None
    return json_bytes(
        {text(name, "a header's name"): each for name, each in pairs(headers).items()}
    )


def read_headers(raw: bytes | None) -> dict[str, Any]:
    """A job's headers as it carries them."""
    return msgspec.json.decode(raw, type=dict[str, Any]) if raw else {}


def job_view(row: dict[str, Any], type_: type[Any] | None) -> JobView[Any]:
    """A row of a list."""
    fields = {name: value for name, value in row.items() if name != "value"}
    fields |= {"encoded": row["value"], "type_": type_}
    fields["headers"] = read_headers(row["headers"])
    fields["history"] = [(at_ms, reason) for at_ms, reason in row["history"]]
    return DeadJob(**fields) if "died_ms" in row else JobView(**fields)


def job_state(reply: Reply) -> JobState:
    """A reply to Q_JOB."""
    found = decode(reply or b"", JobState)
    progress, result = (
        None if raw is None else decode_value(raw) for raw in (found.progress, found.result)
    )
    return replace(found, progress=progress, result=result)


def check_refused(reply: Reply) -> None:
    """Raise `LeaseLost` if a settlement was rejected, even in part."""
    if reply:
        count = len(decode(reply, list[tuple[int, int]]))
        raise LeaseLost(f"{count} of the jobs were no longer held; they may run again elsewhere")


class RateDecision(NamedTuple):
    """The decision of a rate limiter."""

    allowed: bool
    remaining: float
    """How much could still be taken now."""
    retry_after: float
    """Seconds until it would be allowed; 0 if it was."""


def call_key(function: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> str:
    """The key that the result of a call is cached under: the function and its arguments."""
    name = f"cached:{function.__module__}.{function.__qualname__}"
    given = json_bytes([args, dict(sorted(named.items()))])
    return f"{name}:{blake2b(given, digest_size=16).hexdigest()}"


def taken(value: Buffer, type_: Any, done: str) -> Any:
    """Decode a value that the store no longer has; if it does not fit, the error carries it.

    ``done`` says in the error what was changed.
    """
    try:
        return decode_value(value, type_)
    except InvalidInput as error:
        raise DoesNotFit(f"{error}; {done}: see the error's value", value=_as_is(value)) from error


def all_taken(values: Sequence[Buffer], type_: Any, done: str) -> list[Any]:
    """`taken` of several."""
    try:
        return [decode_value(value, type_) for value in values]
    except InvalidInput as error:
        as_they_are = [_as_is(value) for value in values]
        raise DoesNotFit(f"{error}; {done}: see the error's value", value=as_they_are) from error


def _as_is(value: Buffer) -> Any:
    try:
        return decode_value(value)
    except ProtocolError:
        return bytes(value)[1:]


@dataclass(frozen=True, slots=True)
class ContractColumn:
    """A typed column, and the field of the values that it holds."""

    column: str
    type: str
    field: str


@dataclass(frozen=True, slots=True)
class ContractInfo:
    """How a stream's values are taken apart into columns of its table."""

    stream: str
    format: str
    """``json``, ``avro`` or ``protobuf``."""
    message: str
    """Protobuf: which message the values are."""
    schema_ids: tuple[int, ...]
    """Ids of a schema registry that values may begin with; empty if they begin with none."""
    permissive: bool
    """Whether a field that does not fit is null alone, and the record no dead letter."""
    additions: bool
    """Whether new fields become columns by themselves."""
    columns: tuple[ContractColumn, ...]
    dead_letters: int
    """Records whose value did not fit, so far."""


@dataclass(frozen=True, slots=True)
class BackfillResult:
    """The outcome of filling the columns of older records."""

    files: int = 0
    records: int = 0
