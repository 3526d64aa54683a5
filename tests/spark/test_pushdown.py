"""Filters narrow what is read, and change nothing about what a query returns."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import datasource as spark_api

import nexo
from nexo.batch import Batch
from nexo.protocol.stream import PartitionInfo, StreamInfo
from pyspark_nexo.options import parse
from pyspark_nexo.reading.pushdown import EVERYTHING, NumberRange, number_ranges
from pyspark_nexo.reading.ranges import ReadRange, plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ENABLED = "spark.sql.python.filterPushdown.enabled"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Clockwork:
    """A stream of three partitions whose record n was written in millisecond n."""

    stream = "s"

    def describe(self) -> StreamInfo:
        return StreamInfo("s", 0, {}, [PartitionInfo(0, 100, 100, 0)] * 3, [])

    def offsets_at(self, time_ms: int) -> list[int]:
        return [min(max(time_ms, 0), 100)] * 3

    def read(self, partition: int, first: int, end: int) -> Iterator[Batch]:
        raise AssertionError("planning reads no records")


def planned(*filters: spark_api.Filter, **options: str) -> list[ReadRange]:
    given = parse({"stream": "s", "rowsPerTask": "1000"} | options)
    return plan(given, Clockwork(), number_ranges(filters))


def after_us(microseconds: int) -> datetime:
    return EPOCH + timedelta(microseconds=microseconds)


@pytest.mark.parametrize(
    ("filters", "partitions", "first", "end"),
    [
        ([], [0, 1, 2], 0, 100),
        ([spark_api.EqualTo(("partition",), 1)], [1], 0, 100),
        ([spark_api.In(("partition",), (1, 2))], [1, 2], 0, 100),
        ([spark_api.GreaterThan(("offset",), 10)], [0, 1, 2], 11, 100),
        (
            [spark_api.GreaterThanOrEqual(("offset",), 10), spark_api.LessThan(("offset",), 12)],
            [0, 1, 2], 10, 12,
        ),
        ([spark_api.LessThanOrEqual(("offset",), 12)], [0, 1, 2], 0, 13),
        ([spark_api.EqualTo(("timestamp",), after_us(7_000))], [0, 1, 2], 7, 8),
        ([spark_api.GreaterThan(("timestamp",), after_us(7_000))], [0, 1, 2], 8, 100),
        ([spark_api.GreaterThanOrEqual(("timestamp",), after_us(7_001))], [0, 1, 2], 8, 100),
        ([spark_api.LessThan(("timestamp",), after_us(7_001))], [0, 1, 2], 0, 8),
        ([spark_api.LessThan(("timestamp",), after_us(7_000))], [0, 1, 2], 0, 7),
        ([spark_api.Not(spark_api.EqualTo(("partition",), 1))], [0, 1, 2], 0, 100),
        ([spark_api.EqualTo(("partition",), None)], [0, 1, 2], 0, 100),
        ([spark_api.EqualTo(("value",), b"x")], [0, 1, 2], 0, 100),
    ],
)  # fmt: skip
def test_comparisons_become_ranges(
    filters: list[spark_api.Filter], partitions: list[int], first: int, end: int
) -> None:
    assert planned(*filters) == [ReadRange(number, first, end) for number in partitions]


def test_filters_and_options_narrow_together() -> None:
    filters = [spark_api.GreaterThan(("offset",), 20), spark_api.LessThan(("offset",), 900)]
    options = {"startingTimestamp": "30", "endingTimestamp": "60", "partitions": "0"}
    assert planned(*filters, **options) == [ReadRange(0, 30, 60)]
    nothing = spark_api.GreaterThan(("offset",), 99)
    assert planned(nothing) == []


comparisons = st.sampled_from(
    [
        spark_api.EqualTo, spark_api.GreaterThan, spark_api.GreaterThanOrEqual,
        spark_api.LessThan, spark_api.LessThanOrEqual,
    ]
)  # fmt: skip


@given(st.lists(st.tuples(comparisons, st.integers(-5, 105))), st.integers(0, 100))
def test_no_record_that_passes_the_filters_is_left_out(
    chosen: list[tuple[Any, int]], offset: int
) -> None:
    tests = {
        "EqualTo": int.__eq__, "GreaterThan": int.__gt__, "GreaterThanOrEqual": int.__ge__,
        "LessThan": int.__lt__, "LessThanOrEqual": int.__le__,
    }  # fmt: skip
    passes = all(tests[kind.__name__](offset, value) for kind, value in chosen)
    found = number_ranges([kind(("offset",), value) for kind, value in chosen])
    assert (offset in found.get("offset", EVERYTHING)) == passes
    times = number_ranges([kind(("timestamp",), after_us(1_000 * value)) for kind, value in chosen])
    assert (offset in times.get("timestamp", EVERYTHING)) == passes


def test_spans_meet_where_both_hold() -> None:
    assert NumberRange(3, 10) & NumberRange(5) == NumberRange(5, 10)
    assert NumberRange(3) & NumberRange(5) == NumberRange(5)
    assert 4 not in NumberRange(3, 4)


# -- in Spark -----------------------------------------------------------------------


@pytest.fixture
def pushing(spark: SparkSession) -> Iterator[SparkSession]:
    spark.conf.set(ENABLED, "true")
    yield spark
    spark.conf.unset(ENABLED)


@pytest.fixture
def log(client: nexo.Client) -> Any:
    stream = client.stream("log").create(partitions=3)
    for n in range(60):
        stream.publish(b"%d" % n, key=f"k{n}")
    return stream


def load(spark: SparkSession, url: str, pushed: bool) -> DataFrame:
    options = {"url": url, "stream": "log", "pushFilters": str(pushed)}
    return spark.read.format("nexo").options(**options).load()


def test_queries_return_the_same_with_and_without(
    pushing: SparkSession, url: str, log: Any
) -> None:
    moment = datetime.fromtimestamp(log.read(0)[5].timestamp_ms / 1000, UTC)
    conditions = [
        "partition in (0, 2) and offset between 3 and 9",
        "offset >= 5 and offset < 7 or key = 'k1'",
        f"timestamp > timestamp '{moment.isoformat()}' and partition != 2",
    ]
    for condition in conditions:
        narrow, whole = (
            load(pushing, url, pushed).where(condition).select("partition", "offset").collect()
            for pushed in (True, False)
        )
        assert sorted(narrow) == sorted(whole), condition


def test_less_is_read(pushing: SparkSession, url: str, log: Any) -> None:
    frame = load(pushing, url, True).where("partition = 1 and offset >= 5 and offset < 7")
    assert frame.rdd.getNumPartitions() == 1
    assert load(pushing, url, False).where("partition = 1").rdd.getNumPartitions() == 3


@pytest.mark.xfail(
    strict=True,
    reason="Spark 4.1.4 and 4.3.0 read a DataFrame by the filters that were pushed last, wherever "
    "it is used; when this passes, pushFilters can be on by default",
)
def test_one_query_may_filter_a_frame_in_two_ways(
    pushing: SparkSession, url: str, log: Any
) -> None:
    frame = load(pushing, url, True)
    both = frame.where("partition = 0").union(frame.where("partition = 1"))
    assert {row.partition for row in both.select("partition").collect()} == {0, 1}
