"""The faults of one run: a list, made before it begins, so that dropping one changes no other."""

from __future__ import annotations

import errno
import fnmatch
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tests.simulation.network import PARTLY
from tests.simulation.world import MS, S

WINDOWS_S = (0.05, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 15.0, 30.0)
"""Windows that the code has: flush, quiet, watch, farewell, renewals, leases, time-outs."""


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong: at a time, or at the n-th event whose name fits."""

    kind: str
    target: str
    at_ns: int = 0
    event: str = ""
    """A pattern of names of events; if empty, the time counts."""
    count: int = 1
    for_ns: int = 0
    number: int = 0
    """An errno, a bit, a number of bytes."""
    calls: tuple[str, ...] = ()

    def __str__(self) -> str:
        when = f"at event {self.count} of {self.event!r}" if self.event else f"{self.at_ns / S:.3f}"
        parts = [when, self.kind, self.target]
        if self.for_ns:
            parts.append(f"for {self.for_ns / S:.3f} s")
        if self.calls:
            parts.append(f"{'/'.join(self.calls)} {errno.errorcode.get(self.number, '')}")
        elif self.kind == "socket":
            parts.append(errno.errorcode.get(self.number, "one byte only"))
        elif self.number:
            parts.append(str(self.number))
        return " ".join(parts)


def duration_ns(chance: random.Random, longest_s: float) -> int:
    """From the windows of the code, or anything between 10 ms and the longest."""
    if chance.random() < 0.5:
        window_s = chance.choice([one for one in WINDOWS_S if one <= longest_s])
        return int(min(longest_s, window_s * chance.uniform(0.8, 1.5)) * S)
    return int(10 * MS * (longest_s * 100) ** chance.random())


ERRORS = (errno.EIO, errno.ENOSPC, errno.EMFILE, errno.EINTR)
CALLS = (
    ("open",), ("create",), ("read",), ("write",), ("write",), ("truncate",), ("sync", "sync_all"),
    ("rename",), ("remove",), ("list",), ("size",), ("make_folder",), ("write", "truncate"),
)  # fmt: skip
SOCKETS: dict[str, tuple[int, ...]] = {
    "accept": (errno.EMFILE, errno.ENOBUFS, errno.ECONNABORTED),
    "connect": (errno.EMFILE, errno.ECONNREFUSED, errno.ETIMEDOUT, errno.EADDRNOTAVAIL),
    "recv": (errno.ECONNRESET, errno.ETIMEDOUT, errno.ENOBUFS),
    "send": (errno.ECONNRESET, errno.EPIPE, errno.ENOBUFS, PARTLY),
    "shutdown": (errno.ENOTCONN,),
    "setsockopt": (errno.ENOBUFS,),
}
"""How each call on a socket fails. Python itself repeats those that a signal interrupts."""
WRITES = ("sync *", "sync *", "rename *", "write *")
EVENTS = ("rename *", "create *", "truncate *", "remove *", "write *", "sync *")


def draw(
    chance: random.Random,
    kinds: dict[str, tuple[float, tuple[str, ...]]],
    until_ns: int,
    most: int,
    events: Sequence[str] = EVENTS,
    longest_s: float = 40.0,
) -> list[Fault]:
    """Up to ``most`` faults; ``kinds`` gives the weight and the targets of each kind.

    ``events`` are the names that some are tied to, ``longest_s`` is the longest pause.
    """
    names = list(kinds)
    weights = [kinds[name][0] for name in names]
    faults = []
    for _ in range(chance.randint(0, most)):
        kind = chance.choices(names, weights)[0]
        target = chance.choice(kinds[kind][1])
        faults.append(_one(chance, kind, target, until_ns, events, longest_s))
    return sorted(faults, key=lambda fault: fault.at_ns)


def _one(
    chance: random.Random,
    kind: str,
    target: str,
    until_ns: int,
    events: Sequence[str],
    longest_s: float,
) -> Fault:
    fault = Fault(kind, target, chance.randrange(until_ns))
    details: dict[str, Any] = {}
    match kind:
        case "kill" | "pause" | "power" | "term" | "lose" | "kill_one" | "pause_one":
            is_pause = kind.startswith("pause")
            details["for_ns"] = duration_ns(chance, longest_s if is_pause else 5.0)
            if kind.endswith("_one"):
                details["number"] = chance.getrandbits(10)
            is_power = kind in {"power", "lose"}  # it matters between a write and its sync
            if chance.random() < (0.6 if is_power else 0.3):
                details["event"] = chance.choice(WRITES if is_power else events)
                details["count"] = int(2000 ** chance.random())
        case "store":
            details["number"] = chance.getrandbits(20)
            if chance.random() < 0.5:
                details["event"] = chance.choice(events)
                details["count"] = int(500 ** chance.random())
        case "disk":
            details["number"] = chance.choice(ERRORS)
            details["calls"] = chance.choice(CALLS)
        case "socket":
            call = chance.choice(list(SOCKETS))
            details["event"] = f"socket {call}"
            details["count"] = int(5000 ** chance.random())
            details["number"] = chance.choice(SOCKETS[call])
        case "cut":
            details["number"] = int(4 ** (chance.random() * 7))
        case "silence" | "slow" | "outage":
            details["for_ns"] = duration_ns(chance, 40.0)
        case "full":
            details["for_ns"] = duration_ns(chance, 5.0)
        case "flip" | "wipe" | "missing" | "damage":
            details["number"] = chance.getrandbits(40)
        case "clock":
            details["for_ns"] = int(chance.choice((-1, 1)) * 3_600 * S * chance.random() ** 3)
    return replace(fault, **details)


class EventFaults:
    """Strikes when the running code does what a fault is tied to."""

    def __init__(self, faults: list[Fault]) -> None:
        self._left = {fault: fault.count for fault in faults if fault.event}

    def due(self, name: str, process: str) -> list[Fault]:
        """The faults that this event sets off."""
        if not self._left:
            return []
        due = []
        for fault in list(self._left):
            if fault.target == process and fnmatch.fnmatchcase(name, fault.event):
                self._left[fault] -= 1
                if not self._left[fault]:
                    del self._left[fault]
                    due.append(fault)
        return due
