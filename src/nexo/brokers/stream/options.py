"""What a stream can be told, and the checks on it (SPEC E1, G1, I1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from nexo.errors import AlreadyExists, InvalidOption
from nexo.model import Persistence
from nexo.protocol.refusals import in_words

Cleanup: TypeAlias = Literal["delete", "compact", "delete,compact"]

MAX_PARTITIONS = 1_024
DAY_MS = 86_400_000


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of one stream. 0 means no limit."""

    partitions: int = 1
    """Fixed at creation."""
    persistence: Persistence = Persistence.FILE_ASYNC
    retention_ms: int = 7 * DAY_MS
    retention_bytes: int = 1024**3
    """Of the whole stream; every partition gets an equal share."""
    cleanup: Cleanup = "delete"
    min_dirty_ratio: float = 0.5
    """Compaction runs once this share of a partition was written since the last one."""
    delete_retention_ms: int = DAY_MS
    """How long compaction keeps a tombstone, so that readers see the deletion."""
    max_message_bytes: int = 0
    """Largest value; 0 leaves only the server's limit on a whole request."""
    tiering: bool = False
    """Retention frees nothing that the lake has not taken."""

    @property
    def compacts(self) -> bool:
        """Whether old values of a key are removed."""
        return "compact" in self.cleanup

    @property
    def expires(self) -> bool:
        """Whether age and size limits apply."""
        return "delete" in self.cleanup

    def __post_init__(self) -> None:
        if not 1 <= self.partitions <= MAX_PARTITIONS:
            raise InvalidOption(
                f"partitions = {self.partitions}: must be between 1 and {MAX_PARTITIONS}"
            )
        for name in ("retention_ms", "retention_bytes", "delete_retention_ms", "max_message_bytes"):
            if getattr(self, name) < 0:
                raise InvalidOption(f"{name} = {getattr(self, name)}: must not be negative")
        if not 0 <= self.min_dirty_ratio <= 1:
            raise InvalidOption(f"min_dirty_ratio = {self.min_dirty_ratio}: must be from 0 to 1")


def options_from(given: Mapping[str, Any], base: StreamOptions) -> StreamOptions:
    """``base`` with what was ``given``; `InvalidOption` names an unknown or bad option."""
    try:
        return msgspec.convert(msgspec.to_builtins(base) | dict(given), StreamOptions)
    except msgspec.ValidationError as error:
        raise InvalidOption(f"stream options: {in_words(error, StreamOptions)}") from None


def updated(options: StreamOptions, given: Mapping[str, Any]) -> StreamOptions:
    """Options changed while the stream runs; the partition count cannot be."""
    if given.get("partitions", options.partitions) != options.partitions:
        raise InvalidOption("partitions are fixed at creation: create another stream and copy")
    return options_from(given, options)


def check_same(name: str, has: StreamOptions, wanted: StreamOptions) -> None:
    """Raise `AlreadyExists` that names what an existing stream has otherwise than asked for."""
    differing = [
        f"{field} = {_shown(getattr(has, field))}, not {_shown(getattr(wanted, field))}"
        for field in has.__struct_fields__
        if getattr(has, field) != getattr(wanted, field)
    ]
    if not differing:
        return
    fixed = has.partitions != wanted.partitions
    do = "use another name, as partitions are fixed" if fixed else "update it, or leave that out"
    raise AlreadyExists(f"stream {name!r} exists with {'; '.join(differing)}: {do}")


def _shown(value: object) -> str:
    return value.value if isinstance(value, Persistence) else repr(value)
