"""The pipeline after a takeover, with the lake's files in an object store (SPEC I4, N5)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pyspark_nexo.pipeline import Pipeline
from tests.integration.test_replica_lake import lose_between, s3
from tests.s3_server import S3Server

__all__ = ["s3"]  # a fixture

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.skipif(not os.environ.get("SOAK"), reason="as without Spark, but slower: set SOAK=1")
def test_the_pipeline_goes_on_after_a_takeover_with_each_record_once(
    spark: SparkSession, s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_between(lambda url, lake: Pipeline(spark, lake, url).run_once(), s3, tmp_path, monkeypatch)
