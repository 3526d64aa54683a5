"""Requests of one loop turn joined into one, with one reply for all. Only the async client
needs it: a blocked thread has one request at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from nexo.client._async.link.link import Link
from nexo.client.replies import Reply
from nexo.errors import InvalidInput, NexoError, ProtocolError
from nexo.protocol.frames import Buffer
from nexo.protocol.ops import Op

log = logging.getLogger("nexo.client")

R = TypeVar("R")

FULL = 256
"""So many leave without waiting for the end of the turn: the server works on them while the
others are still being made."""


class Gathering(Generic[R]):
    """Who waits for a common reply.

    Each has a future of its own, since giving up one must not give up the others. Awaiting
    it is not needed.
    """

    __slots__ = ("_divide", "_due_to_one", "_new_receipt", "_results", "receipts")

    def __init__(
        self,
        results: Callable[[Reply], Iterable[R | NexoError]],
        divide: Callable[[], None] | None = None,
        due_to_one: tuple[type[NexoError], ...] = (InvalidInput,),
    ) -> None:
        """``results`` finds in the reply what each is to get, in their order.

        ``divide`` sends a refused request again in smaller parts (`adopt`), so that only who
        is at fault hears of it. It is called for errors that are ``due_to_one`` of many and
        mean that nothing was done; without it, all hear of every error.
        """
        self._divide = divide
        self._due_to_one = due_to_one
        self._new_receipt = asyncio.get_running_loop().create_future
        self.receipts: list[asyncio.Future[R]] = []
        """All that were given out, in their order."""
        self._results = results

    def receipt(self) -> asyncio.Future[R]:
        """The result of the next request that joins."""
        receipt = self._new_receipt()
        self.receipts.append(receipt)
        return receipt

    def adopt(self, receipts: list[asyncio.Future[R]]) -> None:
        """Give the next requests that join receipts that were given out before."""
        self.receipts += receipts

    def send(self, link: Link, op: Op, *parts: Buffer) -> None:
        """Send the joined request."""
        try:
            reply = link.call(op, *parts)
        except Exception as error:  # whoever waits would wait for ever
            self.refuse(error)
            return
        link.let_end(reply)
        self.await_reply(reply)
        if len(self.receipts) >= FULL:
            link.flush()

    def await_reply(self, reply: asyncio.Future[Reply]) -> None:
        """Have ``reply``, once it is there, told to everyone who waits."""
        reply.add_done_callback(self._answered)

    def _answered(self, reply: asyncio.Future[Reply]) -> None:
        if reply.cancelled():
            self.fail(asyncio.CancelledError())
        elif (error := reply.exception()) is not None:
            self.refuse(error)
        else:
            try:
                self.settle(list(self._results(reply.result())))
            except Exception as unreadable:  # as above
                self.fail(unreadable)

    def settle(self, results: list[R | NexoError]) -> None:
        """Tell each what it is to get."""
        self.over()
        if len(results) != len(self.receipts):
            asked = len(self.receipts)
            self.fail(ProtocolError(f"the reply has {len(results)} results for {asked} requests"))
            return
        for receipt, result in zip(self.receipts, results, strict=True):
            if isinstance(result, NexoError):
                _refuse(receipt, result)
            elif not receipt.done():
                receipt.set_result(result)

    def over(self) -> None:
        """It need not be sent again: let go of what knows how, which knows this one too."""
        self._divide = None

    def refuse(self, error: BaseException) -> None:
        """The request failed: try again in parts if that can help, or else tell everyone."""
        many = len(self.receipts) > 1
        if many and self._divide is not None and isinstance(error, self._due_to_one):
            self._divide()
        else:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Tell everyone who waits; nobody may be waiting, so the log gets it too."""
        log.debug("%d requests failed: %s", len(self.receipts), error)
        self.over()
        for receipt in self.receipts:
            _refuse(receipt, error)


def _refuse(receipt: asyncio.Future[R], error: BaseException) -> None:
    if not receipt.done():
        receipt.set_exception(error)
        receipt.exception()  # seen: not awaiting is fine
