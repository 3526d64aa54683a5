"""``--full``: tables that are made anew, from all that their inputs have.

The old table stays in the lake under another name until somebody drops it. Checkpoints go first: a
run that is cut off in between is refused until it is asked for again, and loses nothing.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from nexo.errors import InvalidInput, NotFound
from nexo.lake.catalog import Lake
from nexo.lake.changes.keyed import CHANGES_SUFFIX, STATE_SUFFIX
from nexo.lake.progress import now_ms
from nexo.lake.tables import table_name
from nexo.lake.user_tables import set_user_table_aside
from pyspark_nexo.code.definitions import Definitions, OutputKind
from pyspark_nexo.code.writers import LETTERS_SUFFIX

CHECKPOINTS = "flows"
"""Where the checkpoints are, below the lake's folder."""
_SUFFIXES = ("", STATE_SUFFIX, CHANGES_SUFFIX, LETTERS_SUFFIX)


def checkpoints(lake: Lake, table: str) -> Path:
    """Where Spark keeps how far the flows of a table are."""
    return lake.settings.folder.absolute() / CHECKPOINTS / table_name(table)


def begin_anew(lake: Lake, definitions: Definitions, names: Sequence[str]) -> list[str]:
    """Set tables aside, with all that belongs to them; returns what they are called now."""
    for name in names:
        output = definitions.outputs.get(name)
        if output is None:
            known = ", ".join(sorted(definitions.outputs))
            raise NotFound(f"--full {name}: known are {known}")
        if output.kind not in (OutputKind.STREAMING, OutputKind.VIEW):
            raise InvalidInput(f"--full {name}: it is a {output.kind.value}, not a table")
    aside = []
    for name in names:
        if (folder := checkpoints(lake, name)).exists():
            shutil.rmtree(folder)
        until_ms = now_ms()
        moved = [set_user_table_aside(lake, name + suffix, until_ms) for suffix in _SUFFIXES]
        aside += [each for each in moved[:1] if each is not None]
    return aside
