"""Locks, semaphores and rate limits on the store, shared by all its clients (SPEC O1)."""

from __future__ import annotations

import logging
import math
import secrets
from typing import Any, Literal, TypeAlias

from nexo.client._async import runtime
from nexo.client._async.handling import RENEWALS_PER_LEASE
from nexo.client._async.link.link import Link
from nexo.client._async.store.requests import ask
from nexo.client.checks import positive_millis, seconds, whole
from nexo.client.replies import Reply
from nexo.client.views import RateDecision
from nexo.errors import Conflict, InvalidOption, LeaseLost, NexoError, RequestTimeout
from nexo.model.store import LeaseAnswer, RateAnswer
from nexo.options.units import Duration, millis
from nexo.protocol import store as wire
from nexo.protocol.messages import pack
from nexo.protocol.ops import Op

log = logging.getLogger("nexo.client")

RateKind: TypeAlias = Literal["bucket", "window"]

_LONGEST_WAIT_S = 20.0
"""One request waits at most this long; then the next one is sent."""
_MAX_HOLDERS = 10_000
_MAX_COUNT = 2**53


class Lock:
    """One of ``limit`` places under a name, held by a lease that is renewed while it is used.

    ``async with store.lock("report") as lock`` waits for it and releases it. If its holder
    dies, others get it after ``ttl``. ``lock.number`` grows with every holder: send it to what
    the lock protects, so that a holder that was paused for too long is rejected there. A lock
    object is held once at a time.
    """

    def __init__(
        self, link: Link, name: str, limit: int, ttl: Duration, timeout: Duration | None
    ) -> None:
        self.name = name
        self.number = 0
        """The fencing number of the current lease, or of the last one."""
        self._link = link
        self._limit = whole(limit, "limit", 1, _MAX_HOLDERS)
        self._ttl_ms = positive_millis(ttl, "ttl")
        self._lease_s = self._ttl_ms / 1_000
        self._timeout_s = seconds(timeout)
        self._holder: str | None = None
        self._ends_s = 0.0
        """Until when it is held for certain: a lease begins no sooner than it is asked for."""
        self._released = runtime.Event()
        self._keeper: runtime.Task | None = None

    def __repr__(self) -> str:
        state = f"held with number {self.number}" if self.held else "not held"
        return f"<{type(self).__name__} {self.name!r}, {state}>"

    @property
    def held(self) -> bool:
        """Whether this object holds it for certain: its lease was renewed in time."""
        return self._holder is not None and runtime.now_s() < self._ends_s

    def check(self) -> None:
        """Raise `LeaseLost` unless it is held; call it before a step that must not run twice."""
        if not self.held:
            raise LeaseLost(f"{self.name!r} is not held: its lease has ended, or was never taken")

    async def acquire(self, timeout: Duration | None = None) -> int:
        """Wait for a place and hold it; returns the fencing number.

        Raises `RequestTimeout` if none was free in time. Without a ``timeout`` here or at
        ``store.lock`` it waits for ever; 0 does not wait.
        """
        if self.held:
            raise Conflict(f"{self.name!r} is already held by this object: make another one")
        await self.release()
        limit_s = self._timeout_s if timeout is None else seconds(timeout)
        until_s = math.inf if limit_s is None else runtime.now_s() + limit_s
        holder = secrets.token_hex(16)
        while (number := await self._take(holder, until_s)) is None:
            if runtime.now_s() >= until_s:
                raise RequestTimeout(f"{self.name!r} was not free within {limit_s:g} s")
        self.number, self._holder = number, holder
        self._released.clear()
        self._keeper = runtime.spawn(self._keep, holder, name=f"nexo-{self.name}")
        return number

    async def _take(self, holder: str, until_s: float) -> int | None:
        """Wait for a place; None if none was free.

        While the reply was under way, the lease may have ended: then it is asked for again, which
        renews what its holder still has.
        """
        number = await self._take_once(holder, until_s)
        while number is not None and (now_s := runtime.now_s()) >= self._ends_s:
            if now_s >= until_s + self._lease_s:
                await self._release(holder)
                return None
            number = await self._take_once(holder, until_s)
        return number

    async def _take_once(self, holder: str, until_s: float) -> int | None:
        asked_s = runtime.now_s()
        left_ms = max(0, int(min(_LONGEST_WAIT_S, until_s - asked_s) * 1_000))
        command = wire.TakeLease(self.name, holder, self._ttl_ms, self._limit, left_ms)
        poll = self._link.duplex().poll(
            Op.LEASE_TAKE,
            pack(command),
            timeout_s=left_ms / 1_000 + self._link.address.timeout_s,
            on_late=lambda reply: self._give_back(holder, reply),
        )
        reply: LeaseAnswer = wire.decode_reply(Op.LEASE_TAKE, await poll.reply())
        self._ends_s = asked_s + self._lease_s
        return reply.number

    def _give_back(self, holder: str, reply: Reply) -> None:
        """Release a lease that arrived after its taker was cancelled."""
        if reply and wire.decode_reply(Op.LEASE_TAKE, reply).number is not None:
            runtime.spawn(self._release, holder)

    async def release(self) -> bool:
        """Release it; False if the lease had already ended, so that another may have held it."""
        holder, self._holder = self._holder, None
        if holder is None:
            return False
        self._released.set()
        released = await self._release(holder)
        if self._keeper is not None and not self._keeper.is_current():
            await self._keeper.join()
        return released

    async def _release(self, holder: str) -> bool:
        command = wire.ReleaseLease(self.name, holder)
        released: bool = await ask(self._link, Op.LEASE_RELEASE, command)
        return released

    async def _keep(self, holder: str) -> None:
        """Renew the lease until it is released or lost."""
        pause_s = self._lease_s / RENEWALS_PER_LEASE
        wait_s = max(0.0, self._ends_s - self._lease_s + pause_s - runtime.now_s())
        while not await self._released.wait(wait_s):
            wait_s, asked_s = pause_s, runtime.now_s()
            try:
                command = wire.RenewLease(self.name, holder, self._ttl_ms)
                kept = await ask(self._link, Op.LEASE_RENEW, command)
            except NexoError as error:
                log.info("the lease of %r was not renewed: %s", self.name, error)
                kept = runtime.now_s() < self._ends_s
            else:
                self._ends_s = asked_s + self._lease_s
            if not kept:
                if self._holder == holder:
                    self._holder = None
                    log.warning("the lease of %r was lost: someone else may hold it", self.name)
                return

    async def __aenter__(self) -> Lock:
        await self.acquire()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.release()


