# Generated from ../_async/stream_subscription.py by tools/unasync.py; edit that file instead.
"""Records of a shared group through a handler: acked on return, nacked on an exception (F5)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from nexo.client._sync import runtime
from nexo.client._sync.stream_consumer import Consumer, Delivered, add_span
from nexo.errors import InvalidOption, NexoError
from nexo.protocol import stream as wire

log = logging.getLogger("nexo.client")

T = TypeVar("T")

_FLUSH_S = 0.05
"""Acks wait at most this long while the handler goes on."""


class Subscription(Generic[T]):
    """A handler that is called with the records of a group until `stop`."""

    def __init__(
        self, consumer: Consumer[T], handler: Callable[[Delivered[T]], Any], concurrency: int
    ) -> None:
        if concurrency < 1:
            raise InvalidOption(f"concurrency = {concurrency}: must be at least 1")
        self.handled = 0
        """Records the handler returned from."""
        self._consumer = consumer
        self._handler = handler
        self._workers = runtime.Workers(concurrency) if concurrency > 1 else None
        self._stopping = runtime.Event()
        self._unstarted: list[Delivered[T]] = []
        self._acks: dict[int, list[wire.Span]] = {}
        self._flushed_s = runtime.now_s()
        self._task: runtime.Task | None = None

    def start(self) -> None:
        """Join the group, so that a bad name or option is raised here, and begin."""
        self._consumer.join()
        self._task = runtime.spawn(self._run, name=f"nexo-{self._consumer.group}")

    def stop(self) -> None:
        """Return once the records being handled are; what was not begun goes to others."""
        self._stopping.set()
        self._consumer.interrupt()
        if self._task is not None and not self._task.is_current():
            self._task.join()

    def _run(self) -> None:
        for records in self._consumer.batches():
            self._handle_all(list(records))
            if self._stopping.is_set():
                break
        if self._workers is not None:
            self._workers.drain()
        self._flush()
        self._consumer.close(self._unstarted)

    def _handle_all(self, records: list[Delivered[T]]) -> None:
        # Somebody may have died of one of these: each is acked by itself, so that if it
        # happens again the broker knows which one it was (SPEC F3).
        suspect = any(record.deliveries > 1 for record in records)
        for at, record in enumerate(records):
            if self._stopping.is_set():
                self._unstarted = records[at:]
                return
            if self._workers is not None:
                self._workers.start(self._handle, record)
            else:
                self._handle(record)
                self._flush_if_due(0 if suspect else _FLUSH_S)
        if self._workers is None:
            self._flush()

    def _handle(self, record: Delivered[T]) -> None:
        spans: list[wire.Span] = [(record.partition, record.offset, record.offset + 1)]
        try:
            runtime.invoke(self._handler, record)
        except Exception as error:
            log.exception("the handler of group %r failed on %r", self._consumer.group, record)
            self._settle("nack", record.generation, spans, repr(error))
            return
        self.handled += 1
        if self._workers is not None:
            self._settle("ack", record.generation, spans)
        else:
            acks = self._acks.setdefault(record.generation, [])
            add_span(acks, record.partition, record.offset)

    def _flush_if_due(self, after_s: float) -> None:
        if runtime.now_s() - self._flushed_s >= after_s:
            self._flush()

    def _flush(self) -> None:
        """Ack what was handled since the last time, in one request."""
        acks, self._acks = self._acks, {}
        self._flushed_s = runtime.now_s()
        for generation, spans in acks.items():
            self._settle("ack", generation, spans)

    def _settle(
        self, verb: wire.Verb, generation: int, spans: list[wire.Span], reason: str = ""
    ) -> None:
        """A refusal is no failure here: a seek or a lost connection has the record redelivered."""
        try:
            self._consumer.send(verb, generation, spans, 0, reason)
        except NexoError as error:
            log.info("group %r: %s", self._consumer.group, error)
