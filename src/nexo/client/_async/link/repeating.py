"""Requests that are sent again while a server restarts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import TypeVar

from nexo.client._async import runtime
from nexo.client.address import Address
from nexo.client.connecting import RESTART_S
from nexo.client.replies import Reply
from nexo.errors import ClientClosed, ConnectionLost, NexoError
from nexo.model import Buffer

T = TypeVar("T")


async def insist(
    ask: Callable[[], Awaitable[T]],
    passing: tuple[type[NexoError], ...],
    timeout_s: float,
    stopped: Callable[[], bool] = lambda: False,
) -> T:
    """Call ``ask`` again after ``passing`` errors, for ``timeout_s`` or until ``stopped``.

    A closed client ends it.
    """
    until_s = runtime.now_s() + timeout_s
    while True:
        try:
            return await ask()
        except ClientClosed:
            raise
        except passing:
            if runtime.now_s() >= until_s or stopped():
                raise
        await runtime.sleep(RESTART_S)


class Repeating(ABC):
    """A link that sends a request again if it may, within the request's timeout (SPEC O3).

    What a stopping server did not run is sent again by `call` itself.
    """

    address: Address

    @abstractmethod
    def call(self, op: int, *parts: Buffer, timeout_s: float | None = None) -> Awaitable[Reply]:
        """Send a request once. A timeout of None is the address's default."""

    async def repeat(self, op: int, *parts: Buffer, timeout_s: float | None = None) -> Reply:
        """`call` for a request that may run twice: sent again if the connection ends before the
        reply.
        """
        return await self.again(lambda left_s: self.call(op, *parts, timeout_s=left_s), timeout_s)

    async def again(
        self,
        ask: Callable[[float], Awaitable[T]],
        timeout_s: float | None = None,
        passing: tuple[type[NexoError], ...] = (ConnectionLost,),
    ) -> T:
        """Call ``ask`` with the seconds that are left, again after each ``passing`` error."""
        limit_s = self.address.timeout_s if timeout_s is None else timeout_s
        left_s, until_s = limit_s, runtime.now_s() + limit_s
        while True:
            try:
                return await ask(left_s)
            except ClientClosed:
                raise
            except passing:
                left_s = until_s - runtime.now_s()
                if self.address.while_down == "fail" or left_s <= 0:
                    raise
            await runtime.sleep(RESTART_S)
