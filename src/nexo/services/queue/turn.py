"""One turn of the loop: everything it changed is written once, and confirmed when safe.

Handlers change engines and leave replies here. At the end of the turn each touched queue
appends its records in one entry, waiting pops are served, and the replies go out once their
queue's durability is reached (SPEC D7).
"""

from __future__ import annotations

from collections.abc import Callable

from nexo.errors import DiskFull, NexoError, NotFound
from nexo.model import Persistence
from nexo.protocol.frames import Buffer
from nexo.services.queue.open_queue import OpenQueue
from nexo.services.service import Peer, Runtime

RETRY_MS = 1_000
"""How soon records are written again that the disk refused."""

Reply = tuple[Peer, int, tuple[Buffer, ...]]
"""A reply that promises durability; no parts mean OK."""


class Replies:
    """What a queue has to answer once its records are written."""

    __slots__ = ("standing", "undone")

    def __init__(self) -> None:
        self.standing: list[Reply] = []
        """To requests whose effect stands: on a full disk they wait until there is room."""
        self.undone: list[Reply] = []
        """To those that are undone if they cannot be written, and told so at once."""

    def all(self) -> list[Reply]:
        """Both kinds."""
        return self.standing + self.undone if self.undone else self.standing


class Turn:
    """Collects the work of a turn."""

    def __init__(self, runtime: Runtime, after: Callable[[OpenQueue, int], None]) -> None:
        """``after`` is called for each touched queue once its records are written."""
        self._runtime = runtime
        self._after = after
        self._touched: dict[OpenQueue, Replies] = {}
        self._unwritten: dict[OpenQueue, list[Reply]] = {}
        """Queues whose records the disk refused, and the replies that wait for them."""

    def touch(self, queue: OpenQueue) -> None:
        """Have a queue looked after at the end of the turn."""
        self._replies(queue)

    def confirm(self, queue: OpenQueue, peer: Peer, request_id: int, *parts: Buffer) -> None:
        """Reply once everything the queue did so far is as safe as it promises."""
        self._replies(queue).standing.append((peer, request_id, parts))

    def confirm_or_undo(
        self, queue: OpenQueue, peer: Peer, request_id: int, *parts: Buffer
    ) -> None:
        """As `confirm`, for a push that `OpenQueue.refuse_pushes` undoes."""
        self._replies(queue).undone.append((peer, request_id, parts))

    def _replies(self, queue: OpenQueue) -> Replies:
        if not self._touched:
            self._runtime.soon(self._end)
        replies = self._touched.get(queue)
        if replies is None:
            replies = self._touched[queue] = Replies()
        return replies

    def retry(self) -> None:
        """Try again to write what the disk refused."""
        for queue in self._unwritten:
            self.touch(queue)

    def forget(self, queue: OpenQueue) -> None:
        """A queue was deleted; nothing of it is written any more."""
        waiting = self._unwritten.pop(queue, [])
        waiting += self._touched.pop(queue, Replies()).all()
        _answer(waiting, NotFound("Queue not found"))

    def _end(self) -> None:
        touched, self._touched = self._touched, {}
        now_ms = self._runtime.clock.now_ms()
        for queue, replies in touched.items():
            error = self._write(queue, now_ms)
            if error is None:
                late = self._unwritten.pop(queue, []) if self._unwritten else []
                self._answer_when_safe(queue, late + replies.all())
            else:
                self._refused(queue, replies, error)
        for queue in touched:
            self._after(queue, now_ms)

    def _write(self, queue: OpenQueue, now_ms: int) -> NexoError | None:
        try:
            queue.write(now_ms)
        except NexoError as error:
            failure = error
        except OSError as error:
            failure = DiskFull(f"the disk refused a write: {error.strerror}")
        else:
            return None
        queue.refuse_pushes(failure)
        self._runtime.wake_at(now_ms + RETRY_MS)
        return failure

    def _refused(self, queue: OpenQueue, replies: Replies, error: NexoError) -> None:
        """The disk took nothing: what stands is answered later, unless there is no later."""
        waiting = self._unwritten.setdefault(queue, [])
        _answer(replies.undone, error)
        waiting += replies.standing
        if not isinstance(error, DiskFull):
            _answer(waiting, error)
            waiting.clear()

    def _answer_when_safe(self, queue: OpenQueue, replies: list[Reply]) -> None:
        # What nobody waits for, such as an expired lease, is synced with the next window.
        mode = queue.engine.options.persistence if replies else Persistence.FILE_ASYNC
        self._runtime.committed(mode, lambda error: _answer(replies, error))


def _answer(replies: list[Reply], error: NexoError | None) -> None:
    for peer, request_id, parts in replies:
        if error is not None:
            peer.fail(request_id, error)
        elif parts:
            peer.data(request_id, *parts)
        else:
            peer.ok(request_id)
