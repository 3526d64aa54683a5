"""Whole values in JSON, for programs: ``{"type": "json", "data": {…}}``.

What a reply holds can be sent back as it is. Text is a JSON string, raw bytes are base64.
"""

from __future__ import annotations

import base64
import contextlib
from typing import Literal

import msgspec

from nexo.model import Buffer
from nexo.protocol.values import ValueType

_encode = msgspec.json.encode


class Plain(msgspec.Struct):
    """A whole value."""

    type: Literal["json", "text", "bytes", "deleted"]
    data: msgspec.Raw
    """The JSON value itself, a text, or base64; null of what was deleted."""


def plain(value: Buffer) -> Plain:
    """An encoded value (type byte first)."""
    view = memoryview(value)
    return plain_content(view[0] if view else 0, bytes(view[1:]))


def plain_content(kind: int, content: bytes | None) -> Plain:
    """A value whose type and content are apart; a deleted one has no content."""
    if content is None:
        return Plain("deleted", msgspec.Raw(b"null"))
    if kind == ValueType.JSON:
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
            msgspec.json.decode(content)  # an older client may have sent anything
            return Plain("json", msgspec.Raw(content))
    if kind == ValueType.TEXT:
        return Plain("text", msgspec.Raw(_encode(content.decode(errors="replace"))))
    return Plain("bytes", msgspec.Raw(_encode(base64.b64encode(content).decode())))
