"""The columns of a stream's table are the same wherever they are named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pa = pytest.importorskip("pyarrow")

from nexo.lake.own_columns import FIELD_IDS, LOGGED, OWN_COLUMNS, ROWS  # noqa: E402
from nexo.lake.schema import iceberg_schema  # noqa: E402
from nexo.sql.dialect import duck_type  # noqa: E402
from nexo.sql.views import COLUMNS, MESSAGES  # noqa: E402

DOCS = Path(__file__).parents[3] / "docs" / "guide"


def test_iceberg_types_and_ids_are_those_of_the_files_columns() -> None:
    fields = {each.name: each for each in iceberg_schema(ROWS).fields}
    for column in OWN_COLUMNS:
        assert str(fields[column.name].field_type) == column.iceberg[0]
        assert fields[column.name].field_id == FIELD_IDS[column.name]


def test_sql_and_spark_have_a_type_for_each_column_and_what_it_may_be_widened_to() -> None:
    spark = pytest.importorskip("pyspark_nexo.types").spark_schema(ROWS)
    for column in OWN_COLUMNS:
        assert all(duck_type(kind) for kind in column.iceberg)
    assert spark.simpleString() == (
        "struct<partition:int,offset:bigint,timestamp:timestamp,key:binary,value:binary,"
        "headers:string,value_type:int>"
    )


def test_batches_of_the_log_have_all_columns_but_their_partition() -> None:
    assert LOGGED.names == [name for name in ROWS.names if name != "partition"]


def test_messages_have_a_streams_columns_with_their_types() -> None:
    named = {each.name: each.type for each in COLUMNS[MESSAGES]}
    assert named.pop("topic") == pa.string()
    as_text = {"key": pa.string(), "value": pa.string()}
    assert named == {name: as_text.get(name, ROWS.field(name).type) for name in named}


def test_the_guides_name_every_column_with_its_type() -> None:
    shown: dict[str, str] = {}
    for line in (DOCS / "pipeline.md").read_text().splitlines():
        if found := re.fullmatch(r"\| (`[^|]+`) \| ([a-z, ]+)(?: \(UTC\))? \|.*\|", line):
            names = re.findall(r"`(\w+)`", found[1])
            kinds = found[2].strip().split(", ")
            shown |= dict(zip(names, kinds * len(names) if len(kinds) == 1 else kinds, strict=True))
    wanted = {each.name: each.iceberg[0].removesuffix("tz") for each in OWN_COLUMNS}
    assert {name: shown.get(name) for name in wanted} == wanted
    listed = ", ".join(f"`{name}`" for name in ROWS.names)
    assert listed in (DOCS / "sql.md").read_text()
