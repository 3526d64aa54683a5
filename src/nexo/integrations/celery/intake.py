"""Where consumers get messages: from a queue, as many as the prefetch count allows, or a mailbox.

A mailbox is a queue that lives with its consumer, on the consumer's side of the connection.
"""

from __future__ import annotations

import math
import threading
import time
from bisect import insort
from collections.abc import Callable
from typing import Any, NamedTuple

from nexo.client._sync.client import Client
from nexo.client._sync.link.poll import Poll
from nexo.client._sync.pubsub.subscription import Subscription
from nexo.client._sync.queue.gather import Settler
from nexo.client._sync.queue.jobs import Job, JobBatch
from nexo.client._sync.queue.leases import HeldLeases
from nexo.errors import NexoError, NotFound
from nexo.integrations.celery.messages import whole
from nexo.model import Broker
from nexo.protocol.ops import Op
from nexo.protocol.queue import PopJobs, encode

_WAIT_MS = 20_000
_UNLIMITED = 1_000
"""The number that a channel without a prefetch count takes at once."""
_STOP_S = 5.0
_GATHER_S = 0.002
"""How long a consumer that still has messages lets room gather before it asks for more."""

MAILBOX_MESSAGES = 10_000
"""The most that wait for a consumer that lives with its queue; the oldest are dropped."""


