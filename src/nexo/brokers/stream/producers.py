"""Idempotent producers: recognises repeated batches, rejects gaps, fences old epochs (G3).

Each partition remembers the last batches of every producer. The state depends only on the
log's entry headers, so recovery rebuilds it by reading them again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from nexo.brokers.stream.groups.limits import MAX_NAME, check_length
from nexo.errors import Fenced, OutOfOrderSequence
from nexo.storage.header import Header

REMEMBERED = 5
"""Batches per producer and partition in which a repeat is recognised: the most in flight."""
MAX_PRODUCERS = 10_000
"""Per partition; the least recently active one is dropped first."""

MAX_NAMES = 100_000
"""Per broker; the one started longest ago is dropped first."""
NAME_MS = 7 * 86_400_000
"""A name not started for this long is dropped: its next start gets a new id and fences nobody."""

_LAST_EPOCH = 32_767
"""It has two bytes; the next start of the name gets a new id."""

ProducerState: TypeAlias = tuple[int, int, list[tuple[int, int, int]]]
"""``id, epoch, [(first sequence, end sequence, base offset)]``: as written to a checkpoint."""


class ProducerSession(NamedTuple):
    """The identity of an idempotent producer; a later epoch of the same id fences it."""

    producer: int
    epoch: int


class ProducerNames:
    """Named producers, in the order of their last start."""

    __slots__ = ("_by_name", "_limit", "next_id", "owners")

    def __init__(self, limit: int = MAX_NAMES) -> None:
        self._by_name: dict[str, tuple[int, int, int]] = {}
        self._limit = limit
        self.next_id = 1
        self.owners: dict[str, str] = {}
        """The user who was the first to start a name, for as long as the name is kept."""

    def __len__(self) -> int:
        return len(self._by_name)

    def next_session(self, name: str, now_ms: int) -> ProducerSession:
        """The session for a start: the next epoch of a name, or a new id."""
        check_length("a producer's name", name, MAX_NAME)
        self._expire(now_ms)
        producer, epoch, _ = self._by_name.get(name, (self.next_id, -1, 0))
        if epoch >= _LAST_EPOCH:
            return ProducerSession(self.next_id, 0)
        return ProducerSession(producer, epoch + 1)

    def current(self, name: str) -> ProducerSession | None:
        """The last session of a name."""
        found = self._by_name.get(name)
        return None if found is None else ProducerSession(*found[:2])

    def started(self, name: str, session: ProducerSession, now_ms: int, user: str = "") -> None:
        """Record that a producer started, now or before a restart."""
        self.next_id = max(self.next_id, session.producer + 1)
        if not name:
            return
        self._by_name.pop(name, None)
        self._by_name[name] = *session, now_ms
        if user:
            self.owners.setdefault(name, user)
        if len(self._by_name) > self._limit:
            self._forget(next(iter(self._by_name)))

    def _expire(self, now_ms: int) -> None:
        while self._by_name:
            oldest = next(iter(self._by_name))
            if self._by_name[oldest][2] + NAME_MS > now_ms:
                return
            self._forget(oldest)

    def _forget(self, name: str) -> None:
        del self._by_name[name]
        self.owners.pop(name, None)

    def state(self) -> dict[str, tuple[int, int, int]]:
        """By name: id, epoch and time of the last start, for a snapshot."""
        return dict(self._by_name)


class _Producer:
    __slots__ = ("batches", "epoch")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.batches: deque[tuple[int, int, int]] = deque(maxlen=REMEMBERED)


class Producers:
    """The producers of one partition."""

    __slots__ = ("_by_id", "_limit")

    def __init__(self, state: Iterable[ProducerState] = (), limit: int = MAX_PRODUCERS) -> None:
        self._limit = limit
        self._by_id: dict[int, _Producer] = {}
        for producer_id, epoch, batches in state:
            self._by_id[producer_id] = producer = _Producer(epoch)
            producer.batches.extend(batches)

    def check(self, header: Header) -> int | None:
        """The offset at which the batch is already stored, or None if it is new.

        Raises `Fenced` for an older epoch and `OutOfOrderSequence` for a gap.
        """
        producer = self._by_id.get(header.producer_id)
        if producer is not None and header.epoch < producer.epoch:
            raise Fenced(
                f"producer {header.producer_id} epoch {header.epoch} was replaced by epoch "
                f"{producer.epoch}: another producer with its name started"
            )
        if producer is None or header.epoch > producer.epoch:
            # Unknown here: it may start anywhere, because its earlier batches may be gone.
            if header.sequence < 0:
                raise OutOfOrderSequence(f"sequence {header.sequence} is negative: start at 0")
            return None
        for first, end, offset in producer.batches:
            if first == header.sequence and end == header.sequence + header.count:
                return offset
        expected = producer.batches[-1][1] if producer.batches else 0
        if header.sequence != expected:
            raise OutOfOrderSequence.after(header.producer_id, header.sequence, expected)
        return None

    def note(self, header: Header, offset: int) -> None:
        """Record a batch that was appended (or found in the log) at ``offset``."""
        producer = self._by_id.pop(header.producer_id, None)
        if producer is None or producer.epoch != header.epoch:
            producer = _Producer(header.epoch)
        producer.batches.append((header.sequence, header.sequence + header.count, offset))
        self._by_id[header.producer_id] = producer
        if len(self._by_id) > self._limit:
            del self._by_id[next(iter(self._by_id))]

    def state(self) -> list[ProducerState]:
        return [(key, p.epoch, list(p.batches)) for key, p in self._by_id.items()]
