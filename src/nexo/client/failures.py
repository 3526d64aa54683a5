"""What a handler failed of, as the server keeps it."""

from __future__ import annotations

MAX_TEXT = 4_096
"""Longer reasons are cut: they are read by people."""


def failure_text(error: BaseException) -> str:
    """The error in a line that can travel, whatever it says."""
    try:
        said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    except Exception:  # the handler's own class may fail to say it
        said = type(error).__name__
    return readable(said)


def readable(said: object) -> str:
    """A reason as text that can travel, and not too much of it."""
    return str(said)[:MAX_TEXT].encode("utf-8", "backslashreplace").decode()
