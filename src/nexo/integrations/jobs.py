"""Tasks of frameworks as jobs: what their brokers have in common."""

from __future__ import annotations

MAX_RETRIES = 20
"""How often a job may lose its worker before it is a dead letter, in queues created here."""


def readable(content: bytes) -> str | bytes:
    """As text if it is UTF-8, so that people can read the job."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content
