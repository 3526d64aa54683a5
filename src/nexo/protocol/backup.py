"""Copying a broker's files while it runs: the messages of BACKUP, msgpack behind the broker byte.

A backup belongs to the connection that began it, and ends with it. `Begin` keeps the files as
they are at that moment; they can then be read in any order and at any pace.

=========  =====================================  =============================
verb       request                                reply
=========  =====================================  =============================
begin      `Begin`                                `Kept`
read       `Read`                                 the bytes; none at the end
end        `End`                                  OK
=========  =====================================  =============================
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from nexo.errors import ProtocolError
from nexo.protocol.frames import Buffer

READ_BYTES = 256 * 1024
"""Most that one reply carries, so that a backup leaves room for other requests."""


class Begin(msgspec.Struct, frozen=True, tag="begin", forbid_unknown_fields=True):
    """Keep the broker's files as they are now."""


class Read(msgspec.Struct, frozen=True, tag="read", forbid_unknown_fields=True):
    """Bytes of the file at place ``number`` of the list."""

    number: int
    position: int


class End(msgspec.Struct, frozen=True, tag="end", forbid_unknown_fields=True):
    """Let the files go."""


Ask: TypeAlias = Begin | Read | End


class Kept(msgspec.Struct, frozen=True):
    """What is in the backup."""

    files: list[tuple[str, int]]
    """Path within the broker's folder, and length."""


_ask: msgspec.msgpack.Decoder[Ask] = msgspec.msgpack.Decoder(Ask)
_kept = msgspec.msgpack.Decoder(Kept)
pack = msgspec.msgpack.Encoder().encode


def unpack_ask(payload: Buffer) -> Ask:
    """The request; `ProtocolError` if it is none."""
    try:
        return _ask.decode(payload)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"not a backup request: {error}") from None


def unpack_kept(payload: Buffer) -> Kept:
    """The reply to `Begin`."""
    return _kept.decode(payload)
