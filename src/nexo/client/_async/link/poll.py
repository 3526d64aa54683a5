"""Long polls, which can be cut short."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from nexo.client._async.link.wire import ReplyFuture, Wire
from nexo.client.replies import Reply, cancel_frame
from nexo.model import Broker


@dataclass(slots=True, eq=False)
class Poll:
    """A long poll in flight that can be cut short (`Op.CANCEL`)."""

    _current: Callable[[], Wire | None]
    _broker: Broker
    _future: ReplyFuture
    _on_late: Callable[[Reply], None] | None

    async def reply(self) -> Reply:
        """Wait for the reply; cancelling the waiting task also ends the poll on the server."""
        try:
            return await self._future
        except asyncio.CancelledError:
            self._end(self._on_late)
            raise

    def on_reply(self, call: Callable[[], None]) -> None:
        """Call ``call`` when the reply is here, or an error instead, which nobody need await."""

        def ended(future: ReplyFuture) -> None:
            if not future.cancelled():
                future.exception()
            call()

        self._future.add_done_callback(ended)

    def cancel(self) -> None:
        """Let the server answer now, with what it has: `reply` returns at once."""
        if not self._future.done() and not self._end(None):
            self._future.set_result(b"")

    def _end(self, on_late: Callable[[Reply], None] | None) -> bool:
        """Ask the server to answer now; False if the request was never sent."""
        wire = self._current()
        request_id = None if wire is None else self._id(wire)
        if wire is None or request_id is None:
            return False
        if on_late is not None:
            wire.late[request_id] = on_late
        wire.send(cancel_frame(self._broker, request_id))
        return True

    def _id(self, wire: Wire) -> int | None:
        """Looked up only when needed: polls are few, and most are never cut short."""
        waiting = wire.waiting.items()
        return next((key for key, sent in waiting if sent[0] is self._future), None)
