"""Why a handler failed, as text that the server stores."""

from __future__ import annotations

MAX_TEXT = 4_096
"""Longer reasons are cut off: people read them."""


def failure_text(error: BaseException) -> str:
    """The error as one line of valid text, whatever it holds."""
    try:
        said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    except Exception:  # the error's own __str__ may fail
        said = type(error).__name__
    return readable(said)


def readable(said: object) -> str:
    """A reason as valid text of limited length."""
    return str(said)[:MAX_TEXT].encode("utf-8", "backslashreplace").decode()
