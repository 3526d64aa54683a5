"""Leading: renews the lease three times per lease, until that fails or a handover is asked for.

Users and the lake's catalog are shipped with a renewal.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from nexo.errors import Unavailable
from nexo.replication import lease as leases
from nexo.replication.fence import LEASES_KEPT
from nexo.replication.lease import STANDBY, LeaderLease
from nexo.replication.objects import StoreFailed
from nexo.replication.small_files import Overtaken
from nexo.replication.state import now_s
from nexo.replication.tenure import Tenure
from nexo.server.replica.marks import Term
from nexo.server.replica.member import Brokers, Member, now_ms

log = logging.getLogger("nexo.replica")

ANNOUNCE_S = 5.0
"""How often a standby says that it is there, and a leader looks."""
ABSENT_S = 20.0
"""A standby that has not announced itself for this long counts as gone."""
RENEWALS_PER_LEASE = 3
PULSES_PER_LEASE = 8


class Leading:
    """This server as the leader, once or several times."""

    def __init__(self, member: Member, brokers: Brokers) -> None:
        self._member = member
        self._brokers = brokers
        self._cells = member.lease_cells
        self._lost = asyncio.Event()
        self._seen: dict[str, float] = {}
        self._look_s = 0.0
        self._small = member.small_files()
        self._asked_s = 0.0
        self._first = 0
        """The lease that this term began with."""
        self._tenure = Tenure(member.lease_s, 0.0)

    def serves(self) -> None:
        """The brokers' processes are ready."""
        view = self._member.view
        view.takeover_ms = int((now_s() - self._asked_s) * 1000)
        log.info("serving %d ms after the lease was asked for", view.takeover_ms)
        self._member.show()

    @property
    def lapsed(self) -> bool:
        """Whether the lease has ended, so that another server may lead."""
        return now_s() > self._cells.get()[0]

    def lose(self) -> None:
        """A broker's process found that another server leads its log."""
        self._lost.set()

    async def lead(self, number: int, mine: LeaderLease, asked_s: float) -> tuple[int, str | None]:
        """Lead with a lease that was asked for at ``asked_s`` until that ends.

        Returns the number of the last lease, and which standby gets the lead: empty for any of
        them, None if the lead is lost.
        """
        log.info("leading in term %s", mine.term)
        member, view = self._member, self._member.view
        self._lost.clear()
        self._asked_s = asked_s
        self._first = number
        self._tenure = Tenure(member.lease_s, asked_s)
        self._show_tenure()
        lineage = member.marks.lineage()
        member.notes.begin(Term(member.server, mine.term, lineage, member.others_until_ms))
        view.role, view.leader, view.term = "leader", member.address, mine.term
        member.show()
        self._small = member.small_files()
        await self._brokers.start_brokers()
        with contextlib.suppress(StoreFailed):
            await member.in_thread(leases.withdraw, member.store, member.server)
        pulse = asyncio.create_task(self._pulse())
        try:
            number, handed_to = await self._renew(number, mine)
        finally:
            pulse.cancel()
        if handed_to is None:
            self._cells.set(0.0)
            await self._stop_after_loss(mine.term)
        else:  # the lease lasts meanwhile, so that what is under way can be answered
            await self._brokers.stop_brokers(kill=False)
            self._cells.set(0.0)
        return number, handed_to

    async def _stop_after_loss(self, term: str) -> None:
        """End the brokers: at once if another server leads, else so that they write what they have.

        Nothing is acknowledged any more in both cases.
        """
        try:
            newest = await self._member.in_thread(leases.newest, self._member.store)
        except StoreFailed:
            newest = None
        is_taken = newest is None or newest[1].term != term or self._lost.is_set()
        with contextlib.suppress(Unavailable):  # the log has it
            await self._brokers.stop_brokers(kill=is_taken)

    async def _pulse(self) -> None:
        """Show that this process runs, as a leader that is alone must."""
        while True:
            self._tenure.pulse(now_s())
            self._show_tenure()
            await asyncio.sleep(self._member.lease_s / PULSES_PER_LEASE)

    def _show_tenure(self) -> None:
        self._cells.set(self._tenure.until_s, self._tenure.proofs)

    async def release(self, number: int, mine: LeaderLease, to: str) -> LeaderLease | None:
        """Give the lease up for a standby, or anybody; None if it is another's by now."""
        member = self._member
        last = member.new_lease(mine.term, to=to)
        try:
            await member.in_thread(self._small.ship_changes)
            if not await member.in_thread(leases.create, member.store, number, last):
                return None
        except (StoreFailed, Overtaken) as error:
            log.warning("the lease could not be released: %s", error)
        return last

    async def _renew(self, number: int, mine: LeaderLease) -> tuple[int, str | None]:
        member, tenure = self._member, self._tenure
        asked, alone = number, False
        while True:
            began_s = now_s()
            if asked != number + 1:  # every try of a number writes the same lease
                asked, alone = number + 1, not member.view.standbys
            tenure.asking(asked, began_s, alone=alone)
            late = tenure.lapsed(began_s)
            try:
                kept = await self._renew_once(asked, member.new_lease(mine.term, alone=alone))
            except (StoreFailed, TimeoutError) as error:
                member.problem(f"the lease cannot be renewed: {error or 'no answer'}")
                kept = None
            if kept is False or self._lost.is_set():
                log.error("another server leads now, or the bucket has lost this server's lease")
                return number, None
            if kept:
                number += 1
                member.view.lease_number, member.view.last_put_ms = number, now_ms()
                member.problem("")
                wanted_for = await self._asked(mine.term)
                tenure.renewed(now_s(), alone=alone and not member.view.standbys, proved=late)
                self._show_tenure()
                if wanted_for is not None:
                    return number, wanted_for
            member.view.lag_ms = member.shipping_lag_ms()
            member.show()
            pause_s = max(0.02, began_s + member.lease_s / RENEWALS_PER_LEASE - now_s())
            if await self._wait(pause_s):
                return number, ""

    async def _wait(self, pause_s: float) -> bool:
        """Wait a little, less if the lead is lost; returns whether to stop."""
        events = (self._member.stopping, self._lost)
        waits = [asyncio.create_task(event.wait()) for event in events]
        await asyncio.wait(waits, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
        for task in waits:
            task.cancel()
        return self._member.stopping.is_set()

    async def _renew_once(self, number: int, renewed: LeaderLease) -> bool:
        store, small = self._member.store, self._small

        def renew() -> bool:
            if not leases.renew(store, number, renewed, lambda: self._tenure.lapsed(now_s())):
                return False
            try:
                small.ship_changes()
            except (Overtaken, StoreFailed) as error:
                log.warning("users and catalog were not shipped: %s", error)
            if number % LEASES_KEPT == 0:
                leases.forget(store, self._first, number)
            return True

        async with asyncio.timeout(max(self._member.lease_s, 10.0)):
            return await self._member.in_thread(renew)

    async def _asked(self, term: str) -> str | None:
        """The standby for which to stop, if asked to; looks for standbys from time to time."""
        member, now = self._member, now_s()
        try:
            asked = await member.in_thread(leases.asked_handover, member.store, term)
            if now < self._look_s:
                return asked
            keys = await member.in_thread(member.store.list, STANDBY)
        except StoreFailed:
            return None
        self._look_s = now + min(ANNOUNCE_S, member.lease_s)
        self._seen = {key: self._seen.get(key, now) for key in keys}
        there = {key.split("/")[1] for key, at in self._seen.items() if now - at < ABSENT_S}
        member.view.standbys = sorted(there - {member.server})
        return asked
