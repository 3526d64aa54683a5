"""A client's own queries: the lake that its server tells of, read from this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from nexo.client.address import Address
from nexo.lake.catalog import Lake
from nexo.lake.settings import LakeSettings
from nexo.sql.engine import Engine
from nexo.sql.place import reachable_lake
from nexo.sql.result import Result


def answer(
    address: Address,
    status: Mapping[str, Any],
    query: str,
    *,
    streams: Sequence[str] | None = None,
    as_of: datetime | None = None,
    lake: str | None = None,
) -> Result:
    """Run a query; ``status`` is what the stream broker says of itself."""
    where = reachable_lake(status) if lake is None else LakeSettings(Path(lake))
    engine = Engine(None if where is None else Lake(where), address)
    return engine.query(query, streams=streams, as_of=as_of)
