"""Values that every layer holds: broker names, durability modes, names, the clock."""

from __future__ import annotations

import enum
import re
from typing import Protocol, TypeAlias

import msgspec

from nexo.errors import InvalidName

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Bytes in any form."""


class AsMap(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Encoded with field names, so that fields can be added."""


class AsArray(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Encoded without field names."""


class Broker(enum.IntEnum):
    """The four brokers, numbered as the protocol's HELLO numbers them."""

    STORE = 1
    PUBSUB = 2
    QUEUE = 3
    STREAM = 4

    @property
    def label(self) -> str:
        """The name used in paths, logs and commands."""
        return self.name.lower()


class Persistence(enum.StrEnum):
    """When an acknowledged write is safe (SPEC E3)."""

    FILE_ASYNC = "file_async"
    """Handed to the operating system before the reply; synced soon after."""

    FILE_SYNC = "file_sync"
    """Synced to disk before the reply."""

    REPLICATED = "replicated"
    """Synced to disk and put into the object store before the reply (SPEC N2)."""


def safer(one: Persistence, other: Persistence) -> Persistence:
    """The one that promises more."""
    order = list(Persistence)
    return max(one, other, key=order.index)


class Policy(enum.StrEnum):
    """The treatment of messages that wait for a slow subscriber and no longer fit (SPEC C4)."""

    DROP_OLDEST = "drop_oldest"
    DROP_NEWEST = "drop_newest"
    DISCONNECT = "disconnect"


class Clock(Protocol):
    """Time as the server sees it: wall-clock milliseconds that never step."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch, steady for the life of the process."""


MAX_NAME = 255
"""The bytes of the longest name."""
_NAME = re.compile(rf"[A-Za-z0-9._:/-]{{1,{MAX_NAME}}}", re.ASCII)


def check_name(name: str, what: str = "name") -> str:
    """Return ``name`` if it may name a stream, queue or group (SPEC A11).

    Raises `InvalidName` otherwise; ``what`` says in the message what was named.
    """
    if not isinstance(name, str):
        raise InvalidName(f"{what} is text, not {type(name).__name__}")
    if not _NAME.fullmatch(name):
        raise InvalidName(
            f"{what} {name[:64]!r} is not allowed: use 1-255 characters of A-Z a-z 0-9 . _ : / -"
        )
    if name.startswith("/") or any(part in (".", "..") for part in name.split("/")):
        raise InvalidName(f"{what} {name!r} is not allowed: no leading '/', no '.' or '..' segment")
    return name


_STAND_INS = str.maketrans("/:", "+=")
_ORIGINALS = str.maketrans("+=,", "/:.")


def path_segment(name: str) -> str:
    """A checked name as one path segment of the same length: names never collide (SPEC A11).

    Characters that mean something in paths are replaced by ones that no name may contain;
    ``.`` only where it leads. Upper-case letters stay as they are: the data folder must be
    on a case-sensitive file system.
    """
    segment = name.translate(_STAND_INS)
    return "," + segment[1:] if segment.startswith(".") else segment


def name_of_segment(segment: str) -> str:
    """The name that `path_segment` turned into ``segment``."""
    return segment.translate(_ORIGINALS)
