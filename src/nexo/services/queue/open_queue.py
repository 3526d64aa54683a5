"""One queue on disk: the engine, its journal, and the values of its jobs.

The journal's records are the ledger's history; the snapshot is the ledger itself. Unlike
other journals this one also holds data, the jobs' values, so its front is dropped only when
no job needs it: old jobs that keep too much of it are copied forward.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

from nexo.brokers.queue.batches import DEAD, DONE, OPEN
from nexo.brokers.queue.engine import QueueEngine
from nexo.brokers.queue.jobs import NewJobs
from nexo.brokers.queue.ledger import Ledger
from nexo.brokers.queue.places import Places
from nexo.brokers.queue.records import (
    Moved,
    Pushed,
    QueueCreated,
    QueueRecord,
    decode_record,
    encode_record,
)
from nexo.brokers.queue.snapshot import restore, snapshot
from nexo.errors import DiskFailed, NexoError, OutcomeUnknown
from nexo.model.blocks import pack_block
from nexo.model.queue import PushReply
from nexo.options.queue import QueueOptions
from nexo.services.queue.values import Budget, Values
from nexo.services.service import Runtime
from nexo.services.turn import REFUSALS
from nexo.storage.journal import Journal, Loss

TAIL_BYTES = 32 * 1024 * 1024
"""A snapshot is taken after this many bytes, or after twice its size if that is more."""
CLOSE_BYTES = 1024 * 1024
"""A tail this short is read in milliseconds, so stopping the server writes no snapshot."""
FEW_BATCHES = 64
"""Only queues with at most this many batches are searched for few remaining jobs."""
MOVE_JOBS = 10_000
"""Jobs copied forward at once, at most."""


class OpenQueue:
    """A queue that is open for work."""

    def __init__(self, name: str, folder: Path, runtime: Runtime, budget: Budget) -> None:
        self.name = name
        self.folder = folder
        self._runtime = runtime
        self._journal = Journal(runtime.files, folder, segment_bytes=runtime.settings.segment_bytes)
        self._budget = budget
        self._tail_bytes = 0
        self._snapshot_bytes = 0
        self._shrink_at = TAIL_BYTES
        self._finished = 0
        """Jobs that had finished when the log was last shrunk."""
        self.losses: list[Loss] = []
        """What the journal lost."""
        self.engine: QueueEngine
        self.values: Values
        self._asked: set[int] = set()
        """The first job of each push that a client asked for and that is not yet written."""
        self._refusal: NexoError | None = None
        """Why the last write failed, until one succeeds."""

    # -- opening --------------------------------------------------------------

    def create(self, rules: QueueOptions, incarnation: int, now_ms: int) -> None:
        self.engine = QueueEngine.create(rules, incarnation, now_ms)
        self.values = Values(self._journal, Places(), self._budget)
        self.write(now_ms)

    def load(self, now_ms: int) -> bool:
        """Recover; False if the queue was never fully written, and so never confirmed."""
        recovery = self._journal.recover()
        saved = recovery.snapshot
        ledger, places = restore(saved) if saved is not None else (Ledger(), Places())
        self.values = Values(self._journal, places, self._budget)

        def apply(offset: int, raw: bytes) -> None:
            self._tail_bytes += len(raw)
            record = decode_record(raw)
            ledger.apply(record)
            self._place(record, offset)

        recovery.replay(apply)
        self.losses = recovery.losses
        if self.losses:
            ledger.close_gaps()
        elif "/" in self._runtime.files.boot_id:  # pushes may have been lost with a machine
            ledger.skip_ahead(self._runtime.epoch)
        self.engine = QueueEngine(ledger, now_ms)
        if self.losses and not ledger.created_ms:
            self.engine.recreate(now_ms)
            with suppress(NexoError, OSError):  # otherwise written with the next change
                self.write(now_ms)
        return ledger.created_ms > 0

    def _place(self, record: QueueRecord, offset: int) -> None:
        if isinstance(record, Pushed):
            self.values.add(record, offset)
        elif isinstance(record, Moved):
            self.values.moved(record, offset)

    def next_ms(self, now_ms: int, *, someone_waits: bool) -> int | None:
        """When something here is due; ``someone_waits`` for a job."""
        due_ms = self.engine.next_ms(now_ms)
        if not someone_waits:
            return due_ms
        times = (due_ms, self.engine.dispatch.next_delivery_ms(now_ms))
        return min((time for time in times if time is not None), default=None)

    # -- writing --------------------------------------------------------------

    def push(self, jobs: NewJobs, now_ms: int) -> PushReply:
        """Add a client's jobs, unless earlier records still wait for disk space."""
        if self._refusal is not None:
            raise self._refusal.with_traceback(None)
        taken = self.engine.push(jobs, now_ms)
        # A job that replaced another must stay: the replaced one is gone. Where nothing was added,
        # the number is the next push's.
        if not jobs.replace and len(taken.instead) < taken.count:
            self._asked.add(taken.base)
        return taken

    def write(self, now_ms: int) -> None:
        """Append the engine's records, not yet durably.

        If that fails, the records are kept and written with the next ones: the log never has a gap.
        The caller then calls `undo`.
        """
        records = self.engine.outbox
        if not records:
            return
        raw = [encode_record(record) for record in records]
        twice = QueueCreated in map(type, records)
        try:
            offset = self._journal.append(raw, now_ms, twice=twice)
        except (NexoError, OSError):
            self.values.hold(record for record in records if isinstance(record, Pushed))
            raise
        self._tail_bytes += sum(map(len, raw))
        self.engine.outbox = []
        self._asked.clear()
        self._refusal = None
        self.values.hold(())
        for number, record in enumerate(records, offset):
            self._place(record, number)

    def write_pushes(self, now_ms: int) -> bool:
        """Make the values of all jobs readable.

        False if the disk has no room for them: they can be read, but their push may still be
        rejected.
        """
        pushes = (record for record in self.engine.outbox if isinstance(record, Pushed))
        try:
            if any(len(push.dropped or ()) < push.count for push in pushes):
                self.write(now_ms)
        except REFUSALS:
            return False
        return True

    def undo(self, error: NexoError) -> None:
        """Undo the pushes that could not be written; their clients get the error (SPEC I7)."""
        self._refusal = error
        if isinstance(error, OutcomeUnknown):  # of later pushes it is certain: nothing is tried
            self._refusal = DiskFailed(f"queue '{self.name}' cannot be written to: try again")
        for at, push in enumerate(self.engine.outbox):
            if isinstance(push, Pushed) and push.base in self._asked:
                self.engine.withdraw(push)
                nothing = pack_block([b""] * push.count)
                self.engine.outbox[at] = Pushed(
                    push.base, push.count, push.now_ms, nothing, dropped=list(range(push.count))
                )
        self._asked.clear()

    @property
    def is_refused(self) -> bool:
        """Whether records wait for disk space."""
        return self._refusal is not None

    @property
    def checkpoint_due(self) -> bool:
        """Whether enough was written since the last snapshot."""
        return self._tail_bytes >= max(TAIL_BYTES, 2 * self._snapshot_bytes)

    def postpone_checkpoint(self) -> None:
        """Postpone the next snapshot until as much again was written."""
        self._tail_bytes = 0
        self._shrink_at = self._journal.size_bytes + TAIL_BYTES

    @property
    def is_sparse(self) -> bool:
        """Whether a large log holds mostly finished jobs. Draining or purging a queue writes
        little, so the next snapshot would not be due for long.
        """
        if self._journal.size_bytes < self._shrink_at:
            return False
        batches = self.engine.ledger.batches
        if len(batches) > FEW_BATCHES:
            return False
        finished = self.engine.ledger.totals["finished"] - self._finished
        return finished > 8 * sum(batch.kept for batch in batches)

    def shrink(self, now_ms: int) -> None:
        """Drop the log of finished jobs; a single checkpoint would keep its last segment."""
        self.checkpoint(now_ms)
        self._journal.begin_segment()
        self.checkpoint(now_ms)
        self._finished = self.engine.ledger.totals["finished"]
        self._shrink_at = max(TAIL_BYTES, 2 * self._journal.size_bytes)

    def checkpoint(self, now_ms: int) -> None:
        """Save the state, and drop the front of the log."""
        self._move_old_values(now_ms)
        self.write(now_ms)
        ledger, places = self.engine.ledger, self.values.places
        unmoved = (job for job in self._live_jobs() if not places.is_moved(job))
        oldest = next(unmoved, ledger.next_job)
        places.trim(oldest, lambda job: ledger.batches.mark_of(job) == DONE)
        payload = snapshot(ledger, places)
        self._journal.checkpoint(payload, self._needed_from(oldest))
        self._tail_bytes, self._snapshot_bytes = 0, len(payload)

    def _needed_from(self, oldest: int) -> int:
        """The lowest offset that a job needs."""
        needed, places = self._journal.log.next_offset, self.values.places
        if oldest < self.engine.ledger.next_job:
            needed = min(needed, places.find(oldest).offset)
        return min(needed, places.lowest_moved(needed))

    def _live_jobs(self) -> Iterator[int]:
        """Every job that is open or dead, oldest first."""
        for batch in self.engine.ledger.batches:
            for job, mark in enumerate(batch.marks, batch.base):
                if mark in (OPEN, DEAD):
                    yield job

    def _move_old_values(self, now_ms: int) -> None:
        """Copy old jobs forward if they keep the older half of the log for few bytes."""
        log, places = self._journal.log, self.values.places
        if log.size_bytes < 2 * self._runtime.settings.segment_bytes:
            return
        half = (log.start_offset + log.next_offset) // 2
        jobs = [
            job for job in islice(self._live_jobs(), MOVE_JOBS) if places.find(job).offset < half
        ]
        found = [self.values.one(job) for job in jobs]
        each = sum(len(value) for value, *_ in found) // len(jobs) if jobs else 0
        if jobs and each * self._live_before(half) <= log.size_bytes // 8:
            values, pushed_ms, headers = zip(*found, strict=True)
            some = None if headers.count(None) == len(headers) else [*headers]
            moved = Moved(jobs, [*pushed_ms], pack_block(values), some)
            self.engine.outbox.append(moved)

    def _live_before(self, offset: int) -> int:
        """Roughly how many live jobs have their values before ``offset`` in the log."""
        ledger, places = self.engine.ledger, self.values.places
        end = places.first_job_from(offset, ledger.next_job)
        return sum(b.kept for b in ledger.batches if b.base < end) - places.moved_from(offset)

    # -- ending ---------------------------------------------------------------

    def close(self, now_ms: int) -> None:
        """Write what is left; also a snapshot if the next start would otherwise be slow."""
        self.write(now_ms)
        if self._tail_bytes >= CLOSE_BYTES:
            self.checkpoint(now_ms)
        self.values.forget()
        self._journal.finish()

    def abandon(self) -> None:
        """Release memory and files without writing."""
        self.values.forget()
        self._journal.abandon()
