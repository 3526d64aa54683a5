# Generated from _async/queue/jobs.py by tools/unasync.py; edit that file instead.
"""Jobs as a worker holds them: leased, with their operations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, Generic, TypeVar, overload

from nexo.client._sync.link.link import Duplex, Link
from nexo.client._sync.queue.gather import Settler
from nexo.client.checks import positive_millis, reason_text
from nexo.client.stream_records import shown
from nexo.client.views import decode_values, read_headers
from nexo.errors import LeaseLost, PayloadTooLarge
from nexo.model import Buffer
from nexo.model.blocks import id_text
from nexo.model.queue import ACK, NACK, REJECT, RELEASE, JobOutcome
from nexo.options.queue import MAX_DELAY_MS
from nexo.options.units import Duration, millis
from nexo.protocol.ops import Op
from nexo.protocol.queue import (
    Piece,
    PopReply,
    RenewLeases,
    ReportProgress,
    Settled,
    decode,
    encode,
    pieces_of,
    split_head,
)
from nexo.protocol.values import decode_value, encode_value

T = TypeVar("T")


_ROOM_BYTES = 1_024
"""The room of an ack besides its result."""


class JobBatch(Sequence["Job[T]"], Generic[T]):
    """The jobs of one pop. They share a lease; job objects are created on access."""

    def __init__(
        self,
        link: Link | Duplex,
        settler: Settler,
        queue: str,
        type_: type[T] | None,
        reply: Buffer,
    ) -> None:
        head, raw = split_head(reply)
        self.delivery = decode(head, PopReply)
        self.queue = queue
        self.link = link
        self.settler = settler
        self.type_ = type_
        pieces = list(pieces_of(self.delivery, raw))
        self._pieces = [piece for piece, _ in pieces]
        self._raw: list[bytes] = (
            pieces[0][1] if len(pieces) == 1 else list(chain(*(values for _, values in pieces)))
        )
        self._jobs: list[Job[T]] | None = None
        self.unsettled = len(self._raw)

    def __repr__(self) -> str:
        return f"<JobBatch of {len(self)} jobs of {self.queue!r}, {self.unsettled} unsettled>"

    def __len__(self) -> int:
        return len(self._raw)

    def __bool__(self) -> bool:
        return bool(self._raw)

    @overload
    def __getitem__(self, index: int) -> Job[T]: ...
    @overload
    def __getitem__(self, index: slice) -> list[Job[T]]: ...
    def __getitem__(self, index: int | slice) -> Job[T] | list[Job[T]]:
        return self._made()[index]

    def __iter__(self) -> Iterator[Job[T]]:
        return iter(self._made())

    def _made(self) -> list[Job[T]]:
        if self._jobs is None:
            numbered = (
                (piece, number)
                for piece in self._pieces
                for number in range(piece.first, piece.first + piece.count)
            )
            self._jobs = [
                Job(self, piece, number, raw)
                for (piece, number), raw in zip(numbered, self._raw, strict=True)
            ]
        return self._jobs

    def values(self) -> list[T]:
        return decode_values(self._raw, self.type_)

    def decoded(self, raw: bytes) -> T:
        """A value of this queue's type."""
        value: T = decode_value(raw, self.type_)
        return value

    def ack(self) -> None:
        """Finish all jobs that are not settled yet, with one request."""
        self._settle_rest(ACK)

    def nack(self, reason: object = "", *, delay: Duration | None = None) -> None:
        """Fail all jobs that are not settled yet: each is retried or dies."""
        self._settle_rest(NACK, reason_text(reason), _retry_ms(delay))

    def release(self) -> None:
        """Return all unsettled jobs, without counting an attempt."""
        self._settle_rest(RELEASE)

    def release_some(self, jobs: Sequence[Job[T]]) -> None:
        """Return some jobs with one request; settled ones are skipped."""
        open_jobs = [job for job in jobs if not job.settled]
        if not open_jobs:
            return
        runs = [edge for job in open_jobs for edge in (job.number, job.number + 1)]
        self._settle(open_jobs, RELEASE, runs)

    def _settle_rest(self, how: JobOutcome, error: str = "", delay_ms: int = -1) -> None:
        if self.unsettled:
            made = self._jobs
            open_jobs = None if made is None else [job for job in made if not job.settled]
            self._settle(open_jobs, how, None, error, delay_ms)

    def _settle(
        self, jobs: list[Job[T]] | None, how: JobOutcome, runs: list[int] | None, error: str = "",
        delay_ms: int = -1,
    ) -> None:  # fmt: skip
        """Settle jobs; None is all, where no single job was accessed: none has to be created."""
        if jobs is None:
            self.unsettled = 0
        for job in jobs or ():
            job.settling()
        try:
            settled = Settled(self.delivery.token, runs)
            self.settler.settle(how, [settled], error, delay_ms)
        except LeaseLost:
            raise
        except BaseException:
            if jobs is None:
                self.unsettled = len(self._raw)
            for job in jobs or ():
                job.reopen()
            raise

    def extend(self, by: Duration | None = None) -> None:
        """Extend the lease from now, by default by the queue's
        visibility timeout; see `Job.extend`.
        """
        lease_ms = 0 if by is None else positive_millis(by, "extend", MAX_DELAY_MS)
        request = RenewLeases(self.queue, [self.delivery.token], lease_ms)
        reply = self.link.call(Op.Q_RENEW, encode(request))
        if decode(reply or b"\x90", list[int]):
            raise LeaseLost("the lease ended; the jobs may run again elsewhere")


