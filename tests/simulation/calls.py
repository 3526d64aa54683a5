"""Each call to the object store, and each call on a socket, fails once, in every way that it may.

A script is a short run without other faults than those that bring about what has to be covered: a
planned change of the lead, a kill, a lost disk. Its calls are counted once; then each case is the
same run, up to the call that fails. Models of what was promised look at every run.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from tests.simulation.bucket import CONFLICT, KINDS, WAYS
from tests.simulation.forks import Result, Runner
from tests.simulation.knobs import Knobs
from tests.simulation.schedule import SOCKETS, Fault
from tests.simulation.system import AREAS
from tests.simulation.world import S

_SEED = 1
_STORE = ("put", "get", "list", "delete")


@dataclass(frozen=True)
class Script:
    """A short run, whose calls are to fail."""

    scenario: str
    knobs: Knobs
    faults: tuple[Fault, ...]
    calls: tuple[str, ...]
    """The first words of the events that stand for these calls."""


_REPLICATED = Knobs(
    areas=("store", "replicated queue", "replicated stream", "pubsub"),
    settings={"replicate_lease_ms": 1_000, "replicate_keep_ms": 0, "segment_bytes": 16 * 1024},
    modules={"nexo.limits:LOG_OBJECTS_PER_BASE": 3, "nexo.limits:BUCKET_LOOK_S": 2.0},
    faults_s=30,
)
_MOVES = (
    Fault("term", "m0", 8 * S),
    Fault("kill", "m1", 14 * S, for_ns=S),
    Fault("lose", "m1", 20 * S, for_ns=S),
    Fault("term", "m0", 26 * S),
)

SCRIPTS = {
    "store": Script("two", _REPLICATED, _MOVES, _STORE),
    "replica-sockets": Script("two", _REPLICATED, _MOVES, ("socket",)),
    "sockets": Script("one", Knobs(areas=tuple(AREAS), faults_s=5), (), ("socket",)),
}


def _ways(event: str) -> tuple[int, ...]:
    """What `Fault.number` may be for a call."""
    word, _, what = event.partition(" ")
    if word == "socket":
        return SOCKETS[what]
    ways = [number for number, way in enumerate(WAYS) if way != CONFLICT or word == "put"]
    return tuple(number * 16 + -number * 16 % 3 for number in ways)


def cases(script: Script, counted: Result) -> dict[str, list[Fault]]:
    """By kind of call: each call of the run that was counted, in each of its ways."""
    found: dict[str, list[Fault]] = {}
    for (machine, event), count in sorted(counted.happenings.items()):
        word, _, what = event.partition(" ")
        if word in script.calls and (word == "socket" or what in KINDS):
            kind = "socket" if word == "socket" else "store"
            found.setdefault(event, []).extend(
                Fault(kind, machine, 0, event, nth, 0, way)
                for nth in range(1, count + 1)
                for way in _ways(event)
            )
    return found


def _drawn(kinds: dict[str, list[Fault]], most: int, seed: int) -> list[Fault]:
    """As many of each kind: those that are rare matter as much."""
    chance, drawn = random.Random(seed), list[Fault]()
    for faults in kinds.values():
        chance.shuffle(faults)
    while len(drawn) < most and any(kinds.values()):
        drawn += [faults.pop() for faults in kinds.values() if faults]
    return drawn[:most]


def run(script: Script, most: int, seed: int) -> Iterator[tuple[Fault | str, Result]]:
    """The run without a failing call, and ``most`` of the cases; all, if it is 0."""
    runner = Runner(script.scenario, 1)
    counted = runner.run(_SEED, faults=script.faults, knobs=script.knobs)
    yield "none", counted
    kinds = cases(script, counted)
    for fault in _drawn(kinds, most or sum(map(len, kinds.values())), seed):
        faults = [*script.faults, fault]
        yield fault, runner.run(_SEED, faults=faults, knobs=script.knobs)