class Window:
    """How many messages a channel may hold unacknowledged, over all its consumers."""

    def __init__(self) -> None:
        self._limit = 0
        self._held = 0
        self._takers = 0
        self._change = threading.Condition()

    def resize(self, limit: int) -> None:
        """Set the prefetch count; 0 is no limit."""
        with self._change:
            self._limit = limit
            self._change.notify_all()

    def join(self) -> None:
        """One more consumer shares it."""
        self._takers += 1

    def leave(self) -> None:
        """A consumer has ended."""
        with self._change:
            self._takers -= 1
            self._change.notify_all()

    def share(self, stopped: Callable[[], bool]) -> int:
        """How many one consumer may ask for, waiting for room; 0 once it is ``stopped``."""
        with self._change:
            self._change.wait_for(lambda: stopped() or self._room() > 0)
            self._change.wait_for(lambda: stopped() or self._has_much_room(), _GATHER_S)
            return 0 if stopped() else max(1, self._room() // max(1, self._takers))

    def take(self) -> bool:
        """Hold one more; False if another consumer was quicker."""
        with self._change:
            if self._room() <= 0:
                return False
            self._held += 1
            return True

    def hold(self) -> None:
        """Hold one more, whatever the limit."""
        with self._change:
            self._held += 1

    def free(self) -> None:
        """One was settled."""
        with self._change:
            self._held -= 1
            if self._room() == 1 or self._has_much_room():
                self._change.notify_all()

    def _has_much_room(self) -> bool:
        return not self._held or self._room() * 2 >= self._limit

    def _room(self) -> int:
        return self._limit - self._held if self._limit else _UNLIMITED


class Intake:
    """One consumer's long polls, in a thread of its own.

    ``create`` makes a queue that is missing, ``deliver`` gets each job, ``ended`` the reason why
    there will be no more.
    """

    def __init__(
        self,
        client: Client,
        queue: str,
        window: Window,
        leases: HeldLeases,
        create: Callable[[], None],
        deliver: Callable[[Job[Any]], None],
        ended: Callable[[Exception], None],
    ) -> None:
        self._link = client.link(Broker.QUEUE).duplex()
        self._queue = queue
        self._settler = Settler(client.link(Broker.QUEUE), queue)
        self._window = window
        self._leases = leases
        self._create = create
        self._deliver = deliver
        self._ended = ended
        self._stopping = threading.Event()
        self._poll: Poll | None = None
        self._thread = threading.Thread(target=self._run, name=f"nexo-{queue}", daemon=True)

    def start(self) -> None:
        self._window.join()
        self._thread.start()

    def stop(self) -> None:
        """Take no more; what the last poll brings goes back."""
        self._stopping.set()
        self._window.leave()
        if (poll := self._poll) is not None:
            poll.cancel()
        if self._thread is not threading.current_thread():
            self._thread.join(_STOP_S)

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                if share := self._window.share(self._stopping.is_set):
                    self._round(share)
        except Exception as error:
            if not self._stopping.is_set():
                self._ended(error)

    def _round(self, share: int) -> None:
        request = PopJobs(self._queue, share, _WAIT_MS)
        timeout_s = _WAIT_MS / 1_000 + self._link.address.timeout_s
        self._poll = self._link.poll(Op.Q_POP, encode(request), timeout_s=timeout_s, impatient=True)
        if self._stopping.is_set():
            self._poll.cancel()
        try:
            reply = self._poll.reply()
        except NotFound:
            self._create()  # it was deleted while it had a consumer
            return
        finally:
            self._poll = None
        if reply:
            self._accept(JobBatch(self._link, self._settler, self._queue, None, memoryview(reply)))

    def _accept(self, batch: JobBatch[Any]) -> None:
        jobs = list(batch)
        if self._stopping.is_set():
            kept = 0
        else:
            kept = next((n for n, _ in enumerate(jobs) if not self._window.take()), len(jobs))
        if kept:
            self._leases.hold(batch, {job.number for job in jobs[:kept]})
        for job in jobs[:kept]:
            self._deliver(job)
        try:
            batch.release_some(jobs[kept:])
        except NexoError as error:
            self._ended(error)


class _WaitingMessage(NamedTuple):
    rank: int
    until_s: float
    """On the mailbox's clock."""
    message: dict[str, Any]


class Mailbox:
    """The messages for a consumer that lives with its queue, and who gets them."""

    def __init__(self, ttl_ms: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        """Each message waits for ``ttl_ms`` at most, if given, or for as long as it says."""
        self._waiting: list[_WaitingMessage] = []
        """The best priority first, then the oldest."""
        self._ttl_ms = ttl_ms
        self.auto_delete = False
        """Whether it ends with its consumer rather than with the connection."""
        self._clock = clock
        self.consumer: Callable[[dict[str, Any]], None] | None = None
        self.subscriptions: dict[tuple[str, str], Subscription[Any]] = {}
        self._lock = threading.Lock()

    def put(self, message: dict[str, Any]) -> None:
        """Give a message to the consumer, or keep it for one."""
        with self._lock:
            if self.consumer is None:
                self._keep(message)
            else:
                self.consumer(message)

    def attach(self, consumer: Callable[[dict[str, Any]], None] | None) -> None:
        """Give ``consumer`` what waits and what comes; with None, messages wait."""
        with self._lock:
            self.consumer = consumer
            while consumer is not None and (message := self._next()) is not None:
                consumer(message)

    def take(self) -> dict[str, Any] | None:
        with self._lock:
            return self._next()

    def clear(self) -> int:
        """Drop what waits; returns how many there were."""
        with self._lock:
            count = len(self._waiting)
            self._waiting.clear()
            return count

    def __len__(self) -> int:
        with self._lock:
            self._drop_expired()
            return len(self._waiting)

    def _keep(self, message: dict[str, Any]) -> None:
        properties = message["properties"]
        limits = [ttl for ttl in (whole(properties.get("expiration")), self._ttl_ms) if ttl]
        until_s = self._clock() + min(limits) / 1_000 if limits else math.inf
        waiting = _WaitingMessage(-whole(properties.get("priority")), until_s, message)
        insort(self._waiting, waiting, key=lambda each: each.rank)
        if len(self._waiting) > MAILBOX_MESSAGES:
            oldest = min(self._waiting, key=lambda each: each.message["properties"]["delivery_tag"])
            self._waiting.remove(oldest)

    def _next(self) -> dict[str, Any] | None:
        self._drop_expired()
        return self._waiting.pop(0).message if self._waiting else None

    def _drop_expired(self) -> None:
        now_s = self._clock()
        if any(each.until_s <= now_s for each in self._waiting):
            self._waiting = [each for each in self._waiting if each.until_s > now_s]

    def close(self) -> None:
        for subscription in self.subscriptions.values():
            subscription.close()
        self.subscriptions = {}
