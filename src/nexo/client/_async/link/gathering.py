"""Gathers the single sends of one loop turn into few requests with one reply each.

Every link owns a `Gatherer`. A `GatheredSends` is one request being built; it is sent when it is
full, at the end of the turn, or before any other request of the link, so that requests run
in the order they were made (SPEC A3). Only the async client gathers: a blocked thread has
one request at a time.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Iterable
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from nexo.client._async.link.wire import ReplyFuture
from nexo.client.replies import Reply, room_bytes
from nexo.errors import Forbidden, InvalidInput, NexoError, ProtocolError
from nexo.model import Buffer
from nexo.protocol.hello import Welcome

log = logging.getLogger("nexo.client")

R = TypeVar("R")
S = TypeVar("S", bound="GatheredSends[Any]")

FULL = 256
"""A run of this many sends is sent at once: the server works on it while the next is built."""
_MOST_UNHEARD = 100
"""Failures kept for the next call; all of them are logged."""


class Sends(Protocol):
    """The part of a link that runs need."""

    gatherer: Gatherer

    @property
    def welcome(self) -> Welcome | None:
        """The server's last reply to HELLO."""

    def send(
        self,
        op: int,
        parts: tuple[Buffer, ...],
        timeout_s: float | None = None,
        future: ReplyFuture | None = None,
    ) -> ReplyFuture:
        """Send a request at once."""

    def call(self, op: int, *parts: Buffer, timeout_s: float | None = None) -> ReplyFuture:
        """Send a request and wait for its reply."""

    def flush(self) -> None:
        """Write the requests sent so far."""

    def let_end(self, work: asyncio.Future[Any]) -> None:
        """Let `close` wait for it."""


class Gatherer:
    """The unsent runs of one link."""

    __slots__ = ("_after", "_blocks", "_due", "_runs", "_unheard", "unsent")

    def __init__(self) -> None:
        self.unsent = False
        """Whether something has to leave before the next request."""
        self._runs: dict[GatheredSends[Any], None] = {}
        self._due = False
        self._blocks = 0
        self._after: list[tuple[int, tuple[Buffer, ...], float | None, ReplyFuture]] = []
        self._unheard: list[asyncio.Future[Any]] = []

    def begin(self, run: GatheredSends[Any]) -> None:
        """Add a run; raises the failure of an earlier send that nobody awaited."""
        if self._unheard and run.raises_later:
            self.raise_unheard()
        if not self._due:
            asyncio.get_running_loop().call_soon(self._end_of_turn)
            self._due = True
        self._runs[run] = None
        self.unsent = True

    def _end_of_turn(self) -> None:
        self._due = False
        self.flush()

    def leave(self, run: GatheredSends[Any]) -> None:
        """Send one run, which is full."""
        if self._runs.pop(run, run) is None:
            run.leaves()
            run.send()

    def flush(self) -> None:
        """Send every run, in order."""
        runs, self._runs = self._runs, {}
        self.unsent = self._blocks > 0
        for run in runs:
            run.leaves()
        for run in runs:
            run.send()

    # -- while a run cannot leave yet

    def block(self) -> None:
        """Hold back other requests until `unblock`: a run waits for an answer before it is sent."""
        self._blocks += 1
        self.unsent = True

    def unblock(self, link: Sends) -> None:
        """Send the requests held back, after the run they waited for."""
        self._blocks -= 1
        self.flush()
        after, self._after = ([], self._after) if self._blocks else (self._after, [])
        for op, parts, timeout_s, future in after:
            _send_later(link, op, parts, timeout_s, future)

    def call(
        self, link: Sends, op: int, parts: tuple[Buffer, ...], timeout_s: float | None
    ) -> ReplyFuture:
        """Send a request after everything gathered."""
        self.flush()
        if not self._blocks:
            return link.send(op, parts, timeout_s)
        future: ReplyFuture = asyncio.get_running_loop().create_future()
        self._after.append((op, parts, timeout_s, future))
        return future

    # -- failures

    def failed(self, receipts: list[asyncio.Future[Any]], error: BaseException) -> None:
        """Report failed sends. If nobody awaits them, the next send or `close` raises the error."""
        unheard = [each for each in receipts if not each._callbacks]
        if not unheard:
            return
        log.warning("requests that nobody awaits failed (%d): %s", len(unheard), error)
        room = _MOST_UNHEARD - len(self._unheard)
        self._unheard += unheard[:room]

    def raise_unheard(self, *, closing: bool = False) -> None:
        """Raise a failure that nobody has seen or can still await.

        When the client is ``closing``, receipts that are still held count too.
        """
        receipts, self._unheard = self._unheard, []
        unseen = [each for each in receipts if each._log_traceback]
        del receipts
        held = [_holders(each) > _HOLDERS_HERE and not closing for each in unseen]
        self._unheard = [each for each, kept in zip(unseen, held, strict=True) if kept]
        errors = [each.exception() for each, kept in zip(unseen, held, strict=True) if not kept]
        for error in errors:
            if error is not None:
                raise error


def _holders(receipt: object) -> int:
    return sys.getrefcount(receipt)


(_HOLDERS_HERE,) = [_holders(each) for each in [object()]]
"""The result of `_holders` for a receipt that only a list here holds."""


