"""Decides whether this server leads or is a standby, and what follows from it (SPEC N1).

A leader renews its lease three times in its length, ships users and the lake's catalog, and stops
when it is asked to hand over or finds another's lease. A standby applies the logs to its own
folders and takes over once the lease has not been renewed for its length, on its own clock. The
lease only decides when: the brokers' processes claim the logs, whose numbers fence.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import ParamSpec, Protocol, TypeVar
from uuid import uuid4

from nexo.config import Settings
from nexo.errors import Corrupt
from nexo.lake.settings import CATALOG
from nexo.model import Broker
from nexo.replication import lease as leases
from nexo.replication.cells import FOREVER, Cells, now_s
from nexo.replication.lease import STANDBY, LeaderLease, Standby
from nexo.replication.objects import ObjectStore, StoreFailed
from nexo.replication.replay import ASIDE, LogReplay
from nexo.replication.small_files import Overtaken, SmallFiles
from nexo.replication.stores import open_store
from nexo.server.replica_start import Marks, broker_store, lease_path, shown_path, term_path
from nexo.storage.disk.files import OsFiles

P = ParamSpec("P")
T = TypeVar("T")
log = logging.getLogger("nexo.replica")

RETRY_S = 0.5
ANNOUNCE_S = 5.0
ABSENT_S = 20.0
"""A standby that has not announced itself for this long is gone."""


class Brokers(Protocol):
    """The processes that serve while this server leads."""

    async def start_brokers(self) -> None:
        """Start them; returns at once."""

    async def stop_brokers(self, *, kill: bool) -> None:
        """End them."""


@dataclass
class View:
    """What is known of the replicas; shown by probes, commands and metrics."""

    role: str = "starting"
    leader: str = ""
    term: str = ""
    lag_ms: int = 0
    lease_number: int = -1
    last_put_ms: int = 0
    standbys: list[str] = field(default_factory=list)
    problem: str = ""


class Replica:
    """One server's part."""

    def __init__(
        self,
        settings: Settings,
        address: str,
        run: Path,
        brokers: Brokers,
        changed: Callable[[View], None],
    ) -> None:
        self.view = View()
        self._settings = settings
        self._address = settings.replicate_address or address
        self._run = run
        self._brokers = brokers
        self._changed = changed
        self._store: ObjectStore = open_store(settings.replicate)
        self._marks = Marks(settings)
        self._server = self._marks.server()
        self._lease_s = settings.replicate_lease_ms / 1000
        self._pool = ThreadPoolExecutor(4, "replica")
        self._cells = Cells(lease_path(run))
        self._stop = asyncio.Event()
        self._lost = asyncio.Event()
        self._seen: dict[str, float] = {}
        self._look_s = 0.0
        self._announced = 0

    # -- life -----------------------------------------------------------------------

    def lose(self) -> None:
        """A broker's process found that another server leads its log."""
        self._lost.set()

    async def run(self) -> None:
        """Lead or follow until `stop`."""
        try:
            await self._run_roles()
        except StoreFailed as error:  # only while stopping
            log.warning("stopped without an answer of the object store: %s", error)

    async def _run_roles(self) -> None:
        number, lease = await self._first_lease()
        while not self._stop.is_set():
            if lease is None or lease.server == self._server:
                mine = self._new_lease()
                if await self._until_done(leases.create, self._store, number + 1, mine):
                    number, lease = await self._lead(number + 1, mine)
                    continue
                number, lease = await self._first_lease()
                continue
            number, lease = await self._follow(number, lease)

    async def stop(self) -> None:
        """Hand over if it leads; `run` ends."""
        self._stop.set()

    async def _first_lease(self) -> tuple[int, LeaderLease | None]:
        found = await self._until_done(leases.newest, self._store)
        return found or (-1, None)

    def _new_lease(
        self, term: str = "", heads: dict[str, int] | None = None, *, to: str | None = None
    ) -> LeaderLease:
        """A lease of this server; with ``to`` it is given up."""
        return LeaderLease(
            term or uuid4().hex[:12],
            self._server,
            self._address,
            self._settings.replicate_lease_ms,
            _now_ms(),
            self._heads() if heads is None else heads,
            to is not None,
            to or "",
        )

    def _heads(self) -> dict[str, int]:
        return {b.label: int(Cells(shown_path(self._run, b)).first()) for b in Broker}

    async def _in_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        call = partial(work, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    async def _until_done(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Try until the store answers, or raise `StoreFailed` once the server stops."""
        while True:
            try:
                return await self._in_thread(work, *args, **kwargs)
            except StoreFailed as error:
                if self._stop.is_set():
                    raise
                self._problem(f"the object store does not answer: {error}")
                await asyncio.sleep(RETRY_S)

    def _problem(self, text: str) -> None:
        if text and not self.view.problem:
            log.warning("%s", text)
        self.view.problem = text
        self._show()

    def _show(self) -> None:
        self._changed(self.view)

    # -- leading --------------------------------------------------------------------

    async def _lead(self, number: int, mine: LeaderLease) -> tuple[int, LeaderLease | None]:
        """Lead until that ends; returns the newest lease known then."""
        log.info("leading in term %s", mine.term)
        self._lost.clear()
        self._cells.set(now_s() + self._lease_s)
        facts = {"server": self._server, "term": mine.term, "lineage": self._marks.lineage()}
        term_path(self._run).write_text(json.dumps(facts))
        self.view.role, self.view.leader, self.view.term = "leader", self._address, mine.term
        self._show()
        small = SmallFiles(self._store, self._small_paths())
        await self._brokers.start_brokers()
        number, handed_to = await self._renew(number, mine, small)
        self._cells.set(0.0)
        lost = handed_to is None
        await self._brokers.stop_brokers(kill=lost)
        if lost:
            return await self._after_loss()
        last = self._new_lease(mine.term, to=handed_to)
        try:
            await self._in_thread(small.ship_changes)
            if not await self._in_thread(leases.create, self._store, number + 1, last):
                return await self._first_lease()
        except (StoreFailed, Overtaken) as error:
            log.warning("the lease could not be released: %s", error)
        return number + 1, last if self._stop.is_set() else _as_others(last)

    async def _after_loss(self) -> tuple[int, LeaderLease | None]:
        """The newest lease. If it is this server's, its folders were not the newest: load them."""
        number, lease = await self._first_lease()
        if lease is not None and lease.server == self._server:
            following = Following(self._store, self._settings, self._marks)
            await self._until_done(following.step)
            await self._until_done(following.to_end)
        return number, lease

    async def _renew(
        self, number: int, mine: LeaderLease, small: SmallFiles
    ) -> tuple[int, str | None]:
        """Keep the lease; returns its number, and for whom it ends or None if it is lost."""
        while True:
            began_s = now_s()
            try:
                kept = await self._renew_once(number + 1, mine, small)
            except (StoreFailed, TimeoutError) as error:
                self._problem(f"the lease cannot be renewed: {error or 'no answer'}")
                kept = None
            if kept is False or self._lost.is_set():
                log.error("another server leads now")
                return number, None
            if kept:
                number += 1
                self.view.lease_number, self.view.last_put_ms = number, _now_ms()
                self._problem("")
                asked = await self._asked(mine.term)
                alone = not self.view.standbys
                self._cells.set(FOREVER if alone else began_s + self._lease_s)
                if asked is not None:
                    return number, asked
            self.view.lag_ms = self._lag_ms()
            self._show()
            pause_s = max(0.02, began_s + self._lease_s / 3 - now_s())
            if await self._wait(pause_s):
                return number, ""

    async def _wait(self, pause_s: float) -> bool:
        """Wait a little, less if the lead is lost; returns whether to stop."""
        waits = [asyncio.create_task(event.wait()) for event in (self._stop, self._lost)]
        await asyncio.wait(waits, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
        for task in waits:
            task.cancel()
        return self._stop.is_set()

    async def _renew_once(self, number: int, mine: LeaderLease, small: SmallFiles) -> bool:
        renewed = self._new_lease(term=mine.term)

        def renew() -> bool:
            if not leases.create(self._store, number, renewed):
                return False
            try:
                small.ship_changes()
            except (Overtaken, StoreFailed) as error:
                log.warning("users and catalog were not shipped: %s", error)
            if number % leases.KEPT == 0:
                leases.forget(self._store, number)
            return True

        async with asyncio.timeout(max(self._lease_s, 10.0)):
            return await self._in_thread(renew)

    async def _asked(self, term: str) -> str | None:
        """For whom this leader was asked to stop; now and then it looks who is there."""
        now = now_s()
        try:
            asked = await self._in_thread(leases.asked_handover, self._store, term)
            if now < self._look_s:
                return asked
            keys = await self._in_thread(self._store.list, STANDBY)
        except StoreFailed:
            return None
        self._look_s = now + ANNOUNCE_S
        self._seen = {key: self._seen.get(key, now) for key in keys}
        there = {key.split("/")[1] for key, at in self._seen.items() if now - at < ABSENT_S}
        self.view.standbys = sorted(there)
        return asked

    def _lag_ms(self) -> int:
        return int(max(Cells(shown_path(self._run, b)).get()[1] for b in Broker))

    def _small_paths(self) -> dict[str, Path]:
        paths = {"users": self._settings.users_path}
        if not self._settings.lake_catalog:
            paths["catalog"] = self._settings.lake_folder / CATALOG
        return paths

    # -- following ------------------------------------------------------------------

    async def _follow(self, number: int, lease: LeaderLease) -> tuple[int, LeaderLease | None]:
        """Keep up until the lead is taken or the server stops; returns the newest lease."""
        log.info("%s leads: this server is a standby", lease.address)
        self.view.role, self.view.leader, self.view.term = "standby", lease.address, lease.term
        self._show()
        following = Following(self._store, self._settings, self._marks)
        applying = asyncio.create_task(self._apply(following))
        announcing = asyncio.create_task(self._announce(following))
        try:
            number, lease = await self._watch(number, lease, following)
        finally:
            announcing.cancel()
            following.ended = True
            await asyncio.wait([applying])
        await self._in_thread(following.save)
        with contextlib.suppress(StoreFailed):
            await self._in_thread(leases.withdraw, self._store, self._server)
        if not self._stop.is_set():
            await self._until_done(following.to_end)
            await self._until_done(SmallFiles(self._store, self._small_paths()).restore)
        return number, lease

    async def _apply(self, following: Following) -> None:
        while not following.ended:
            try:
                await self._in_thread(following.step)
                self.view.lag_ms = following.lag_ms
            except StoreFailed as error:
                self._problem(f"the object store does not answer: {error}")
            except (Corrupt, OSError) as error:
                self._problem(f"the log cannot be applied: {error}")
            await asyncio.sleep(min(RETRY_S, self._lease_s / 6))

    async def _announce(self, following: Following) -> None:
        while True:
            self._announced = max(self._announced + 1, int(time.time() * 1000))
            said = Standby(self._server, self._address, _now_ms(), following.applied())
            with contextlib.suppress(StoreFailed):
                await self._in_thread(leases.announce, self._store, said, self._announced)
            await asyncio.sleep(ANNOUNCE_S)

    async def _watch(
        self, number: int, lease: LeaderLease, following: Following
    ) -> tuple[int, LeaderLease]:
        """Follow the leases; returns one's own once it could be taken."""
        seen_s = now_s()
        while not self._stop.is_set():
            following.heads = lease.heads
            try:
                newer = await self._in_thread(leases.get, self._store, number + 1)
                if newer is not None:
                    number, lease, seen_s = number + 1, newer, now_s()
                    self.view.leader, self.view.term = lease.address, lease.term
                    self.view.lease_number = number
                    self._problem("")
                    self._show()
                    continue
                if following.loaded and self._may_take(lease, now_s() - seen_s):
                    newest = await self._in_thread(leases.newest, self._store)
                    if newest is not None and newest[0] > number:
                        number, lease, seen_s = *newest, now_s()
                        continue
                    mine = self._new_lease(heads=following.applied())
                    log.warning("%s is gone: taking over", lease.address)
                    if await self._in_thread(leases.create, self._store, number + 1, mine):
                        return number + 1, mine
            except StoreFailed as error:
                self._problem(f"the object store does not answer: {error}")
                seen_s = max(seen_s, now_s() - self._lease_s / 2)  # it may have been renewed
            await self._wait(min(RETRY_S, self._lease_s / 6))
        return number, lease

    def _may_take(self, lease: LeaderLease, silent_s: float) -> bool:
        lease_s = lease.lease_ms / 1000
        if lease.released:
            return lease.to in ("", self._server) or silent_s > 3 * lease_s
        return silent_s > 1.1 * lease_s


class Following:
    """The brokers' folders of a standby, kept like the leader's. One thread at a time uses it."""

    def __init__(self, store: ObjectStore, settings: Settings, marks: Marks) -> None:
        self.heads: dict[str, int] = {}
        self.loaded = self.ended = False
        self.lag_ms = 0
        self._settings = settings
        self._marks = marks
        self._files = OsFiles()
        self._replays = {
            broker: LogReplay(broker_store(store, broker), self._files, settings.folder(broker))
            for broker in Broker
        }
        self._begun: set[Broker] = set()

    def step(self) -> None:
        """Apply what the leader has shipped since."""
        for broker, replay in self._replays.items():
            if broker not in self._begun:
                self._begin(broker, replay)
            head = self.heads.get(broker.label, 0)
            while replay.follower.number < head and not self.ended:
                if not replay.step():
                    replay.to_end(going_on=lambda: not self.ended)
                    break
        if not self.loaded and len(self._begun) == len(self._replays):
            self._marks.end_lineage()
            self.loaded = True
        self.lag_ms = self._behind()

    def _behind(self) -> int:
        times = [
            replay.follower.time_ms
            for broker, replay in self._replays.items()
            if replay.follower.number < self.heads.get(broker.label, 0)
        ]
        return max(0, _now_ms() - min(times)) if times else 0

    def _begin(self, broker: Broker, replay: LogReplay) -> None:
        mark, led = self._marks.get(broker), self._marks.has_led
        if mark is not None:
            replay.resume(mark)
            self._marks.remove(broker)
        else:
            replay.load()
            aside = self._settings.folder(broker)
            aside = aside.with_name(aside.name + ASIDE)
            if not led:
                self._files.remove(aside)
            elif aside.exists():
                log.warning("what this server had as a leader and did not ship is in %s", aside)
        self._begun.add(broker)

    def applied(self) -> dict[str, int]:
        """The next number of each log to apply."""
        return {b.label: replay.follower.number for b, replay in self._replays.items()}

    def to_end(self) -> None:
        """Apply everything there is, durably, and note where the folders are."""
        for broker, replay in self._replays.items():
            self._marks.remove(broker)
            replay.to_end()
            replay.sync()
            self._marks.put(broker, replay.mark)

    def save(self) -> None:
        """Note where the folders are."""
        for broker in self._begun:
            self._replays[broker].sync()
            self._marks.put(broker, self._replays[broker].mark)


def _as_others(lease: LeaderLease) -> LeaderLease:
    """A lease that this server gave up, so that it does not take it as its own."""
    return LeaderLease(
        lease.term, "", lease.address, lease.lease_ms, lease.time_ms, lease.heads,
        released=True, to=lease.to or "another",
    )  # fmt: skip


def _now_ms() -> int:
    return int(time.time() * 1000)
