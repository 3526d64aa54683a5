"""In which order, and in which units, the workers of a parallel run take the tests.

A unit is a file, but all of Spark's tests are one: a Spark takes seconds to start, and its JVM
uses every core. The suites with the longest files come first, so that no worker is left with
such a file when the others have nothing more to do.
"""

from __future__ import annotations

import pytest
from xdist.scheduler import LoadFileScheduling

SPARK = "tests/spark/"
LONGEST_FIRST = ("spark", "crash", "attack", "integration", "browser", "frameworks", "kafka")


def place(item: pytest.Item) -> int:
    """Where the item's suite is in the order; those that are not named come last."""
    suite = item.nodeid.removeprefix("tests/").split("/", 1)[0]
    return LONGEST_FIRST.index(suite) if suite in LONGEST_FIRST else len(LONGEST_FIRST)


class InTurn(LoadFileScheduling):  # type: ignore[misc]
    """Hands out files, and Spark's all at once, in the order of the collection."""

    def _split_scope(self, nodeid: str) -> str:
        return SPARK if nodeid.startswith(SPARK) else str(super()._split_scope(nodeid))
