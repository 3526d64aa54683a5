"""Faults on real processes under load, in short; ``make soak`` does the same for long.

SPEC A2, A7, B3, C3, D7, E3, F6 and the table of faults in MEASURE.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.faults import (
    FreezeOneBroker,
    KillEverything,
    KillOneBroker,
    Row,
    StopEverything,
    inflict,
)

SEED = 20_261_115


def assert_clean(rows: list[Row]) -> None:
    assert [row for row in rows if not row.clean] == []
    assert all(row.operations for row in rows), "every load must have worked"


@pytest.mark.slow
async def test_nothing_confirmed_is_lost_when_everything_is_killed(tmp_path: Path) -> None:
    assert_clean(await inflict(KillEverything(), tmp_path, SEED, 3))


@pytest.mark.slow
async def test_nothing_confirmed_is_lost_when_one_broker_is_killed(tmp_path: Path) -> None:
    assert_clean(await inflict(KillOneBroker(), tmp_path, SEED, 4))


@pytest.mark.slow
async def test_nothing_confirmed_is_lost_by_a_graceful_stop(tmp_path: Path) -> None:
    assert_clean(await inflict(StopEverything(), tmp_path, SEED, 2))


@pytest.mark.slow
async def test_a_frozen_broker_goes_on_where_it_was(tmp_path: Path) -> None:
    assert_clean(await inflict(FreezeOneBroker(), tmp_path, SEED, 4))
