"""File descriptors: every connection needs one, and the default limit is low for a server."""

from __future__ import annotations

import resource


def raise_limit() -> None:
    """Allow this process as many descriptors as the machine lets it have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
