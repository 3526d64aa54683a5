"""Messages as jobs: delays are the broker's, dead letters are the queue's own."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Unpack
from uuid import uuid4

from dramatiq import Broker, Consumer, Message, MessageProxy, Middleware
from dramatiq.errors import ConnectionClosed, QueueJoinTimeout, QueueNotFound

from nexo.client._sync.client import Client
from nexo.client._sync.queue.jobs import Job
from nexo.client._sync.queue.leases import HeldLeases
from nexo.client._sync.queue.queue import Queue
from nexo.client.address import ConnectOptions
from nexo.client.views import QueueSettings
from nexo.errors import AlreadyExists, ConnectionLost, RequestTimeout, Unavailable
from nexo.integrations.jobs import MAX_RETRIES, HeldJob, Settlement, Settlements, text_if_utf8
from nexo.model import Broker as NexoPart
from nexo.model.names import name_of
from nexo.model.queue import ACK, REJECT, RELEASE, JobOutcome

_JOIN_S = 0.05


class DramatiqBroker(Broker):
    """Sends messages to queues, and takes them from there.

    A message's ``broker_priority`` (0 to 255, highest first) is the job's. ``queue_options`` are
    those of queues created here; one that exists keeps its own.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        middleware: list[Middleware] | None = None,
        prefix: str = "",
        queue_options: QueueSettings | None = None,
        **client_options: Unpack[ConnectOptions],
    ) -> None:
        super().__init__(middleware)
        self.actor_options.add("broker_priority")
        self.client = Client(url, **client_options)
        self._prefix = prefix
        self._queue_options: QueueSettings = {"max_retries": MAX_RETRIES, **(queue_options or {})}
        self._created: set[str] = set()
        link = self.client.link(NexoPart.QUEUE)
        self._leases = HeldLeases(link, "nexo-leases")
        self._settlements = Settlements(link, self._leases)

    def close(self) -> None:
        """Disconnect; what was not acknowledged runs elsewhere."""
        self._settlements.close()
        self._leases.close()
        self.client.close()

    def declare_queue(self, queue_name: str) -> None:
        """Note a queue; its first use creates it."""
        if queue_name not in self.queues:
            self.emit_before("declare_queue", queue_name)
            self.queues[queue_name] = None
            self.emit_after("declare_queue", queue_name)

    def enqueue(self, message: Message[Any], *, delay: int | None = None) -> Message[Any]:
        """Store a message, to be delivered after ``delay`` milliseconds."""
        self.emit_before("enqueue", message, delay)
        with _dramatiq_errors():
            self._push(message, (delay or 0) / 1_000)
        self.emit_after("enqueue", message, delay)
        return message

    def _push(self, message: Message[Any], delay_s: float) -> None:
        queue, tag = self._queue(message.queue_name), uuid4().hex
        for last in (False, True):
            try:
                queue.push(
                    text_if_utf8(message.encode()),
                    priority=int(message.options.get("broker_priority") or 0),
                    delay=delay_s,
                    dedup_key=tag,  # so that the second try stores nothing if the first did
                    headers={"task": message.actor_name, "id": message.message_id},
                )
                return
            except ConnectionLost:
                if last:
                    raise

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 30_000) -> Consumer:
        if queue_name not in self.queues:
            raise QueueNotFound(queue_name)
        with _dramatiq_errors():
            queue = self._queue(queue_name)
        return _Consumer(queue, prefetch, timeout, self._leases, self._settlements)

    def flush(self, queue_name: str) -> None:
        if queue_name not in self.queues:
            raise QueueNotFound(queue_name)
        with _dramatiq_errors():
            self._queue(queue_name).purge()

    def flush_all(self) -> None:
        """Drop what waits in every queue declared here."""
        for queue_name in self.queues:
            self.flush(queue_name)

    def join(self, queue_name: str, *, timeout: int | None = None) -> None:
        """Wait until a queue is empty and nobody works on it; for tests."""
        deadline_s = None if timeout is None else time.monotonic() + timeout / 1_000
        queue = self._queue(queue_name)
        while (info := queue.info()).waiting or info.scheduled or info.working:
            if deadline_s is not None and time.monotonic() >= deadline_s:
                raise QueueJoinTimeout(queue_name)
            time.sleep(_JOIN_S)

    def _queue(self, queue_name: str) -> Queue[Any]:
        queue = self.client.queue(name_of(self._prefix + queue_name))
        if queue_name not in self._created:
            if not queue.exists():
                with suppress(AlreadyExists):  # another client was quicker
                    queue.create(**self._queue_options)
            self._created.add(queue_name)
        return queue


class _HeldMessage(MessageProxy):
    """A message whose job is held."""

    def __init__(self, message: Message[Any], place: HeldJob) -> None:
        super().__init__(message)
        self.place = place


class _Consumer(Consumer):
    """Takes up to ``prefetch`` messages ahead, and keeps their leases."""

    def __init__(
        self, queue: Queue[Any], prefetch: int, timeout_ms: int, leases: HeldLeases,
        settlements: Settlements,
    ) -> None:  # fmt: skip
        self._queue = queue
        self._prefetch = max(1, prefetch)
        self._timeout_s = timeout_ms / 1_000
        self._leases = leases
        self._settlements = settlements
        self._fetched: deque[Job[Any]] = deque()
        self._held = 0
        self._change = threading.Condition()

    def __next__(self) -> MessageProxy | None:
        if not self._fetched and not self._fetch():
            return None
        job = self._fetched.popleft()
        return _HeldMessage(Message.decode(job.payload), HeldJob.of(job))

    def _fetch(self) -> bool:
        with self._change:
            self._change.wait_for(lambda: self._held < self._prefetch, self._timeout_s)
            room = self._prefetch - self._held
        if room <= 0:
            return False
        with _dramatiq_errors():
            batch = self._queue.pop(room, wait=self._timeout_s)
        if batch:
            self._leases.hold(batch, {job.number for job in batch})
            with self._change:
                self._held += len(batch)
            self._fetched.extend(batch)
        return bool(batch)

    def ack(self, message: MessageProxy) -> None:
        self._settle(message, ACK)

    def nack(self, message: MessageProxy) -> None:
        """Move a message to the dead letters."""
        self._settle(message, REJECT)

    def requeue(self, messages: Iterable[MessageProxy]) -> None:
        """Give messages back unprocessed."""
        for message in messages:
            self._settle(message, RELEASE)

    def close(self) -> None:
        """Give back what was fetched and not handed out."""
        while self._fetched:
            self._release(HeldJob.of(self._fetched.popleft()), RELEASE)
        self._settlements.flush()

    def _settle(self, message: MessageProxy, how: JobOutcome) -> None:
        assert isinstance(message, _HeldMessage), "another consumer's message"
        self._release(message.place, how)

    def _release(self, place: HeldJob, how: JobOutcome) -> None:
        error = "rejected by its consumer" if how == REJECT else ""
        self._settlements.add(Settlement(place, how, error))
        with self._change:
            self._held -= 1
            self._change.notify_all()


@contextmanager
def _dramatiq_errors() -> Iterator[None]:
    """Failures of connections as dramatiq knows them: its workers connect again."""
    try:
        yield
    except (ConnectionLost, RequestTimeout, Unavailable) as error:
        raise ConnectionClosed(str(error)) from error
