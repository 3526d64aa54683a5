"""A loop that reads, handles, acknowledges and recovers (SPEC J5)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeAlias

from nexo.errors import ConnectionLost, InvalidOption, NexoError
from nexo.xstreams.broker import StreamBroker
from nexo.xstreams.dead_letters import DeadLetter
from nexo.xstreams.values import StreamMessage

log = logging.getLogger("nexo.xstreams")

Handler: TypeAlias = Callable[[StreamMessage], Any]

_RETRY_S = 1.0
"""The pause after the broker could not be asked."""


class StreamWorker:
    """One consumer of a group: messages whose handler returns are acknowledged.

    A message whose handler raises stays pending, and whichever worker of the group claims it
    after ``min_idle_ms`` tries again. After ``max_deliveries`` it goes to ``<stream>.dlq`` as a
    `DeadLetter`. ``min_idle_ms`` must be longer than a handler takes.

    ``run`` works until `stop`; ``start`` does so in a thread; ``with worker:`` does both.
    """

    def __init__(
        self,
        broker: StreamBroker,
        stream: str,
        group: str,
        consumer: str,
        handler: Handler,
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

        `stop` takes up to ``block_ms`` to be heard while the worker waits for messages.
        """
        if max_deliveries < 1:
            raise InvalidOption(f"max_deliveries = {max_deliveries}: must be at least 1")
        if max_per_s is not None and max_per_s <= 0:
            raise InvalidOption(f"max_per_s = {max_per_s}: must be above 0")
        self.broker, self.stream, self.group, self.consumer = broker, stream, group, consumer
        self.handler = handler
        self.dlq = f"{stream}.dlq"
        self.handled = self.failed = self.buried = 0
        """How many messages were acknowledged, failed, and went to the dead letters."""
        self._count, self._block_ms, self._min_idle_ms = count, block_ms, min_idle_ms
        self._max_deliveries = max_deliveries
        self._pause_s = 1 / max_per_s if max_per_s else 0.0
        self._start_at = start_at
        self._clock_s = clock_s
        self._next_s = self._next_claim_s = 0.0
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    # -- life

    def run(self) -> None:
        """Work until `stop` is called; a broker that cannot be asked is asked again."""
        while not self._stopping.is_set():
            try:
                self.broker.create_group(self.stream, self.group, self._start_at)
                while not self._stopping.is_set():
                    self.run_once()
            except ConnectionLost as error:
                log.warning("worker %s lost its broker: %s", self.consumer, error)
                self._stopping.wait(_RETRY_S)
            except NexoError:
                log.exception("worker %s cannot go on for now", self.consumer)
                self._stopping.wait(_RETRY_S)

    def start(self) -> None:
        """`run` in a thread of its own."""
        self._stopping.clear()
        self._thread = threading.Thread(target=self.run, name=f"worker-{self.consumer}")
        self._thread.start()

    def stop(self) -> None:
        """Finish the message at hand, leave the rest pending, and return when that is done."""
        self._stopping.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
            self._thread = None

    def __enter__(self) -> StreamWorker:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    # -- work

    def run_once(self) -> int:
        """Recover what is stale if it is time to, else read; returns how many were taken."""
        messages = self._stale() or self.broker.xreadgroup(
            self.group, self.consumer, self.stream, self._count, self._block_ms
        )
        for message in messages:
            if not self._may_go_on():
                break
            self._work_on(message)
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

    def _may_go_on(self) -> bool:
        """Keep to ``max_per_s``; False once the worker is to stop."""
        if self._stopping.wait(max(0.0, self._next_s - self._clock_s())):
            return False
        self._next_s = self._clock_s() + self._pause_s
        return True

    def _work_on(self, message: StreamMessage) -> None:
        if message.delivery_count > self._max_deliveries:
            self._bury(message, "")
            return
        try:
            self.handler(message)
        except Exception as error:
            self.failed += 1
            log.warning("%s of %s failed: %r", message.id, self.stream, error)
            if message.delivery_count >= self._max_deliveries:
                self._bury(message, repr(error))
            return
        self.broker.xack(self.stream, self.group, [message.id])
        self.handled += 1

    def _bury(self, message: StreamMessage, error: str) -> None:
        """To the dead letters. A crash in between leaves it pending: it may come here twice."""
        letter = DeadLetter(
            self.stream, self.group, message.id, message.data, message.delivery_count, error
        )
        self.broker.xadd(self.dlq, letter.encoded())
        self.broker.xack(self.stream, self.group, [message.id])
        self.buried += 1
