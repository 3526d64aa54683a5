"""Requests about a broker as a whole: surveys and backups.

A survey (S_SURVEY, Q_SURVEY) lists all streams, groups or queues, page by page. A round begins at
position 0 and follows ``next`` until it is 0 again. Each page is bounded work for the broker, so a
round over many thousands delays no other request. What is created or deleted meanwhile may be
missing or appear twice until the next round.

BACKUP copies a broker's files while it runs; its messages are msgpack after the broker byte.

A backup belongs to the connection that began it, and ends with it. `BackupBegin` freezes
the files as they are at that moment; they can then be read in any order and at any pace.

=============  ==========================
request        reply
=============  ==========================
`BackupBegin`  `BackupFiles`
`BackupRead`   the bytes; none at the end
`BackupEnd`    OK
=============  ==========================
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from nexo.errors import ProtocolError
from nexo.model import AsMap, Buffer


class BackupBegin(msgspec.Struct, frozen=True, tag="begin", forbid_unknown_fields=True):
    """Freeze the broker's files as they are now."""


class BackupRead(msgspec.Struct, frozen=True, tag="read", forbid_unknown_fields=True):
    """Read bytes of file ``number`` in the list."""

    number: int
    position: int


class BackupEnd(msgspec.Struct, frozen=True, tag="end", forbid_unknown_fields=True):
    """Release the files."""


BackupAsk: TypeAlias = BackupBegin | BackupRead | BackupEnd


class BackupFiles(msgspec.Struct, frozen=True):
    """The files of a backup."""

    files: list[tuple[str, int]]
    """Path within the broker's folder, and length."""


_ask: msgspec.msgpack.Decoder[BackupAsk] = msgspec.msgpack.Decoder(BackupAsk)


def unpack_ask(payload: Buffer) -> BackupAsk:
    """The request; `ProtocolError` if it is malformed."""
    try:
        return _ask.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"not a backup request: {error}") from None


DEFAULT_LIMIT = 100
MAX_LIMIT = 1_000


class SurveyAsk(AsMap, frozen=True):
    """Where to continue, and how much to return."""

    position: int = 0
    limit: int = DEFAULT_LIMIT
    """Queues, or partitions of streams and groups; a page has at least one thing on it."""
    by_name: bool = False
    """Queues by name instead of by creation."""
    search: str = ""
    """With ``by_name``: only queues whose name contains this, ignoring case."""
