"""Rows of Spark SQL are shown without Python in them, and in UTC."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

from nexo.cli import cells
from nexo.cli.lake import sql_cells


@pytest.fixture
def tokyo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine that is nine hours ahead."""
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("tokyo")
def test_times_are_told_in_utc_wherever_the_machine_is() -> None:  # SPEC I5, K5
    local = datetime(2026, 1, 1, tzinfo=UTC).astimezone().replace(tzinfo=None)  # as Spark does
    assert local.hour == 9
    assert sql_cells.field(local) == "2026-01-01T00:00:00Z"
    assert sql_cells.plain_json({"at": [local]}) == {"at": ["2026-01-01T00:00:00Z"]}
    assert sql_cells.read((local, local, None), {1, 2}) == (local, "2026-01-01T09:00:00", None)


def test_fields_of_lines_are_text_that_other_programs_read() -> None:
    given = [None, "", True, 1.5, Decimal("1.10"), b"text", b"\xff", date(2026, 1, 1), {"a": [1]}]
    shown = [None, "", "true", 1.5, Decimal("1.10"), "text", "/w==", "2026-01-01", '{"a": [1]}']
    assert list(map(sql_cells.field, given)) == shown


def test_lines_of_csv_tell_null_from_empty_text_as_postgresql_does() -> None:  # SPEC I5, K5
    row = map(sql_cells.field, [None, "", 0, b"", "a,b", 'say "a"', "two\nlines", " "])
    assert sql_cells.csv_line(row) == ',"",0,"","a,b","say ""a""","two\nlines", \r\n'


@pytest.mark.parametrize("text", ["plain", "", ",", '"', '""', "\r", "\n", "\r\n", " x ", "ö", "'"])
def test_lines_of_csv_are_read_back(text: str) -> None:  # SPEC K5
    line = sql_cells.csv_line([text, "next"])
    assert list(csv.reader(io.StringIO(line, newline=""))) == [[text, "next"]]


def test_json_has_no_word_that_json_does_not_know() -> None:
    found = sql_cells.plain_json({1: float("nan"), "b": bytearray(b"x"), "l": (float("inf"),)})
    text = json.dumps(found, default=cells.plain, allow_nan=False)
    assert json.loads(text) == {"1": "nan", "b": {"base64": "eA=="}, "l": ["inf"]}


def test_columns_of_one_name_are_told_apart() -> None:
    assert list(sql_cells.apart(["key", "key", "n", "key_2", "key"])) == [
        "key", "key_2", "n", "key_2_2", "key_3",
    ]  # fmt: skip
