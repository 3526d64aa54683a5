"""Tasks of frameworks as jobs: what their brokers have in common."""

from __future__ import annotations

MAX_RETRIES = 20
"""How often a job may lose its worker before it is a dead letter, in queues created here."""


def readable(content: bytes) -> str | bytes:
    """Text as text, for whoever looks at the job."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content
