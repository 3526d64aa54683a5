"""Virtual time, machines and processes: everything that happens is an event of one heap.

A process is an event loop of its own in a greenlet of its own, beside the greenlets of its
jobs. Whatever blocks (a sync, a sleep, a call to the object store) gives control back to the
world, so that another process, another job, a pause or a kill lands in the middle of it.
"""

from __future__ import annotations

import asyncio
import heapq
import os
import random
import re
from collections import Counter, deque
from collections.abc import Callable
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import greenlet

if TYPE_CHECKING:
    from tests.simulation.loop import SimLoop

US, MS, S = 1_000, 1_000_000, 1_000_000_000
EPOCH_NS = 1_790_000_000 * S
MOST_IDLE_TURNS = 100_000
"""So many turns of one process without time passing are a livelock."""
MOST_EVENTS = 1_000_000
"""A run has tens of thousands of events; one that comes to so many ends there."""


class Finding(Exception):
    """A promise that was broken: which check saw it, and what it saw."""

    def __init__(self, check: str, text: str) -> None:
        super().__init__(f"{check}: {text}")
        self.check, self.text = check, text


def drawn(seed: int, purpose: str) -> random.Random:
    """What a seed gives for one purpose."""
    return random.Random(f"{seed}:{purpose}")


class World:
    """The heap of events, and what they add up to."""

    def __init__(self, seed: int, tell: Callable[[str], None] | None = None) -> None:
        self.seed = seed
        self.now_ns = 0
        self.current: Process | None = None
        self.hub = greenlet.getcurrent()
        self.machines: dict[str, Machine] = {}
        self.findings: list[Finding] = []
        self.excused: set[str] = set()
        """Checks that promise nothing in this run any more."""
        self.last_check = ""
        """The run ends once this one has found something."""
        self.ended = False
        self.events = 0
        self.happenings = Counter[tuple[str, str]]()
        """How often the code on each machine did something that faults are tied to."""
        self.troubles = 0
        """Faults that struck and connections that ended; who measures times looks for them."""
        self.kept: list[object] = []
        """What is dead and must not be collected: its ``finally`` blocks would still run."""
        self.on_event: Callable[[str, Process | None], None] = lambda _name, _process: None
        self._tell = tell
        self.watched = os.environ.get("WATCH", "")
        """Notes with this text are told as well."""
        self._heap: list[tuple[int, float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self._ties = self.random("ties").random
        self._digest = blake2b(digest_size=8)
        self.chance = self.random("system")
        """What the system itself draws: ids, nonces, jitter."""

    def random(self, purpose: str) -> random.Random:
        """A stream of random numbers of its own, so that nothing else shifts it."""
        return drawn(self.seed, purpose)

    # -- time -------------------------------------------------------------------

    @property
    def now_s(self) -> float:
        return self.now_ns / S

    def at(self, when_ns: int, run: Callable[..., None], *args: Any) -> None:
        """Run it then; ties are broken by the seed."""
        self._count += 1
        when_ns = max(when_ns, self.now_ns)
        heapq.heappush(self._heap, (when_ns, self._ties(), self._count, run, args))

    def after(self, wait_ns: int, run: Callable[..., None], *args: Any) -> None:
        self.at(self.now_ns + wait_ns, run, *args)

    def run(self, until_ns: int, enough: Callable[[], bool] = lambda: False) -> None:
        """Let time pass until then, or until it is enough."""
        heap = self._heap
        while heap and heap[0][0] <= until_ns and not enough() and not self.ended:
            self.now_ns, _, _, run, args = heapq.heappop(heap)
            self.events += 1
            if self.events == MOST_EVENTS:
                self.found("livelock", f"{MOST_EVENTS} events, and no end")
            if self.events >= MOST_EVENTS:
                return
            run(*args)
        if not enough():
            self.now_ns = max(self.now_ns, until_ns)

    # -- what is seen -----------------------------------------------------------

    def note(self, what: str) -> None:
        """Add to the hash of everything that happened."""
        if self.watched and self.watched in what and self._tell is not None:
            self._tell(f"{self.now_s:10.3f}    {what}")
        self._digest.update(f"{self.now_ns} {what}\n".encode())

    def story(self, line: str) -> None:
        """A line that people read; part of the hash as well."""
        self.note(line)
        if self._tell is not None:
            self._tell(f"{self.now_s:10.3f}  {line}")

    def found(self, check: str, text: str) -> None:
        """A check failed; the run goes on, for the first finding may explain the next."""
        if check in self.excused:
            return
        text = re.sub(r"x{9,}", "x…", text)
        self.story(f"FINDING {check}: {text}")
        self.findings.append(Finding(check, text))
        self.ended = self.ended or check == self.last_check

    def happened(self, name: str) -> None:
        """The running code did something that a fault may be tied to."""
        if self.current is not None:
            self.happenings[self.current.machine.name, name] += 1
        self.on_event(name, self.current)

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()

    # -- blocking ---------------------------------------------------------------

    def block(self, wait_ns: int) -> None:
        """Let ``wait_ns`` pass for the running code; others run meanwhile."""
        process = self.current
        if process is None:
            return
        self.after(wait_ns, process.resume, greenlet.getcurrent())
        self.hub.switch()

    def park(self) -> None:
        """Wait until somebody resumes this greenlet."""
        self.hub.switch()

    def enter(self, process: Process, thread: greenlet.greenlet) -> None:
        """Run a greenlet of a process until it gives control back. Called by the hub only."""
        self.current = process
        asyncio._set_running_loop(process.loop if thread is process.main else None)
        try:
            thread.switch()
        finally:
            self.current = None
            asyncio._set_running_loop(None)


class Machine:
    """A name, a wall clock that may be wrong, and the processes on it."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.skew_ns = 0
        """Wall clock minus true time."""
        self.processes: list[Process] = []
        world.machines[name] = self


class Process:
    """An event loop and its jobs. Dead ones stay, and never run again."""

    def __init__(
        self, machine: Machine, name: str, make_loop: Callable[[Process], SimLoop]
    ) -> None:
        self.world = machine.world
        self.machine = machine
        self.name = name
        self.alive = True
        self.paused = False
        self.on_exit: Callable[[], None] = lambda: None
        self.chance = self.world.random(f"process {name}")
        self.sockets: dict[int, Any] = {}
        self.hot: dict[int, None] = {}
        """Descriptors that may be readable."""
        self.resources: list[Any] = []
        self._held: list[greenlet.greenlet] = []
        self._turn_due_ns: int | None = None
        self._turn = 0
        self._in_turn = False
        self._free_ns = 0
        self._idle_turns = 0
        self._turned_ns = -1
        self._running_jobs = 0
        self._jobs: deque[Callable[[], None]] = deque()
        self.main = greenlet.greenlet(self._turns, self.world.hub)
        self.loop = make_loop(self)
        machine.processes.append(self)
        self.world.kept.append(self)

    def start(self, main: Callable[[], Any]) -> None:
        """Begin with a coroutine."""
        self.loop.call_soon(lambda: self.world.kept.append(self.loop.create_task(main())))
        self.wake()

    # -- turns ------------------------------------------------------------------

    def wake(self, at_ns: int | None = None) -> None:
        """Have a turn of the loop by then."""
        if not self.alive or self._in_turn:
            return
        due_ns = max(self.world.now_ns if at_ns is None else at_ns, self._free_ns)
        if self._turn_due_ns is not None and self._turn_due_ns <= due_ns:
            return
        self._turn_due_ns = due_ns
        self._turn += 1
        self.world.at(due_ns, self._begin_turn, self._turn)

    def _begin_turn(self, turn: int) -> None:
        if turn != self._turn or not self.alive or self._in_turn or self.paused:
            return
        self._turn_due_ns = None
        self._in_turn = True
        self._check_livelock()
        self.world.note(f"turn {self.name}")
        self.world.enter(self, self.main)

    def _check_livelock(self) -> None:
        now_ns = self.world.now_ns
        self._idle_turns = self._idle_turns + 1 if now_ns - self._turned_ns < 100 * US else 0
        self._turned_ns = now_ns
        if self._idle_turns == MOST_IDLE_TURNS:
            self.world.found("livelock", f"{self.name} turns without end and without waiting")
            self.kill()

    def _turns(self) -> None:
        while True:
            self.loop._run_once()
            self._end_turn()
            self.world.hub.switch()

    def _end_turn(self) -> None:
        self._in_turn = False
        self._free_ns = self.world.now_ns + self.chance.randint(10, 40) * US
        if self.alive and (due_ns := self.loop.due_ns()) is not None:
            self.wake(due_ns)

    # -- jobs -------------------------------------------------------------------

    def job(self, work: Callable[[], None]) -> None:
        """Run ``work`` beside the loop, in a greenlet of its own."""
        thread = greenlet.greenlet(work, self.world.hub)
        self.world.kept.append(thread)
        self.world.after(self.chance.randint(20, 200) * US, self.resume, thread)

    def resume(self, thread: greenlet.greenlet) -> None:
        if not self.alive:
            return
        if self.paused:
            self._held.append(thread)
        elif not thread.dead:
            self.world.enter(self, thread)
            if thread is not self.main and thread.dead:
                self.world.kept.remove(thread)

    # -- what happens to it -------------------------------------------------------

    def pause(self) -> None:
        """Stop it (SIGSTOP, a page fault storm, a frozen machine)."""
        self.paused = True
        if self.world.current is self:
            self._held.append(greenlet.getcurrent())
            self.world.hub.switch()

    def proceed(self) -> None:
        """Go on where it was stopped."""
        if not self.paused or not self.alive:
            return
        self.paused = False
        held, self._held = self._held, []
        for thread in held:
            self.world.after(self.chance.randint(0, 50) * US, self.resume, thread)
        self._turn_due_ns = None
        self.wake()

    def kill(self, *, silent: bool = False) -> None:
        """End it without a word; ``silent``: its machine is gone, so peers hear nothing."""
        if not self.alive:
            return
        self.alive = False
        self.machine.processes.remove(self)
        for sock in list(self.sockets.values()):
            sock.process_died(silent)
        for resource in self.resources:
            resource.process_died()
        self.on_exit()
        if self.world.current is self:
            self.world.kept.append(greenlet.getcurrent())
            self.world.hub.switch()
