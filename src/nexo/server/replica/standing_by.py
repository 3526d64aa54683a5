"""Standing by: applies the logs to this server's folders, and watches the lease.

While the leader seems to be gone, it applies all that was shipped and starts processes that wait
for their broker's folder, so that a takeover has little left to do.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from nexo.errors import NexoError
from nexo.replication import lease as leases
from nexo.replication.lease import LeaderLease, Standby
from nexo.replication.objects import StoreFailed
from nexo.replication.state import now_s
from nexo.replication.tenure import Watch
from nexo.server.replica.folders import Folders
from nexo.server.replica.leading import ANNOUNCE_S
from nexo.server.replica.member import RETRY_S, Brokers, Member, now_ms

log = logging.getLogger("nexo.replica")


DAMAGED_RETRY_S = 5.0
"""How long a standby waits before it tries to apply a damaged log again."""


class StandingBy:
    """This server as a standby, from one leader's lease on."""

    def __init__(self, member: Member, brokers: Brokers, number: int, lease: LeaderLease) -> None:
        self._member = member
        self._brokers = brokers
        self._folders = Folders(member)
        self._watch = Watch(member.server, number, lease, now_s())
        member.saw(lease)
        self._announced = 0
        self._loaded = asyncio.Event()

    async def until_taken(self) -> tuple[int, LeaderLease, float]:
        """Follow until the lead is taken or the server stops.

        Returns the newest lease, which is this server's own if it was taken, its number, and when
        it was asked for.
        """
        member, view, lease = self._member, self._member.view, self._watch.lease
        log.info("%s leads: this server is a standby", lease.address)
        view.role, view.leader, view.term = "standby", lease.address, lease.term
        view.standbys, view.prepared = [], False
        member.show()
        applying = asyncio.create_task(self._apply())
        announcing = asyncio.create_task(self._announce())
        preparing = asyncio.create_task(self._prepare())
        try:
            asked_s = await self._watch_leases()
        finally:
            announcing.cancel()
            preparing.cancel()
            self._folders.ended = True
            await asyncio.wait([applying])
            self._folders.close()
        if member.stopping.is_set():
            await self._leave()
        else:
            await member.in_thread(self._folders.hand_over)
            await member.until_done(member.small_files().restore)
        return self._watch.number, self._watch.lease, asked_s

    async def _leave(self) -> None:
        await self._brokers.stop_brokers(kill=True)
        await self._member.in_thread(self._folders.save)
        with contextlib.suppress(StoreFailed):
            await self._member.in_thread(leases.withdraw, self._member.store, self._member.server)

    async def _apply(self) -> None:
        folders, member = self._folders, self._member
        while not folders.ended:
            pause_s = min(RETRY_S, member.lease_s / 8)
            try:
                await member.in_thread(folders.step, to_end=self._watch.overdue(now_s()))
                member.view.lag_ms = folders.lag_ms
            except StoreFailed as error:
                member.problem(f"the object store does not answer: {error}")
            except (NexoError, OSError) as error:
                member.problem(f"the log cannot be applied: {error}")
                pause_s = DAMAGED_RETRY_S
            if folders.loaded:
                self._loaded.set()
            await self._rest(pause_s)

    async def _rest(self, pause_s: float) -> None:
        """Wait before the next step, less if this ends or the leader seems to be gone."""
        until_s = now_s() + pause_s
        while now_s() < until_s and not self._folders.ended:
            await asyncio.sleep(min(RETRY_S, self._member.lease_s / 8))

    async def _prepare(self) -> None:
        """Start processes that wait once the folders are loaded."""
        view = self._member.view
        await self._loaded.wait()
        await self._brokers.prepare_brokers()
        view.prepared = True
        self._member.show()

    async def _announce(self) -> None:
        member = self._member
        while True:
            self._announced = max(self._announced + 1, now_ms())
            said = Standby(member.server, member.address, now_ms(), self._folders.applied)
            with contextlib.suppress(StoreFailed):  # the server stops
                await member.until_done(leases.announce, member.store, said, self._announced)
            await asyncio.sleep(min(ANNOUNCE_S, member.lease_s))

    async def _watch_leases(self) -> float:
        """Follow the leases until this server could create one; returns when it asked for it."""
        member, watch = self._member, self._watch
        while not member.stopping.is_set():
            self._folders.heads = watch.lease.heads
            try:
                if await self._saw_newer():
                    continue
                if watch.lease.alone and not watch.lease.released:
                    await self._ask()
                due = self._folders.loaded and now_s() >= watch.due_s()
                if due and (asked_s := await self._try_to_take()) is not None:
                    return asked_s
            except StoreFailed as error:
                member.problem(f"the object store does not answer: {error}")
                watch.could_not_look(now_s())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(member.stopping.wait(), watch.pause_s(now_s()))
        return now_s()

    async def _ask(self) -> None:
        """Ask a leader that knew of no standby: while it serves, the lead is not taken."""
        watch, address = self._watch, self._watch.lease.address
        answered = await self._member.around.answers(address)
        watch.asked(now_s(), answered=answered)
        if answered and watch.overdue(now_s()):
            self._member.problem(f"{address} cannot renew its lease but still serves: waiting")

    async def _saw_newer(self) -> bool:
        """Whether there is a newer lease."""
        member, watch = self._member, self._watch
        newer = await member.in_thread(leases.get, member.store, watch.number + 1)
        if newer is None:
            return False
        watch.saw(watch.number + 1, newer, now_s())
        member.saw(newer)
        member.view.leader, member.view.term = newer.address, newer.term
        member.view.lease_number = watch.number
        member.problem("")
        return True

    async def _try_to_take(self) -> float | None:
        """Try to take the lead, unless leases were missed; returns when it was asked for."""
        member, watch = self._member, self._watch
        newest = await member.in_thread(leases.newest, member.store)
        if newest is not None and newest[0] > watch.number:
            watch.saw(*newest, now_s())
            member.saw(newest[1])
            return None
        if watch.lease.released:
            log.info("%s gave up the lead: taking over", watch.lease.address)
        else:
            log.warning("%s is gone: taking over", watch.lease.address)
        mine, asked_s = member.new_lease(heads=self._folders.applied), now_s()
        if not await member.in_thread(leases.take, member.store, watch.number + 1, mine):
            return None
        watch.saw(watch.number + 1, mine, now_s())
        return asked_s
