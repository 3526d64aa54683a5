"""Values as people see and write them: a type and a text.

JSON is re-indented, not decoded, so that large numbers keep their digits. Raw bytes are
written as base64. Values that are too large are cut and marked. Programs get whole values, as
`Plain`: ``{"type": "json", "data": {…}}``, which can be sent back as it is.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
from typing import Literal

import msgspec

from nexo.errors import InvalidInput
from nexo.model import Buffer
from nexo.protocol.values import ValueType

PREVIEW_BYTES = 2_048
WHOLE_BYTES = 512 * 1024


class Value(msgspec.Struct):
    """A value to look at."""

    type: Literal["json", "text", "bytes", "deleted"]
    text: str
    """JSON source, the text itself, or base64."""
    size_bytes: int
    truncated: bool = False


class NewValue(msgspec.Struct, forbid_unknown_fields=True):
    """A value to write."""

    text: str | None = None
    """JSON source, the text itself, or base64. Either this or ``data``."""
    type: Literal["json", "text", "bytes"] = "json"
    """Left out: ``text`` is JSON source, so a plain word needs ``text`` or quotes of its own."""
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    """The value as JSON: anything for ``json``, a text for the others."""


def shown(value: Buffer, limit: int = PREVIEW_BYTES) -> Value:
    """An encoded value (type byte first)."""
    view = memoryview(value)
    return shown_content(view[0] if view else 0, view[1:], limit)


def shown_content(kind: int, content: Buffer | None, limit: int = PREVIEW_BYTES) -> Value:
    """A value whose type and content are apart; a deleted one has no content."""
    if content is None:
        return Value("deleted", "", 0)
    size, raw = len(content), bytes(content[:limit])
    cut = size > limit
    match kind:
        case ValueType.JSON:
            return Value("json", _indented(raw, cut), size, cut)
        case ValueType.TEXT:
            return Value("text", raw.decode(errors="replace"), size, cut)
    return Value("bytes", base64.b64encode(raw).decode(), size, cut)


def _indented(raw: bytes, cut: bool) -> str:
    if not cut:
        with contextlib.suppress(msgspec.DecodeError):  # then it is shown as it is
            raw = msgspec.json.format(raw, indent=2)
    return raw.decode(errors="replace")


def python_value(value: NewValue) -> object:
    """The value as a client sends it; `InvalidInput` if the text is not of its type."""
    text = _source(value)
    match value.type:
        case "json":
            return _json(text)
        case "text":
            return text
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidInput(f"the value is not base64: {error}") from None


def _source(value: NewValue) -> str:
    """The type of ``text``, or the one that ``data`` would have."""
    given = b"" if isinstance(value.data, msgspec.UnsetType) else bytes(value.data)
    if (value.text is None) == (not given):
        raise InvalidInput("a value has either text or data")
    if value.text is not None:
        return value.text
    if value.type == "json":
        return given.decode()
    found = msgspec.json.decode(given)
    if not isinstance(found, str):
        raise InvalidInput(f"the data of a value of type {value.type} is a text")
    return found


def _json(text: str) -> object:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise InvalidInput(
            f'the value is not JSON: {error}; for plain text say "type": "text"'
        ) from None


_encode = msgspec.json.encode


class Plain(msgspec.Struct):
    """A whole value."""

    type: Literal["json", "text", "bytes", "deleted"]
    data: msgspec.Raw
    """The JSON value itself, a text, or base64; null if deleted."""


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
