"""The steps of one run: a list, made before it begins, so that dropping one changes no other."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

OURS: dict[str, float] = {
    "ingest": 12, "merge": 6, "expire": 4, "latest": 5, "backfill": 2, "contract": 1, "clock": 2,
    "move": 2, "copy": 2, "sweep": 1, "retain": 1,
}  # fmt: skip
OTHERS: dict[str, float] = {
    "append": 3, "append_odd": 2, "append_bare": 1, "delete": 3, "delete_rows": 4, "rewrite": 4,
    "rewrite_bare": 1, "add_field": 2, "drop_field": 1, "rename": 1, "tag": 2, "branch": 1,
    "roll_back": 3, "set_current": 2, "respell": 3, "add_column": 1, "expire_theirs": 2,
    "statistics": 1, "drop": 0.5,
}  # fmt: skip
"""How often each step is drawn; those of others are by other programs."""
INSIDE = ("ingest", "merge", "latest", "backfill")
"""Steps of ours that another step may fall into, between what they read and their commit."""
WITHIN = [name for name in OURS | OTHERS if name not in ("copy", "move", "sweep")]
DISTURBING = ("delete_rows", "delete_rows", "delete_rows", "delete", "rewrite", "roll_back")
"""What a step of ours has to notice."""
THEMES = (
    ("merge", "delete_rows"), ("tag", "expire", "ingest"), ("latest", "rewrite"),
    ("add_field", "drop_field"), ("roll_back", "set_current", "expire"), ("respell", "copy"),
    ("roll_back", "append", "expire_theirs"), ("roll_back", "retain", "ingest"),
)  # fmt: skip
"""Steps of which half of the runs have many: some mistakes need several of them together."""
OF_LATEST = ("delete", "delete_rows", "rewrite", "rewrite_bare", "add_field", "drop_field",
             "tag", "roll_back", "merge", "expire", "sweep", "expire_theirs", "statistics",
             "drop")  # fmt: skip
"""Steps that may also be done to the table of newest records."""


@dataclass(frozen=True)
class Step:
    """One step, and one that falls into it."""

    name: str
    table: str = "records"
    number: int = 0
    """What its details are drawn from."""
    inner: Step | None = None
    for_ns: int = 0
    """Nothing: steps take no time, but are shortened as faults are."""

    def __str__(self) -> str:
        text = self.name + (" of the newest records" if self.table == "latest" else "")
        return text + (f", and meanwhile {self.inner}" if self.inner else "")


def draw(chance: random.Random, most: int) -> list[Step]:
    """Steps of a run; it begins with an ingest."""
    few = {name: weight for name, weight in (OURS | OTHERS).items() if chance.random() < 0.7}
    weights = {"ingest": 10.0, **few}
    if chance.random() < 0.5:
        weights |= dict.fromkeys(chance.choice(THEMES), 15)
    found = [Step("ingest", number=chance.getrandbits(30))]
    for _ in range(chance.randint(3, most)):
        step = _one(chance, weights)
        if step.name in INSIDE and chance.random() < 0.5:
            step = replace(step, table="records")  # only its files are merged
            inner = _disturbing(chance, step, {n: w for n, w in weights.items() if n in WITHIN})
            step = replace(step, inner=inner)
        found.append(step)
    return found


def _disturbing(chance: random.Random, step: Step, weights: dict[str, float]) -> Step:
    """What falls into a step: often something that it has to notice."""
    if chance.random() < 0.5:
        return _one(chance, weights)
    table = chance.choice(["latest", step.table]) if step.name == "latest" else step.table
    return Step(chance.choice(DISTURBING), table, chance.getrandbits(30))


def _one(chance: random.Random, weights: dict[str, float]) -> Step:
    name = chance.choices(list(weights), list(weights.values()))[0]
    table = "latest" if name in OF_LATEST and chance.random() < 0.35 else "records"
    return Step(name, table, chance.getrandbits(30))