class Job(Generic[T]):
    """A leased job. Ack, nack, reject or release it once, before its lease ends."""

    __slots__ = ("_batch", "_piece", "_raw", "_result", "number", "settled")

    def __init__(self, batch: JobBatch[T], piece: Piece, number: int, raw: bytes) -> None:
        self._batch = batch
        self._piece = piece
        self._raw = raw
        self._result: bytes | None = None
        self.number = number
        self.settled = False

    def __repr__(self) -> str:
        return (
            f"<Job {self.id} of {self._batch.queue!r}, attempt {self.attempt}, value {shown(self)}>"
        )

    @property
    def id(self) -> str:
        return id_text(self._batch.delivery.incarnation, self.number)

    @property
    def value(self) -> T:
        """The pushed value; `InvalidInput` if it does not fit the queue's type."""
        return self._batch.decoded(self._raw)

    @property
    def payload(self) -> bytes:
        """The value's bytes, not decoded."""
        return self._raw[1:]

    @property
    def encoded(self) -> bytes:
        """The encoded value (`nexo.protocol.values`): its type byte, then the content."""
        return self._raw

    @property
    def attempt(self) -> int:
        """The number of this delivery, from 1."""
        return self._batch.delivery.attempts.get(self.number, 1)

    @property
    def redelivered(self) -> bool:
        """Whether it was delivered before: it failed, or its worker gave it back."""
        return self.attempt > 1 or self.number in self._batch.delivery.returned

    @property
    def key(self) -> str | None:
        """The key it was pushed with."""
        return self._batch.delivery.keys.get(self.number)

    @property
    def headers(self) -> dict[str, Any]:
        """The headers it was pushed with."""
        return read_headers(self._batch.delivery.headers.get(self.number))

    @property
    def priority(self) -> int:
        """0 to 255."""
        return self._piece.priority

    @property
    def pushed_ms(self) -> int:
        """When it was pushed, in milliseconds since the epoch."""
        return self._piece.pushed_ms

    def result(self, value: object) -> None:
        """Set what the ack will store as the job's result, if the queue keeps results."""
        raw, welcome = encode_value(value), self._batch.link.welcome
        if welcome is not None and len(raw) + _ROOM_BYTES > welcome.max_payload_bytes:
            raise PayloadTooLarge(
                f"a result of {len(raw)} bytes is too large: the server takes requests of at "
                f"most {welcome.max_payload_bytes} bytes"
            )
        self._result = raw

    def ack(self) -> bool:
        """Finish the job; true once that is durable. Acks of one loop turn are sent together.

        Raises `LeaseLost` if the lease has ended: the job may run again elsewhere. After any other
        error the job is still held, and can be settled again.
        """
        self.settling()
        settler = self._batch.settler
        return settler.ack(self._batch.delivery.token, self.number, self._result, self)

    def post_ack(self) -> None:
        """`ack` without waiting; a rejection is logged."""
        self.settling()
        self._batch.settler.post_ack(self._batch.delivery.token, self.number, self._result, self)

    def nack(self, reason: object = "", *, delay: Duration | None = None) -> None:
        """Report a failure: the job is retried after the
        queue's back-off, or ``delay``, or dies.
        """
        self._settle(NACK, reason_text(reason), _retry_ms(delay))

    def reject(self, reason: object = "") -> None:
        """Report that the job can never succeed: it becomes a dead letter at once."""
        self._settle(REJECT, reason_text(reason))

    def release(self) -> None:
        """Return the job unworked, without counting an attempt."""
        self._settle(RELEASE)

    def extend(self, by: Duration | None = None) -> None:
        """Extend the lease from now; `LeaseLost` if it has ended.

        It is the lease of the whole pop: its other jobs gain the same time.
        """
        self._batch.extend(by)

    def progress(self, value: object) -> None:
        """Report the job's progress; ``queue.job(id)`` shows it."""
        request = ReportProgress(
            self._batch.queue, self._batch.delivery.token, self.number, encode_value(value)
        )
        self._batch.link.call(Op.Q_PROGRESS, encode(request))

    def _settle(self, how: JobOutcome, error: str = "", delay_ms: int = -1) -> None:
        runs = [self.number, self.number + 1]
        self._batch._settle([self], how, runs, error, delay_ms)

    # -- for what settles it

    def settling(self) -> None:
        """Start a settlement; a second one is rejected."""
        if self.settled:
            raise LeaseLost("the job is already settled")
        self.settled = True
        self._batch.unsettled -= 1

    def reopen(self) -> None:
        """The settlement failed: another may be tried."""
        if self.settled:
            self.settled = False
            self._batch.unsettled += 1


def _retry_ms(delay: Duration | None) -> int:
    return -1 if delay is None else millis(delay, "delay", MAX_DELAY_MS)
