"""One run: steps of ours and of others, in any order and into one another, and a model beside."""

from __future__ import annotations

import os
import random
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from tests.simulation.lake import checks, others, ours
from tests.simulation.lake.site import Site, own_time
from tests.simulation.lake.steps import OTHERS, Step, draw
from tests.simulation.world import Finding
from tests.unit.lake import foreign

if TYPE_CHECKING:
    from pyiceberg.table import Table

MOST_STEPS = 14
for _name in ("fastavro", "pyiceberg.io.pyarrow", "pyiceberg_core", "nexo.lake.folder.catalog"):
    import_module(_name)  # before runs are forked, or each would import it again


@dataclass
class Story:
    """What a run is told to, and its hash."""

    tell: Callable[[str], None] | None
    findings: list[Finding] = field(default_factory=list)
    events: int = 0
    digest: str = ""
    happenings: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Faults are not tied to events here."""

    def add(self, line: str) -> None:
        self.events += 1
        self.digest = blake2b(f"{self.digest}\n{line}".encode(), digest_size=8).hexdigest()
        if self.tell is not None:
            self.tell(line)


@dataclass
class Counted:
    """How many steps were done."""

    ops: int = 0


class MixedWriters:
    """The scenario ``lake``."""

    def __init__(
        self,
        seed: int,
        tell: Callable[[str], None] | None = None,
        faults: Sequence[Step] | None = None,
        knobs: None = None,
    ) -> None:
        self._seed = seed
        chance = random.Random(f"{seed}:steps")
        self.faults = draw(chance, MOST_STEPS) if faults is None else list(faults)
        self.knobs = knobs
        self.world = Story(tell)
        self.actors = [Counted()]

    def run(self) -> None:
        os.environ["PYICEBERG_MAX_WORKERS"] = "1"
        memory = "/dev/shm" if Path("/dev/shm").is_dir() else None  # where syncing costs nothing
        with tempfile.TemporaryDirectory(prefix="nexo-lake-", dir=memory) as folder:
            site = Site(Path(folder), self._seed)
            with own_time(site):
                self._run(site)

    def _run(self, site: Site) -> None:
        try:
            for number, step in enumerate(self.faults):
                self.world.add(str(step))
                self._do(site, step)
                chance = random.Random(f"{self._seed}:check {number}")
                if chance.random() < 0.3:
                    checks.check(site, chance)
            self._settle(site)
        except Finding as finding:
            self._found(finding)
        except Exception as error:  # whatever a step raises
            where = traceback.format_exc(limit=-6)
            self._found(Finding("refused", f"{type(error).__name__}: {error}\n{where}"))

    def _settle(self, site: Site) -> None:
        """In the end everything is taken and brought into order, by commits of Nexo alone."""
        chance = random.Random(f"{self._seed}:end")
        checks.check(site, chance, thorough=True)
        for name in ("expire", "ingest", "latest", "merge", "sweep"):
            self._do(site, Step(name, number=chance.getrandbits(30)))
        checks.check(site, chance, thorough=True)
        checks.last(site)

    def _found(self, finding: Finding) -> None:
        self.world.add(f"FINDING {finding}")
        self.world.findings.append(finding)

    def _do(self, site: Site, step: Step) -> None:
        """One step, and what falls into it, once."""
        self.actors[0].ops += 1
        site.now_ns += 1_000_000_000
        pending = [step.inner] if step.inner is not None else []

        def meanwhile() -> None:
            while pending:
                self._do(site, pending.pop())

        act(site, step, meanwhile)
        site.note()


@dataclass
class Turn:
    """A step that is being done, to a table that is there."""

    site: Site
    name: str
    """Which table."""
    table: Table
    chance: random.Random
    meanwhile: Callable[[], None]


ACTS: dict[str, Callable[[Turn], None]] = {
    "merge": lambda turn: ours.merge(turn.table, turn.chance, turn.meanwhile),
    "expire": lambda turn: ours.expire(turn.table, turn.chance),
    "sweep": lambda turn: ours.sweep(turn.table, turn.chance),
    "latest": lambda turn: ours.newest(turn.site, turn.meanwhile),
    "backfill": lambda turn: ours.fill(turn.site, turn.table, turn.meanwhile),
    "contract": lambda turn: ours.contract(turn.site, turn.table),
    "retain": lambda turn: ours.retain(turn.site),
    "move": lambda turn: ours.move(turn.site),
    "copy": lambda turn: ours.copy(turn.site),
    "append": lambda turn: others.insert(turn.site, turn.table, turn.chance),
    "append_odd": lambda turn: others.insert(turn.site, turn.table, turn.chance, odd=True),
    "append_bare": lambda turn: others.insert(
        turn.site, turn.table, turn.chance, odd=True, metrics=False
    ),
    "delete": lambda turn: others.delete(turn.site, turn.name, turn.table, turn.chance),
    "delete_rows": lambda turn: others.delete_rows(turn.site, turn.name, turn.table, turn.chance),
    "rewrite": lambda turn: others.rewrite(turn.table, turn.chance),
    "rewrite_bare": lambda turn: others.rewrite(turn.table, turn.chance, metrics=False),
    "add_field": lambda turn: others.add_field(turn.site, turn.table, turn.chance),
    "drop_field": lambda turn: others.drop_field(turn.table, turn.chance),
    "rename": lambda turn: others.rename(turn.site, turn.table, turn.chance),
    "add_column": lambda turn: others.add_column(turn.site, turn.table),
    "tag": lambda turn: others.tag(turn.site, turn.table, turn.chance),
    "branch": lambda turn: others.tag(turn.site, turn.table, turn.chance, branch=True),
    "roll_back": lambda turn: others.roll_back(turn.site, turn.name, turn.table, turn.chance),
    "set_current": lambda turn: others.roll_back(
        turn.site, turn.name, turn.table, turn.chance, anywhere=True
    ),
    "respell": lambda turn: foreign.respell(turn.table),
    "expire_theirs": lambda turn: others.expire(turn.table, turn.chance),
    "statistics": lambda turn: others.add_statistics(turn.site, turn.table),
    "drop": lambda turn: others.drop(turn.site, turn.name, turn.table),
}
OWN_CATALOG = [each for each in OTHERS if each not in ("respell", "expire_theirs")]
"""What others may also do by PyIceberg's own catalog."""


def act(site: Site, step: Step, meanwhile: Callable[[], None]) -> None:
    """Do a step; one of a table that is not there yet does nothing."""
    chance = random.Random(step.number)
    if step.name == "ingest":
        ours.ingest(site, chance, meanwhile)
    elif step.name == "clock":
        ours.step_clock(site, chance)
    elif (table := site.table(step.table)) is None:
        return
    elif step.name in OWN_CATALOG and chance.random() < 0.5:
        with site.theirs(table) as same:
            ACTS[step.name](Turn(site, step.table, same, chance, meanwhile))
    else:
        ACTS[step.name](Turn(site, step.table, table, chance, meanwhile))
