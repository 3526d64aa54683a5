"""Requests made while there is no connection."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from nexo.client._async.link.wire import ReplyFuture, Wire
from nexo.client.address import Address
from nexo.client.connecting import Reached
from nexo.errors import ConnectionLost, NexoError, PayloadTooLarge
from nexo.model import Buffer


@dataclass(slots=True, eq=False)
class HeldRequest:
    """A request that waits to be sent."""

    future: ReplyFuture
    op: int
    parts: tuple[Buffer, ...]
    timeout_s: float | None


class HeldRequests:
    """Requests sent in order once there is a connection; each waits only as long as allowed."""

    def __init__(self, address: Address, reached: Reached) -> None:
        self.reason = "no answer yet"
        """Why there is no connection, for the error of those who waited too long."""
        self._address = address
        self._reached = reached
        self._timers: dict[HeldRequest, asyncio.TimerHandle] = {}

    def add(self, request: HeldRequest) -> None:
        limit_s = self._address.patience_s(request.timeout_s, was_up=self._reached.yes)
        loop = request.future.get_loop()
        self._timers[request] = loop.call_later(limit_s, self._expire, request, limit_s)

    def _expire(self, request: HeldRequest, limit_s: float) -> None:
        del self._timers[request]
        if not request.future.done():
            text = (
                f"the request was not sent: no connection to {self._address} within"
                f" {limit_s:g} s: {self.reason}"
            )
            request.future.set_exception(ConnectionLost(text))

    def release(self, wire: Wire) -> None:
        """Send everything that is still wanted."""
        for request in self._take():
            try:
                wire.request(request.op, request.parts, request.timeout_s, request.future)
            except PayloadTooLarge as error:
                request.future.set_exception(error)

    def fail(self, error: NexoError) -> None:
        """Fail everything."""
        for request in self._take():
            request.future.set_exception(error)

    def _take(self) -> list[HeldRequest]:
        timers, self._timers = self._timers, {}
        for timer in timers.values():
            timer.cancel()
        return [request for request in timers if not request.future.done()]
