"""Decides whether this server leads or is a standby, and what follows from it (SPEC N1).

A leader renews its lease, and stops when it is asked to hand over or finds another's lease. A
standby applies the logs to its own folders and takes over once the lease has not been renewed for
its length, on its own clock. The lease only decides when: the brokers' processes claim the logs,
whose numbers fence.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from pathlib import Path

import msgspec

from nexo.config import Settings
from nexo.errors import Corrupt, NexoError
from nexo.model import Broker
from nexo.replication import fence
from nexo.replication import lease as leases
from nexo.replication.lease import LeaderLease
from nexo.replication.log_objects import server_name
from nexo.replication.objects import ObjectStore, StoreFailed
from nexo.replication.state import ReplicaState, now_s
from nexo.replication.taking import log_end
from nexo.replication.tenure import PATIENCE
from nexo.server.replica.folders import Folders
from nexo.server.replica.leading import Leading
from nexo.server.replica.marks import broker_store
from nexo.server.replica.member import Brokers, Member
from nexo.server.replica.standing_by import StandingBy
from nexo.server.replica.surroundings import Surroundings

log = logging.getLogger("nexo.replica")


class Replica:
    """One server's part."""

    def __init__(
        self,
        settings: Settings,
        address: str,
        run: Path,
        brokers: Brokers,
        changed: Callable[[ReplicaState], None],
        around: Surroundings | None = None,
    ) -> None:
        self._member = Member(settings, address, run, changed, around or Surroundings())
        self._brokers = brokers
        self.leading = Leading(self._member, brokers)
        """This server as the leader."""

    @property
    def view(self) -> ReplicaState:
        return self._member.view

    async def run(self) -> None:
        """Lead or follow until `stop`."""
        member = self._member
        try:
            number, lease = await self._newest_lease()
            while not member.stopping.is_set():
                if lease is None or lease.server == member.server:
                    number, lease = await self._begin_to_lead(number)
                else:
                    number, lease = await self._follow(number, lease)
        except StoreFailed as error:  # only while stopping
            log.warning("stopped without an answer of the object store: %s", error)

    async def stop(self) -> None:
        """Hand over if it leads; `run` ends."""
        self._member.stopping.set()

    async def _newest_lease(self) -> tuple[int, LeaderLease | None]:
        member = self._member
        before = await member.until_done(leases.numbers, member.store)
        if fence.is_broken(before):
            await self._wait_for_signs(bool(before))
        return await member.until_done(_newest_since, member.store, before)

    async def _wait_for_signs(self, there_are_some: bool) -> None:
        """Wait until a server that leads would have renewed its lease, or stopped."""
        member = self._member
        wait_s = PATIENCE * member.lease_s
        what = "lacks leases that nobody deletes" if there_are_some else "has no leases yet"
        log.warning("the bucket %s: waiting %.1f s for signs of a leader", what, wait_s)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(member.stopping.wait(), wait_s)

    async def _begin_to_lead(self, number: int) -> tuple[int, LeaderLease | None]:
        """Lead if no other server was quicker; returns the newest lease known after that."""
        mine, asked_s = self._member.new_lease(), now_s()
        store = self._member.store
        if await self._member.until_done(leases.take, store, number + 1, mine):
            return await self._lead(number + 1, mine, asked_s)
        return await self._newest_lease()

    async def _follow(self, number: int, lease: LeaderLease) -> tuple[int, LeaderLease | None]:
        standing_by = StandingBy(self._member, self._brokers, number, lease)
        number, lease, asked_s = await standing_by.until_taken()
        if self._member.stopping.is_set():
            return number, lease
        return await self._lead(number, lease, asked_s)

    async def _lead(
        self, number: int, mine: LeaderLease, asked_s: float
    ) -> tuple[int, LeaderLease | None]:
        number, handed_to = await self.leading.lead(number, mine, asked_s)
        if handed_to is None:
            return await self._after_loss()
        last = await self.leading.release(number + 1, mine, handed_to)
        if last is None:
            return await self._newest_lease()
        return number + 1, last if self._member.stopping.is_set() else _as_others(last)

    async def _after_loss(self) -> tuple[int, LeaderLease | None]:
        """The newest lease. If it is still this server's, its folders were behind: update them."""
        number, lease = await self._newest_lease()
        if lease is not None and lease.server == self._member.server:
            await self._make_superseded_folders()
        return number, lease

    async def _make_superseded_folders(self) -> None:
        """Make the folders whose logs another server has continued. The others are the truth."""
        member = self._member
        brokers = [b for b in Broker if await member.until_done(self._is_superseded, b)]
        if not brokers:
            return
        with contextlib.closing(Folders(member, brokers)) as folders:
            try:
                await member.until_done(folders.step, to_end=True)
            except (NexoError, OSError) as error:
                member.problem(f"the log cannot be applied: {error}")
            await member.in_thread(folders.hand_over)

    def _is_superseded(self, broker: Broker) -> bool:
        marks = self._member.marks
        if marks.is_half(broker):
            return True
        if marks.get(broker) is not None:
            return False
        try:
            end = log_end(broker_store(self._member.store, broker))
        except Corrupt:  # the broker's process says so
            return False
        return bool(end.number) and server_name(end.writer) != self._member.server


def _newest_since(store: ObjectStore, before: list[int]) -> tuple[int, LeaderLease | None]:
    """The newest lease; where there are new ones, the newest of these: their server is alive."""
    found = leases.numbers(store)
    number = max(set(found) - set(before), default=found[-1] if found else -1)
    lease = leases.get(store, number) if found else None
    return (number, lease) if lease is not None or not found else _newest_since(store, before)


def _as_others(lease: LeaderLease) -> LeaderLease:
    """A lease that this server gave up, so that it does not take it as its own."""
    return msgspec.structs.replace(lease, server="", released=True, to=lease.to or "another")
