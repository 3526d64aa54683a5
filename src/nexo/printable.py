"""Text of others, made fit for a log line or a terminal."""

from __future__ import annotations


def printable(text: str, most: int) -> str:
    """At most ``most`` characters of ``text``; control characters and the like are escaped."""
    short = text if len(text) <= most else text[: most - 1] + "…"
    if short.isprintable():
        return short
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in short)
