"""How far a table goes: its own property says so, by partition."""

from __future__ import annotations

import json
from collections.abc import Mapping

from nexo.lake.catalog import OFFSETS


def offsets_of(properties: Mapping[str, str], name: str = OFFSETS) -> dict[int, int]:
    """Per partition: the table holds everything below, or what another property says."""
    found: dict[str, int] = json.loads(properties.get(name, "{}"))
    return {int(partition): offset for partition, offset in found.items()}


def offsets_text(offsets: Mapping[int, int]) -> str:
    """The property's text; sorted, so that equal offsets are equal texts."""
    return json.dumps({str(key): offsets[key] for key in sorted(offsets)})
