"""The tables of streams that are read from the lake are not kept open for ever (F14)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from nexo.config import Settings
from nexo.errors import NexoError
from nexo.services.stream import lake
from nexo.services.stream.lake import LakeTier
from nexo.services.stream.replay import Portion, StreamPosition
from tests.unit.brokers.stream.desk import Desk


class Opened:
    """A table of no records."""

    entries: Sequence[bytes] = ()
    next_offset = 1

    def read(self, partition: int, offset: int, max_bytes: int) -> Opened:
        return self


class CountingTier(LakeTier):
    """Counts what it opens, without a lake."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.names: list[str] = []

    def _open(self, stream: str) -> Any:
        self.names.append(stream)
        return Opened()


async def test_the_table_used_longest_ago_is_closed_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lake, "MAX_READERS", 2)
    tier, desk = CountingTier(Settings()), Desk()
    for name in "abc":
        desk.client().make(name)
    for name in "abaca":
        answered: asyncio.Future[Portion | NexoError] = asyncio.get_running_loop().create_future()
        place = StreamPosition(desk.service.core.engine.streams.get(name), 0, 0)
        tier.read(place, 1, answered.set_result)
        assert isinstance(await answered, Opened)
    assert tier.names == ["a", "b", "c"]
    assert len(tier._readers) == 2
