"""Tables made anew from the history of their inputs, beside those that are being read.

The flows of a table run once into another one, with checkpoints of their own. Then all that belongs
to it takes the table's name in one transaction; each table says where its checkpoints are, so they
change with it. The old one is kept for a week under another name. A refresh that dies leaves the
old table as it was, and what it had made is removed by the next one, or after a week.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from nexo.errors import Conflict, InvalidInput, NotFound
from nexo.lake.catalog import Lake
from nexo.lake.changes.terms import CHANGES_SUFFIX, STATE_SUFFIX
from nexo.lake.folder.swapping import (
    CHECKPOINT,
    KEPT_UNTIL,
    MADE_FOR,
    Renaming,
    checkpoints_of,
    drop,
    rename_together,
)
from nexo.lake.progress import now_ms
from nexo.lake.tables import BESIDE, USER, table_name
from nexo.lake.user_tables import find_user_table, user_tables
from pyspark_nexo.code.definitions import Definitions, OutputKind
from pyspark_nexo.code.writers import LETTERS_SUFFIX
from pyspark_nexo.tiering import Probe, no_probe

KEPT_MS = 7 * 86_400_000
_SUFFIXES = ("", STATE_SUFFIX, CHANGES_SUFFIX, LETTERS_SUFFIX)


def check_refreshed(definitions: Definitions, names: Sequence[str]) -> None:
    """Raise unless these are tables that the code fills."""
    for name in names:
        output = definitions.outputs.get(name)
        if output is None:
            known = ", ".join(sorted(definitions.outputs))
            raise NotFound(f"--full {name}: known are {known}")
        if output.kind not in (OutputKind.STREAMING, OutputKind.VIEW):
            raise InvalidInput(f"--full {name}: it is a {output.kind.value}, not a table")


@dataclass(slots=True)
class Refresh:
    """Makes one table anew."""

    lake: Lake
    name: str
    probe: Probe = no_probe
    made: str = field(init=False)
    """What the new table is called until it is complete."""
    _at_ms: int = field(default_factory=now_ms)

    def __post_init__(self) -> None:
        self.made = f"{self.name}__new_{self._at_ms}"

    def definitions(self, known: Definitions) -> Definitions:
        """The code's, with the new table for the old one, and without all other tables."""
        output = known.outputs[self.name]
        properties = {
            **output.properties,
            CHECKPOINT: table_name(self.made),
            MADE_FOR: self.name,
            KEPT_UNTIL: str(self._at_ms + KEPT_MS),
        }
        outputs = {self.made: replace(output, name=self.made, properties=properties)}
        views = {n: o for n, o in known.outputs.items() if o.kind == OutputKind.TEMPORARY}
        flows = {
            flow.name: replace(flow, target=self.made) if flow.target == self.name else flow
            for flow in known.flows.values()
            if flow.target in {self.name, *views}
        }
        return Definitions(outputs | views, flows, known.digest)

    def run(self, fill: Callable[[], None]) -> str | None:
        """Make the new table by ``fill``, and swap; returns what the old one is called now."""
        self.probe("before the new table")
        remove_unfinished(self.lake, self.name)
        fill()
        self.probe("filled")
        aside = self._swap()
        self.probe("swapped")
        return aside

    def _swap(self) -> str | None:
        if find_user_table(self.lake, self.made) is None:
            raise Conflict(
                f"table {self.made!r} was removed while it was made: another refresh of "
                f"{self.name!r} began meanwhile"
            )
        known, aside = find_user_table(self.lake, self.name), f"{self.name}__until_{self._at_ms}"
        kept = {
            KEPT_UNTIL: str(self._at_ms + KEPT_MS),
            CHECKPOINT: table_name(self.name)
            if known is None
            else checkpoints_of(self.lake, known).name,
        }
        new: Mapping[str, str] = {CHECKPOINT: table_name(self.made)}
        old = [self._renaming(self.name, aside, suffix, kept) for suffix in _SUFFIXES]
        taking = [self._renaming(self.made, self.name, suffix, new) for suffix in _SUFFIXES]
        rename_together(self.lake, [*old, *taking])
        return None if known is None else aside

    def _renaming(self, old: str, new: str, suffix: str, given: Mapping[str, str]) -> Renaming:
        beside = {BESIDE: new} if suffix in (STATE_SUFFIX, CHANGES_SUFFIX) else {}
        removed = () if KEPT_UNTIL in given else (KEPT_UNTIL, MADE_FOR)
        return Renaming(old + suffix, new + suffix, {**given, **beside}, removed)


def remove_unfinished(lake: Lake, name: str) -> None:
    """Remove what refreshes of a table have left that died."""
    for table in list(user_tables(lake)):
        if table.properties.get(MADE_FOR) == name:
            _remove(lake, table.properties[USER])


def _remove(lake: Lake, made: str) -> None:
    """Remove a table, and before it those beside it."""
    for suffix in reversed(_SUFFIXES):
        if (table := find_user_table(lake, made + suffix)) is not None:
            drop(lake, table, list(lake.every()))
