"""A table that was made anew takes the old one's place at once, whatever dies (P7).

The new table's rows are written here without Spark; processes that die are killed for real.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from nexo.errors import Conflict
from nexo.lake.catalog import Lake
from nexo.lake.changes.keyed import find_keyed
from nexo.lake.changes.terms import CHANGES_SUFFIX
from nexo.lake.files import FileWriter, target
from nexo.lake.folder import swapping
from nexo.lake.folder.swapping import MADE_FOR, checkpoints_of, drop_expired
from nexo.lake.once import BatchMark, last_batches
from nexo.lake.settings import LakeSettings
from nexo.lake.tables import USER
from nexo.lake.user_tables import TableShape, ensure_user_table, get_user_table, user_tables
from pyspark_nexo.code.definitions import CodePlace, Definitions, OutputDefinition, OutputKind
from pyspark_nexo.code.graph import shape_of
from pyspark_nexo.code.refreshing import KEPT_MS, Refresh
from pyspark_nexo.code.writers import check_same
from pyspark_nexo.tables.writing import commit_rows

POINTS = ["before the new table", "filled", "swapped"]
OUTPUT = OutputDefinition("Gold.t", OutputKind.STREAMING, CodePlace("gold.sql", 1))
CODE = Definitions({"Gold.t": OUTPUT})

CHILD = """
import os, signal, sys
from pathlib import Path
from nexo.lake.folder import swapping
from nexo.lake.catalog import Lake
from nexo.lake.settings import LakeSettings
from tests.spark.test_refreshing import refresh

folder, point = sys.argv[1:]
def die():
    os.kill(os.getpid(), signal.SIGKILL)
if point.isdigit():
    moved, left = swapping._moved, [int(point)]
    def moving(*given):
        if not left[0]:
            die()
        left[0] -= 1
        return moved(*given)
    swapping._moved = moving
refresh(Lake(LakeSettings(Path(folder))), "new", lambda at: die() if at == point else None)
"""


def append(lake: Lake, name: str, value: str, number: int, shape: TableShape | None = None) -> None:
    """A row, as a batch of a flow."""
    table = ensure_user_table(lake, name, pa.schema([("v", pa.string())]), shape)
    files = FileWriter(target(table), "w-0").save([pa.table({"v": [value]})])
    commit_rows(table, BatchMark(f"flow f {name}", number), files)


def refresh(lake: Lake, value: str, probe: Any = lambda _: None) -> str | None:
    work = Refresh(lake, "Gold.t", probe)
    (output,) = work.definitions(CODE).outputs.values()

    def fill() -> None:
        for number in range(2):
            append(lake, work.made, value, number, shape_of(output))
        append(lake, work.made + "_dead_letters", value, 0)
        folder = checkpoints_of(lake, get_user_table(lake, work.made))
        folder.mkdir(parents=True)

    return work.run(fill)


def values(lake: Lake, name: str = "Gold.t") -> list[str]:
    found: list[str] = get_user_table(lake, name).scan().to_arrow().column("v").to_pylist()
    return found


def names(lake: Lake) -> list[str]:
    return sorted(table.properties[USER] for table in user_tables(lake))


@pytest.fixture
def filled(lake: Lake) -> Lake:
    """A table and its dead letters."""
    append(lake, "Gold.t", "old", 7)
    append(lake, "Gold.t_dead_letters", "old", 7)
    checkpoints_of(lake, get_user_table(lake, "Gold.t")).mkdir(parents=True)
    return lake


def test_the_new_table_takes_the_name_and_the_old_one_is_kept_for_a_week(filled: Lake) -> None:
    before = checkpoints_of(filled, get_user_table(filled, "Gold.t"))
    aside = refresh(filled, "new")
    assert aside is not None
    assert values(filled) == ["new", "new"]
    assert values(filled, "Gold.t_dead_letters") == ["new"]
    assert values(filled, aside) == ["old"]
    assert names(filled) == sorted(
        ["Gold.t", "Gold.t_dead_letters", aside, f"{aside}_dead_letters"]
    )
    table = get_user_table(filled, "Gold.t")
    assert MADE_FOR not in table.properties
    assert list(last_batches(table.properties).values()) == [1]
    after = checkpoints_of(filled, table)
    assert before.exists()
    assert after.exists()
    assert checkpoints_of(filled, get_user_table(filled, aside)) == before
    append(filled, "Gold.t", "later", 2)
    assert refresh(filled, "newer") not in (None, aside)
    at_ms = int(aside.rpartition("_")[2])
    assert drop_expired(filled, at_ms + KEPT_MS - 1) == []
    assert set(drop_expired(filled, at_ms + KEPT_MS)) == {aside, f"{aside}_dead_letters"}
    assert not before.exists()
    assert after.exists()
    assert values(filled) == ["newer", "newer"]


def test_a_table_that_is_not_there_is_made(lake: Lake) -> None:
    assert refresh(lake, "new") is None
    assert names(lake) == ["Gold.t", "Gold.t_dead_letters"]


@pytest.mark.parametrize("point", [*POINTS, "0", "1", "2", "3"])
def test_a_refresh_that_is_killed_leaves_the_old_or_the_new(filled: Lake, point: str) -> None:
    """Between any two steps, those within the catalog's transaction too: 4 tables are renamed."""
    folder = filled.settings.folder
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(folder), point], cwd=Path.cwd(), check=False
    )
    assert done.returncode == -signal.SIGKILL
    lake = Lake(LakeSettings(folder))
    state = "new" if point == "swapped" else "old"
    assert set(values(lake)) == {state}
    assert values(lake, "Gold.t_dead_letters") == [state]
    assert refresh(lake, "newest") is not None
    assert values(lake) == ["newest", "newest"]
    unfinished = [name for name in names(lake) if "__new_" in name]
    assert unfinished == []


