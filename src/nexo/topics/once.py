"""The stored form of an exactly-once context; shared by both clients."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from nexo.client.checks import text
from nexo.client.stream_records import Key
from nexo.errors import InvalidInput

STATE = "state"
ONCE = "once"
"""The two tables of a context: what is kept for good, and results kept for a time."""

_STATE_PREFIX, _OUTBOX_PREFIX = "s/", "o/"
CHECKPOINT_KEY = "c"
EPOCH_KEY = "e"


@dataclass(frozen=True, slots=True)
class Entry:
    """A stored value; ``offset`` says which of its versions it is, -1 that there is none."""

    content: bytes | None
    offset: int


ABSENT = Entry(None, -1)


class OutboxEvent(msgspec.Struct, frozen=True, array_like=True):
    """Something to be delivered once what led to it is committed."""

    value: Any
    topic: str | None = None
    key: Key = None


class Checkpoint(msgspec.Struct, frozen=True, array_like=True):
    """Everything a context keeps, as of one moment."""

    epoch: int
    state: Mapping[str, Any]
    processed: Mapping[str, Any] = {}
    """By event id: when the result of `process_once` expires (Unix ms), and the result."""
    outbox: tuple[OutboxEvent, ...] = ()


def now_ms() -> int:
    """The clock of TTLs."""
    return int(time.time() * 1000)


def pack(value: object) -> bytes:
    """A value, event or checkpoint as it is stored: msgpack, so that bytes stay bytes."""
    try:
        return msgspec.msgpack.encode(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInput(f"the value cannot be stored: {error}") from None


def unpack(content: bytes) -> Any:
    return msgspec.msgpack.decode(content)


def state_key(key: str) -> str:
    """Where a user's key is kept."""
    if not text(key, "a state key"):
        raise InvalidInput("a state key must not be empty")
    return _STATE_PREFIX + key


def outbox_key(unique: str) -> str:
    """Where an event waits."""
    return _OUTBOX_PREFIX + unique


def states(entries: Mapping[str, Entry]) -> dict[str, Entry]:
    """The users' keys among a table's entries."""
    return {
        key.removeprefix(_STATE_PREFIX): entry
        for key, entry in entries.items()
        if key.startswith(_STATE_PREFIX)
    }


def waiting(entries: Mapping[str, Entry]) -> list[tuple[str, Entry]]:
    """The events of the outbox, the oldest first."""
    found = [item for item in entries.items() if item[0].startswith(_OUTBOX_PREFIX)]
    return sorted(found, key=lambda item: item[1].offset)


def unpack_event(content: bytes) -> OutboxEvent:
    return OutboxEvent(*unpack(content))


def pack_result(result: object, expires_ms: int) -> bytes:
    """A result of `process_once` as it is stored."""
    return pack([expires_ms, result])


def result_in(content: bytes) -> Any:
    """A stored result, which is how every caller gets it: what was a tuple is a list."""
    return unpack(content)[1]


def fresh_result(entry: Entry, at_ms: int) -> tuple[Any] | None:
    """A stored result that has not expired, in a tuple, as None is a result too."""
    if entry.content is None:
        return None
    expires_ms, result = unpack(entry.content)
    return (result,) if expires_ms > at_ms else None


def unpack_checkpoint(content: bytes) -> Checkpoint:
    epoch, state, processed, outbox = unpack(content)
    return Checkpoint(epoch, state, processed, tuple(OutboxEvent(*event) for event in outbox))
