"""Any text as a name of a queue, stream or group, and back: for names that others chose.

A text that may be a name is its own name. Any other is escaped: what a name cannot hold becomes
``:hh`` for each byte of its UTF-8, and ``:x`` at the end marks the whole as escaped. So names
made here look as they are written, and permissions by prefix hold for escaped names too.
"""

from __future__ import annotations

import re
from functools import lru_cache

from nexo.errors import InvalidName
from nexo.model import MAX_NAME, check_name

_MARK = ":x"
_ESCAPE = re.compile(rb":([0-9a-f]{2})")
_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_/-")
"""Bytes that stay as they are in an escaped name. ``.`` does too, unless it begins a segment."""


@lru_cache(maxsize=4096)
def name_of(text: str) -> str:
    """The name that stands for ``text``; `InvalidName` if it would be longer than a name can be."""
    if len(text) > MAX_NAME:
        raise InvalidName(f"name {text[:64]!r} is too long: it has over {MAX_NAME} characters")
    if not text.endswith(_MARK):
        try:
            return check_name(text)
        except InvalidName:
            pass
    try:
        return check_name(_escape(text.encode()) + _MARK)
    except UnicodeEncodeError as error:
        raise InvalidName(
            f"name {text[:64]!r} cannot be written as UTF-8: {error.reason}"
        ) from None
    except InvalidName:
        raise InvalidName(
            f"name {text[:64]!r} is too long: escaped it has over {MAX_NAME} bytes"
        ) from None


def text_of(name: str) -> str:
    """Inverse of `name_of`; other names are returned unchanged."""
    if not name.endswith(_MARK):
        return name
    raw = name[: -len(_MARK)].encode()
    try:
        text = _ESCAPE.sub(lambda found: bytes((int(found[1], 16),)), raw).decode()
        return text if name_of(text) == name else name
    except (UnicodeDecodeError, InvalidName):
        return name


def _escape(raw: bytes) -> str:
    escaped: list[str] = []
    before = 0x2F
    for byte in raw:
        plain = byte in _PLAIN or byte == 0x2E
        leads = before == 0x2F and byte in b"./"
        escaped.append(chr(byte) if plain and not leads else f":{byte:02x}")
        before = byte
    return "".join(escaped)
