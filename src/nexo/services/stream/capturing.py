"""Change events, written after the changes they describe (SPEC I6).

A failed capture is retried with the next one and never fails a publish.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable

from nexo.brokers.stream import cdc
from nexo.brokers.stream.cdc import Capture
from nexo.brokers.stream.engine import StreamEngine
from nexo.brokers.stream.publishing import Placed
from nexo.brokers.stream.records import JournalRecord
from nexo.brokers.stream.registry import OpenStream
from nexo.errors import NexoError
from nexo.model import Clock

log = logging.getLogger("nexo.stream")


class Capturing:
    """Follows streams and the journal; ``show`` exposes the events written to readers."""

    def __init__(
        self, engine: StreamEngine, clock: Clock, show: Callable[[OpenStream, list[Placed]], None]
    ) -> None:
        self.grown: dict[int, OpenStream] = {}
        """Streams in which something became visible."""
        self.is_new = cdc.NAME not in engine.streams
        """Whether nothing was captured before."""
        self._clock = clock
        self._show = show
        self.capture = Capture(engine, clock.now_ms())
        self._records: deque[tuple[int, JournalRecord]] = deque()

    def journalled(self, records: Iterable[tuple[int, JournalRecord]]) -> None:
        """Write events for commits; each record comes with its offset in the journal."""
        self._records.extend(records)
        try:
            while self._records:
                self.capture.journalled(*self._records[0], self._clock.now_ms())
                self._records.popleft()
        except NexoError:
            log.exception("commits could not be captured; retrying with the next ones")
        self._show_new()

    def follow(self) -> None:
        """Write events for records that became visible."""
        grown, self.grown = self.grown, {}
        try:
            for stream in grown.values():
                self.capture.follow(stream, self._clock.now_ms())
        except NexoError:
            log.exception("changes could not be captured; retrying with the next ones")
        self._show_new()

    def _show_new(self) -> None:
        stream = self.capture.stream
        partition = stream.partition(0)
        new = partition.next_offset - partition.unsynced
        if new:
            self._show(stream, [Placed(0, partition.unsynced, new, True)])
