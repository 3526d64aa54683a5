"""One server of those that share an object store: who it is, and how it asks the store."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import ParamSpec, Protocol, TypeVar
from uuid import uuid4

from nexo.config import Settings
from nexo.model import Broker
from nexo.replication.lease import LeaderLease
from nexo.replication.objects import StoreFailed
from nexo.replication.small_files import SmallFiles
from nexo.replication.state import ReplicaState
from nexo.server.replica.marks import Marks, RunNotes, lease_path, shown_path, small_paths
from nexo.server.replica.surroundings import Surroundings

P = ParamSpec("P")
T = TypeVar("T")
log = logging.getLogger("nexo.replica")

RETRY_S = 0.5


class Brokers(Protocol):
    """The processes that serve while this server leads."""

    async def prepare_brokers(self) -> None:
        """Start processes that wait, so that a later start is quick; returns once they do."""

    async def start_brokers(self) -> None:
        """Start them; returns at once."""

    async def stop_brokers(self, *, kill: bool) -> None:
        """End them."""


class Member:
    """The parts that both roles use."""

    def __init__(
        self,
        settings: Settings,
        address: str,
        run: Path,
        changed: Callable[[ReplicaState], None],
        around: Surroundings,
    ) -> None:
        self.view = ReplicaState()
        self.settings = settings
        self.address = settings.replicate_address or address
        self.around = around
        self.store = around.open_store(settings)
        self.marks = Marks(settings, around.make_files)
        self.notes = RunNotes(run, around.make_files)
        self.lease_cells = around.open_cells(lease_path(run))
        self.server = self.marks.server()
        self.lease_s = settings.replicate_lease_ms / 1000
        self.stopping = asyncio.Event()
        self.others_until_ms = 0
        """Until when another server may have led, on that server's clock."""
        self._changed = changed
        self._pool = ThreadPoolExecutor(4, "replica")
        self._shown = {broker: around.open_cells(shown_path(run, broker)) for broker in Broker}

    def new_lease(
        self,
        term: str = "",
        heads: dict[str, int] | None = None,
        *,
        to: str | None = None,
        alone: bool = False,
    ) -> LeaderLease:
        """A lease of this server; with ``to`` it is given up."""
        return LeaderLease(
            term or uuid4().hex[:12],
            self.server,
            self.address,
            self.settings.replicate_lease_ms,
            now_ms(),
            self._heads() if heads is None else heads,
            to is not None,
            to or "",
            alone,
        )

    def saw(self, lease: LeaderLease) -> None:
        """Note until when another server's lease lets it lead."""
        if lease.server != self.server:
            until_ms = lease.time_ms + 2 * lease.lease_ms
            self.others_until_ms = max(self.others_until_ms, until_ms)

    def _heads(self) -> dict[str, int]:
        return {broker.label: int(cells.get()[0]) for broker, cells in self._shown.items()}

    def shipping_lag_ms(self) -> int:
        """How long the oldest unshipped write has waited."""
        return int(max(cells.get()[1] for cells in self._shown.values()))

    def small_files(self) -> SmallFiles:
        return SmallFiles(self.store, small_paths(self.settings))

    async def in_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do what may wait for the store."""
        call = partial(work, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    async def until_done(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Try until the store answers, or raise `StoreFailed` once the server stops."""
        while True:
            try:
                return await self.in_thread(work, *args, **kwargs)
            except StoreFailed as error:
                if self.stopping.is_set():
                    raise
                self.problem(f"the object store does not answer: {error}")
                await asyncio.sleep(RETRY_S)

    def problem(self, text: str) -> None:
        """Show what is wrong, or with an empty text that nothing is."""
        if text and not self.view.problem:
            log.warning("%s", text)
        self.view.problem = text
        self.show()

    def show(self) -> None:
        self._changed(self.view)


def now_ms() -> int:
    """The wall clock, for people."""
    return int(time.time() * 1000)