class RateLimiter:
    """At most ``limit`` per time, over all clients: ``store.rate_limiter(name, 100, "1m")``.

    A ``bucket`` refills steadily and allows ``burst`` at once; a ``window`` counts what was
    allowed in the last period, accurate to a 64th of it.
    """

    def __init__(
        self, link: Link, name: str, limit: int, per: Duration, burst: int | None, kind: RateKind
    ) -> None:
        self.name = name
        self._link = link
        self._limit = whole(limit, "limit", 1, _MAX_COUNT)
        self._per_ms = positive_millis(per, "per")
        self._burst = self._limit if burst is None else whole(burst, "burst", 1, _MAX_COUNT)
        if kind not in ("bucket", "window"):
            raise InvalidOption(f"kind {kind!r} is not known; use 'bucket' or 'window'")
        if kind == "window" and burst is not None:
            raise InvalidOption("a window has no burst: its limit may come at once")
        self._kind = kind

    def __repr__(self) -> str:
        return f"<RateLimiter {self.name!r}, {self._limit} per {self._per_ms / 1_000:g} s>"

    async def ask(self, cost: int = 1) -> RateDecision:
        """Take ``cost`` if allowed now; otherwise the result says when to retry."""
        op, command = self._request(cost)
        reply: RateAnswer = await ask(self._link, op, command)
        return RateDecision(reply.allowed, reply.remaining, reply.retry_ms / 1_000)

    def _request(self, cost: int) -> tuple[Op, Any]:
        if self._kind == "window":
            whole(cost, "cost", 1, self._limit)
            return Op.RATE_WINDOW, wire.CountInWindow(self.name, self._limit, self._per_ms, cost)
        whole(cost, "cost", 1, self._burst)
        per_s = self._limit * 1_000 / self._per_ms
        return Op.RATE_BUCKET, wire.TakeTokens(self.name, self._burst, per_s, cost)

    async def allow(self, cost: int = 1) -> bool:
        """Whether ``cost`` is allowed now; if so, it is taken."""
        return (await self.ask(cost)).allowed

    async def wait(self, cost: int = 1, *, timeout: Duration | None = None) -> None:
        """Wait until ``cost`` was taken; `RequestTimeout` if that would take too long."""
        limit_ms = None if timeout is None else millis(timeout, "timeout")
        until_s = None if limit_ms is None else runtime.now_s() + limit_ms / 1_000
        while not (decision := await self.ask(cost)).allowed:
            if until_s is not None and runtime.now_s() + decision.retry_after > until_s:
                raise RequestTimeout(
                    f"{self.name!r} allows it in {decision.retry_after:g} s, which is too late"
                )
            await runtime.sleep(max(decision.retry_after, 0.001))
