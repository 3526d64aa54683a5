"""Every snippet of a page that shows Spark runs, as those of the other pages do, on the suite's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.test_docs import WITH_SPARK, named, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("page", WITH_SPARK, ids=named)
def test_the_snippets_of_a_page_run(
    page: Path, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped: list[SparkSession] = []

    def stop(session: SparkSession) -> None:
        """Only note it: the tests after this one use the session too."""
        stopped.append(session)

    monkeypatch.setattr(type(spark), "stop", stop)
    run(page, tmp_path)
    assert stopped == [spark]
