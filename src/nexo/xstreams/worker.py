"""A worker loop: reads, handles, acknowledges and recovers (SPEC J5)."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Any, TypeAlias

from nexo.client.checks import failure_text
from nexo.errors import (
    ConnectionLost,
    InvalidInput,
    InvalidOption,
    NexoError,
    PayloadTooLarge,
    RequestTimeout,
)
from nexo.xstreams import checks
from nexo.xstreams.broker import StreamBroker
from nexo.xstreams.values import DeadLetter, StreamMessage

log = logging.getLogger("nexo.xstreams")

MessageHandler: TypeAlias = Callable[[StreamMessage], Any]

_RETRY_S = 1.0
"""The pause after the broker was unreachable."""
_KEEP_S = 60.0
"""Waiting messages are renewed at least this often."""
_KEEPS = 10
"""And this many times within ``min_idle_ms``."""
_ERROR_CHARS = 1_000
"""How much of a handler's error a dead letter keeps: it may quote the data."""


class StreamWorker:
    """One consumer of a group: messages whose handler returns are acknowledged.

    A message whose handler raises stays pending, and the worker of the group that claims it
    after ``min_idle_ms`` tries again. After ``max_deliveries`` it is moved to ``<stream>.dlq``
    as a `DeadLetter`. ``min_idle_ms`` must be longer, by a tenth, than a handler takes for one
    message; messages waiting after it are renewed, so that nobody claims them.

    ``run`` works until `close`; ``start`` does so in a thread; ``with worker:`` does both.
    """

    def __init__(
        self,
        broker: StreamBroker,
        stream: str,
        group: str,
        consumer: str,
        handler: MessageHandler,
        *,
        count: int = 10,
        block_ms: int = 500,
        min_idle_ms: int = 30_000,
        max_deliveries: int = 5,
        max_per_s: float | None = None,
        start_at: str = "0",
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """``max_per_s`` limits how many messages are handled; ``start_at`` is for a new group.

        `close` may take up to ``block_ms`` while the worker waits for messages.
        """
        checks.names(stream=stream, group=group, consumer=consumer)
        checks.names(**{"the dead letters' stream, <stream>.dlq,": f"{stream}.dlq"})
        checks.at_least(1, InvalidOption, count=count, max_deliveries=max_deliveries)
        checks.at_least(0, InvalidOption, block_ms=block_ms, min_idle_ms=min_idle_ms)
        _check_start(start_at)
        _check_rate(max_per_s)
        self.broker, self.stream, self.group, self.consumer = broker, stream, group, consumer
        self.handler = handler
        self.dlq = f"{stream}.dlq"
        self.handled = self.failed = self.dead_lettered = 0
        """How many messages were acknowledged, failed, and went to the dead letters."""
        self._count, self._block_ms, self._min_idle_ms = count, block_ms, min_idle_ms
        self._max_deliveries = max_deliveries
        self._pause_s = 1 / max_per_s if max_per_s else 0.0
        self._start_at = start_at
        self._clock_s = clock_s
        self._next_s = self._next_claim_s = self._kept_s = 0.0
        self._keep_s = min(min_idle_ms / 1000 / _KEEPS, _KEEP_S) or _KEEP_S
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    # -- life

    def run(self) -> None:
        """Work until `close` is called; retries while the broker is unreachable."""
        while not self._stopping.is_set():
            try:
                self.broker.create_group(self.stream, self.group, self._start_at)
                while not self._stopping.is_set():
                    self.run_once()
            except ConnectionLost as error:
                log.warning("worker %s lost its broker: %s", self.consumer, error)
                self._stopping.wait(_RETRY_S)
            except NexoError:
                log.exception("worker %s cannot continue for now", self.consumer)
                self._stopping.wait(_RETRY_S)

    def start(self) -> None:
        """`run` in a thread of its own."""
        self._stopping.clear()
        self._thread = threading.Thread(target=self.run, name=f"worker-{self.consumer}")
        self._thread.start()

    def close(self) -> None:
        """Finish the current message, leave the rest pending, and return when that is done."""
        self._stopping.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
            self._thread = None

    def __enter__(self) -> StreamWorker:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- work

    def run_once(self) -> int:
        """Recover stale messages if it is time, otherwise read; returns how many were taken."""
        messages = self._stale() or self.broker.xreadgroup(
            self.group, self.consumer, self.stream, self._count, self._block_ms
        )
        self._kept_s = self._clock_s()
        waiting = list(messages)
        while waiting and self._may_go_on(waiting):
            if waiting:
                self._settle(waiting.pop(0))
        return len(messages)

    def _stale(self) -> list[StreamMessage]:
        now_s = self._clock_s()
        if now_s < self._next_claim_s:
            return []
        found = self.broker.xautoclaim(
            self.stream, self.group, self.consumer, self._min_idle_ms, self._count
        )
        if not found:
            self._next_claim_s = now_s + self._min_idle_ms / 2000
        return found

    def _may_go_on(self, waiting: list[StreamMessage]) -> bool:
        """Respect ``max_per_s``; False once the worker must stop."""
        left_s = self._keep_s
        while left_s >= self._keep_s:
            left_s = max(0.0, self._next_s - self._clock_s())
            if self._stopping.wait(min(left_s, self._keep_s)):
                return False
            self._keep(waiting)
        self._next_s = self._clock_s() + self._pause_s
        return True

    def _keep(self, waiting: list[StreamMessage]) -> None:
        """Renew waiting messages, if it is time; drops those that others have claimed."""
        now_s = self._clock_s()
        if now_s - self._kept_s < self._keep_s:
            return
        ids = [message.id for message in waiting]
        held = set(self.broker.xrenew(self.stream, self.group, self.consumer, ids))
        self._kept_s = now_s
        waiting[:] = [message for message in waiting if message.id in held]

    def _settle(self, message: StreamMessage) -> None:
        """Handle a message; if the broker rejects the result, it stays pending."""
        try:
            self._work_on(message)
        except (ConnectionLost, RequestTimeout):
            raise
        except NexoError:
            log.exception("%s of %s stays pending", message.id, self.stream)

    def _work_on(self, message: StreamMessage) -> None:
        if message.delivery_count > self._max_deliveries:
            self._dead_letter(message, "")
            return
        try:
            self.handler(message)
        except Exception as error:
            self.failed += 1
            reason = failure_text(error)[:_ERROR_CHARS]
            log.warning("%s of %s failed: %s", message.id, self.stream, reason)
            if message.delivery_count >= self._max_deliveries:
                self._dead_letter(message, reason)
            return
        self.broker.xack(self.stream, self.group, [message.id])
        self.handled += 1

    def _dead_letter(self, message: StreamMessage, error: str) -> None:
        """Move it to the dead letters. A crash in between
        leaves it pending: it may be moved twice.
        """
        letter = DeadLetter(
            self.stream, self.group, message.id, message.data, message.delivery_count, error
        )
        try:
            self.broker.xadd(self.dlq, letter.encoded())
        except PayloadTooLarge:
            log.warning("%s of %s is dead-lettered without its data", message.id, self.stream)
            self.broker.xadd(self.dlq, letter.without_data().encoded())
        self.broker.xack(self.stream, self.group, [message.id])
        self.dead_lettered += 1


def _check_start(start_at: str) -> None:
    try:
        checks.group_start(start_at)
    except InvalidInput as error:
        raise InvalidOption(f"start_at: {error}") from None


def _check_rate(max_per_s: float | None) -> None:
    if max_per_s is not None and not (
        isinstance(max_per_s, int | float) and 0 < max_per_s < math.inf
    ):
        raise InvalidOption(f"max_per_s = {max_per_s!r}: must be a number above 0")