def _send_later(
    link: Sends, op: int, parts: tuple[Buffer, ...], timeout_s: float | None, future: ReplyFuture
) -> None:
    if future.done():
        return  # it was cancelled
    try:
        link.send(op, parts, timeout_s, future)
    except NexoError as error:
        future.set_exception(error)


class GatheredSends(Generic[R]):
    """Sends that share one request.

    Each has its own receipt, because cancelling one must not cancel the others.
    """

    __slots__ = ("_new_receipt", "link", "receipts", "rest", "room_bytes", "size_bytes")

    due_to_one: ClassVar[tuple[type[NexoError], ...]] = (InvalidInput,)
    """Errors that one send of many may cause, and that mean nothing was done: the request is
    sent again in halves, so that only the cause fails.
    """
    raises_later: ClassVar[bool] = True
    """Whether a failure that nobody awaits is raised by the next send."""

    def __init__(self, link: Sends, most_bytes: int) -> None:
        self.link = link
        self.room_bytes = room_bytes(link.welcome, most_bytes)
        self.size_bytes = 0
        self.receipts: list[asyncio.Future[R]] = []
        """One for each send, in their order."""
        self.rest: GatheredSends[R] | None = None
        """The other half of a rejected request; it is sent once this one has ended."""
        self._new_receipt = asyncio.get_running_loop().create_future

    # -- what each broker says

    def request(self) -> tuple[int, tuple[Buffer, ...]]:
        """Opcode and payload."""
        raise NotImplementedError

    def results(self, reply: Reply) -> Iterable[R | NexoError]:
        """The result of each send, in order."""
        raise NotImplementedError

    def part(self, which: slice) -> GatheredSends[R]:
        """Some of the sends, without their receipts."""
        raise NotImplementedError

    def leaves(self) -> None:
        """Close the run to further sends."""

    def sent(self, reply: ReplyFuture) -> None:
        """The run was sent; ``reply`` is pending."""

    # -- what all have in common

    def receipt(self) -> asyncio.Future[R]:
        """The result of the next send."""
        receipt = self._new_receipt()
        self.receipts.append(receipt)
        return receipt

    def send(self) -> None:
        """Send the request."""
        try:
            reply = self.link.send(*self.request())
        except Exception as error:  # otherwise callers would wait for ever
            self.refuse(error)
            return
        self.link.let_end(reply)
        self.sent(reply)
        reply.add_done_callback(self._answered)
        if len(self.receipts) >= FULL:
            self.link.flush()

    def _answered(self, reply: ReplyFuture) -> None:
        if reply.cancelled():
            self.fail(asyncio.CancelledError())
        elif (error := reply.exception()) is not None:
            self.refuse(error)
        else:
            try:
                results = list(self.results(reply.result()))
            except Exception as unreadable:  # as above
                self.fail(unreadable)
            else:
                self.settle(results)

    def settle(self, results: list[R | NexoError]) -> None:
        receipts = self.receipts
        if len(results) != len(receipts):
            text = f"the reply has {len(results)} results for {len(receipts)} requests"
            self.fail(ProtocolError(text))
            return
        for receipt, result in zip(receipts, results, strict=True):
            if isinstance(result, NexoError):
                self._refuse([receipt], result)
            elif not receipt.done():
                receipt.set_result(result)
        self._ended(None)

    def refuse(self, error: BaseException) -> None:
        """The request failed: split it, or fail every send."""
        if len(self.receipts) > 1 and isinstance(error, self.due_to_one):
            self.divide()
        else:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Fail every send."""
        self._refuse(self.receipts, error)
        self._ended(error)

    def divide(self) -> None:
        """Send it again in two halves, one after the other, which keeps the order."""
        middle = len(self.receipts) // 2
        first, second = self._half(slice(middle)), self._half(slice(middle, None))
        first.rest, second.rest, self.rest = second, self.rest, None
        first.send()

    def _half(self, which: slice) -> GatheredSends[R]:
        half = self.part(which)
        half.receipts += self.receipts[which]
        return half

    def _ended(self, error: BaseException | None) -> None:
        """Continue with the rest, unless it would fail for the same reason."""
        rest, self.rest = self.rest, None
        if rest is None:
            return
        if error is None or isinstance(error, InvalidInput | Forbidden):
            rest.send()
        else:
            rest.fail(error)

    def _refuse(self, receipts: list[asyncio.Future[R]], error: BaseException) -> None:
        waiting = [each for each in receipts if not each.done()]
        if not waiting:
            return
        if self.raises_later:
            self.link.gatherer.failed(waiting, error)
        for receipt in waiting:
            receipt.set_exception(error)
            if not self.raises_later:
                receipt.exception()  # mark as retrieved: not awaiting is fine


class RunSender(Generic[S]):
    """Gathers sends into one run after another."""

    def __init__(self, link: Sends) -> None:
        self.link = link
        self.run: S | None = None
        """The run that takes more sends; None after it was sent."""

    def start(self, run: S) -> S:
        """Send the run so far, and gather in ``run`` from now on."""
        if self.run is not None:
            self.link.gatherer.leave(self.run)
        self.link.gatherer.begin(run)
        self.run = run
        return run