def test_a_commit_to_the_old_table_in_the_last_moment_is_kept(
    filled: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved, others = swapping._moved, iter(["late"])

    def moving(*given: Any) -> bool:
        return moved(*given)

    def attempted(*given: Any) -> bool:
        for value in others:
            append(Lake(filled.settings), "Gold.t", value, 8)
        return attempt(*given)

    attempt = swapping._attempted
    monkeypatch.setattr(swapping, "_moved", moving)
    monkeypatch.setattr(swapping, "_attempted", attempted)
    aside = refresh(filled, "new")
    assert aside is not None
    assert sorted(values(filled, aside)) == ["late", "old"]
    assert values(filled) == ["new", "new"]
    folder = Path(get_user_table(filled, aside).location().removeprefix("file://"))
    assert len(list(folder.glob("metadata/*.metadata.json"))) <= 4


def test_who_began_with_the_old_table_writes_nothing_into_the_new_one(filled: Lake) -> None:
    old = get_user_table(filled, "Gold.t")
    refresh(filled, "new")
    files = FileWriter(target(old), "w-0").save([pa.table({"v": ["late"]})])
    with pytest.raises(Conflict, match="replaced by another one"):
        commit_rows(old, BatchMark("flow f", 9), files)
    assert not Path(files[0].path.removeprefix("file://")).exists()
    with pytest.raises(Conflict, match="made anew since the flow began"):
        check_same(get_user_table(filled, "Gold.t"), "")
    assert values(filled) == ["new", "new"]


def test_two_refreshes_of_one_table_leave_one_result(filled: Lake) -> None:
    def second(point: str) -> None:
        if point == "filled":
            refresh(Lake(filled.settings), "second")

    with pytest.raises(Conflict, match="another refresh"):
        refresh(filled, "first", second)
    assert values(filled) == ["second", "second"]


def test_tables_beside_one_of_keys_are_swapped_with_it(lake: Lake) -> None:
    from nexo.lake.changes.keyed import ensure_keyed  # noqa: PLC0415 - of this test alone
    from nexo.lake.changes.terms import KeyTerms  # noqa: PLC0415 - as above

    columns = pa.schema([("id", pa.int64()), ("v", pa.string())])
    terms = KeyTerms(("id",))
    ensure_keyed(lake, "Gold.t", columns, None, terms)
    before = get_user_table(lake, "Gold.t" + CHANGES_SUFFIX).metadata.table_uuid
    work = Refresh(lake, "Gold.t")
    (output,) = work.definitions(CODE).outputs.values()

    def fill() -> None:
        ensure_keyed(lake, work.made, columns, None, terms, shape_of(output))

    aside = work.run(fill)
    assert aside is not None
    now, old = find_keyed(lake, "Gold.t"), find_keyed(lake, aside)
    assert now is not None
    assert old is not None
    assert old.changes.metadata.table_uuid == before != now.changes.metadata.table_uuid
    ensure_keyed(lake, "Gold.t", columns, None, terms)  # finds all three as its own
    for each in (now.rows, now.changes, now.state):
        check_same(each, checkpoints_of(lake, now.rows).name)
