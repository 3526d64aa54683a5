"""Runs seeds in forks of this process, which has imported everything once."""

from __future__ import annotations

import os
import pickle
import select
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

from tests.simulation.scenarios import SCENARIOS
from tests.simulation.world import drawn

if TYPE_CHECKING:
    from tests.simulation.knobs import Knobs


@dataclass
class Result:
    """What one run came to."""

    seed: int
    digest: str = ""
    findings: list[tuple[str, str]] = field(default_factory=list)
    faults: list[Any] = field(default_factory=list)
    events: int = 0
    ops: int = 0
    seconds: float = 0.0
    """Of one core."""
    knobs: Knobs | None = None
    happenings: Counter[tuple[str, str]] = field(default_factory=Counter)


class Runner:
    """Runs one scenario, some seeds at a time."""

    def __init__(
        self, scenario: str, workers: int, *, stop: str = "", areas: Sequence[str] = ()
    ) -> None:
        """A run ends once the check ``stop`` has found something; only seeds with one of these
        ``areas`` are run, if there are any."""
        self._make = SCENARIOS[scenario]()
        self._workers = workers
        self._stop, self._areas = stop, frozenset(areas)

    def run(
        self,
        seed: int,
        *,
        tell: bool = False,
        faults: Sequence[Any] | None = None,
        knobs: Knobs | None = None,
    ) -> Result:
        """One seed, in a fork."""
        pid, pipe = self._fork(seed, tell, faults, knobs)
        return _finished(pid, pipe, seed)

    def each(self, first: int, seeds: int | None) -> Iterator[Result]:
        """All of them, as they end."""
        all_of_them = count(first) if seeds is None else range(first, first + seeds)
        numbers = filter(self._is_asked, all_of_them)
        running: dict[int, tuple[int, int]] = {}
        try:
            while True:
                while len(running) < self._workers and (seed := next(numbers, None)) is not None:
                    pid, pipe = self._fork(seed)
                    running[pipe] = (pid, seed)
                if not running:
                    return
                for pipe in select.select(list(running), [], [])[0]:
                    pid, seed = running.pop(pipe)
                    yield _finished(pid, pipe, seed)
        finally:
            for pipe, (pid, _) in running.items():
                os.kill(pid, 9)
                os.waitpid(pid, 0)
                os.close(pipe)

    def _is_asked(self, seed: int) -> bool:
        return not self._areas or not self._areas.isdisjoint(
            self._make.draw_knobs(drawn(seed, "knobs")).areas
        )

    def _fork(
        self,
        seed: int,
        tell: bool = False,
        faults: Sequence[Any] | None = None,
        knobs: Knobs | None = None,
    ) -> tuple[int, int]:
        sys.stdout.flush()
        ours, theirs = os.pipe()
        pid = os.fork()
        if pid:
            os.close(theirs)
            return pid, ours
        try:
            os.close(ours)
            result = self._run_here(seed, _tell if tell else None, faults, knobs)
            with os.fdopen(theirs, "wb") as out:
                pickle.dump(result, out)
        except BaseException:
            import traceback  # noqa: PLC0415 - only here

            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(0)

    def _run_here(
        self,
        seed: int,
        tell: Callable[[str], None] | None,
        faults: Sequence[Any] | None,
        knobs: Knobs | None,
    ) -> Result:
        began_s = time.thread_time()
        system = self._make(seed, tell, faults, knobs)
        world = system.world
        world.last_check = self._stop
        system.run()
        return Result(
            seed,
            world.digest,
            [(one.check, one.text) for one in world.findings],
            system.faults,
            world.events,
            sum(actor.ops for actor in system.actors),
            time.thread_time() - began_s,
            system.knobs,
            world.happenings,
        )


def _tell(line: str) -> None:
    print(line)


def _finished(pid: int, pipe: int, seed: int) -> Result:
    with os.fdopen(pipe, "rb") as source:
        content = source.read()
    os.waitpid(pid, 0)
    if not content:
        return Result(seed, findings=[("simulator", "the run ended without a result")])
    result = pickle.loads(content)
    assert isinstance(result, Result)
    return result
