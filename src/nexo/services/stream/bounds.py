"""Limits on what a request may ask for, checked before anything changes."""

from __future__ import annotations

from nexo.brokers.stream.registry import OpenStream
from nexo.errors import InvalidInput
from nexo.model.stream import Position
from nexo.services.stream.replay import LakeReplay

REPLY_BYTES = 4 * 1024**2
"""How much one reply carries, unless the client says otherwise."""
MAX_LIMIT = 1_000_000
MAX_READ_BYTES = 16 * 1024**2
"""The most that one reply carries after its first batch, whatever is asked for."""


def check_limit(limit: int) -> None:
    """Reject a count that is not positive, or larger than any reply."""
    if not 1 <= limit <= MAX_LIMIT:
        raise InvalidInput(f"limit = {limit}: must be from 1 to {MAX_LIMIT:,}")


def check_not_negative(value: int, name: str) -> None:
    """Reject a negative wait or delay."""
    if value < 0:
        raise InvalidInput(f"{name} = {value}: must not be negative")


def positions(replay: LakeReplay, stream: OpenStream, to: Position) -> dict[int, int]:
    """An offset per partition, or per named one if ``to`` is a mapping.

    `OffsetOutOfRange` for one that the partition does not have.
    """
    parts = stream.partitions()
    if to == "beginning":
        return {i: replay.first_offset(stream, i) for i in range(len(parts))}
    if to == "end":
        return {i: part.next_offset for i, part in enumerate(parts)}
    wanted = to if isinstance(to, dict) else dict.fromkeys(range(len(parts)), int(to))
    for index, offset in wanted.items():
        replay.check_offset(stream, index, offset)
    return wanted
