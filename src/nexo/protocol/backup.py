"""BACKUP copies a broker's files while it runs; its messages are msgpack after the broker byte.

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
from nexo.model import Buffer


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
    """What is in the backup."""

    files: list[tuple[str, int]]
    """Path within the broker's folder, and length."""


_ask: msgspec.msgpack.Decoder[BackupAsk] = msgspec.msgpack.Decoder(BackupAsk)


def unpack_ask(payload: Buffer) -> BackupAsk:
    """The request; `ProtocolError` if it is malformed."""
    try:
        return _ask.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"not a backup request: {error}") from None
