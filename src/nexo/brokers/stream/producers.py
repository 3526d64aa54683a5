"""Idempotent producers: a repeated batch is recognised, a gap refused, an old epoch fenced (G3).

Each partition remembers the last batches of every producer. The state is a function of the
log's entry headers, so recovery rebuilds it by reading them again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TypeAlias

from nexo.errors import Fenced, OutOfOrderSequence
from nexo.storage.header import Header

REMEMBERED = 5
"""Batches per producer and partition that a repeat is recognised among: what one may have in
flight at once."""
MAX_PRODUCERS = 10_000
"""Per partition; the one silent longest is forgotten first."""

ProducerState: TypeAlias = tuple[int, int, list[tuple[int, int, int]]]
"""``id, epoch, [(first sequence, end sequence, base offset)]``: as written to a checkpoint."""


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
        """The offset at which the batch already lies, or None if it is new.

        Raises `Fenced` for an older epoch and `OutOfOrderSequence` for a gap.
        """
        producer = self._by_id.get(header.producer_id)
        if producer is not None and header.epoch < producer.epoch:
            raise Fenced(
                f"producer {header.producer_id} epoch {header.epoch} was replaced by epoch "
                f"{producer.epoch}: another producer with its name started"
            )
        if producer is None or header.epoch > producer.epoch:
            # Not seen here: it may start anywhere, because its earlier batches may be gone.
            _check_positive(header)
            return None
        for first, end, offset in producer.batches:
            if first == header.sequence and end == header.sequence + header.count:
                return offset
        self._in_order(header, producer.batches[-1][1] if producer.batches else 0)
        return None

    @staticmethod
    def _in_order(header: Header, expected: int) -> None:
        if header.sequence != expected:
            raise OutOfOrderSequence(
                f"producer {header.producer_id} sent sequence {header.sequence} where {expected} "
                "is next: an earlier batch is missing"
            )

    def note(self, header: Header, offset: int) -> None:
        """A batch was appended (or found in the log) at ``offset``."""
        producer = self._by_id.pop(header.producer_id, None)
        if producer is None or producer.epoch != header.epoch:
            producer = _Producer(header.epoch)
        producer.batches.append((header.sequence, header.sequence + header.count, offset))
        self._by_id[header.producer_id] = producer
        if len(self._by_id) > self._limit:
            del self._by_id[next(iter(self._by_id))]

    def state(self) -> list[ProducerState]:
        """Everything, for a checkpoint."""
        return [(key, p.epoch, list(p.batches)) for key, p in self._by_id.items()]


def _check_positive(header: Header) -> None:
    if header.sequence < 0:
        raise OutOfOrderSequence(f"sequence {header.sequence} is negative: start at 0")
