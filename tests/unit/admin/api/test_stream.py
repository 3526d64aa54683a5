"""Where the dashboard says that a partition's records are."""

from __future__ import annotations

from nexo.admin.api.stream import OffsetTier, _partition
from nexo.protocol.stream import PartitionInfo


def test_the_hot_tier_begins_where_the_log_does() -> None:
    """F14: it was shown from the first offset that can be read, be it in the lake."""
    part = PartitionInfo(
        start_offset=0, next_offset=90, stable_offset=90, size_bytes=1, tiered_offset=70,
        hot_offset=60,
    )  # fmt: skip
    assert _partition(0, part).tiers == [OffsetTier("lake", 0, 70), OffsetTier("hot", 60, 90)]
