"""Lists all streams, groups and queues, page by page (S_SURVEY, Q_SURVEY).

A round begins at position 0 and follows ``next`` until it is 0 again. Each page is bounded
work for the broker, so a round over many thousands delays no other request. What is created
or deleted meanwhile may be missing or appear twice until the next round.
"""

from __future__ import annotations

from nexo.model import AsMap

DEFAULT_LIMIT = 100
MAX_LIMIT = 1_000


class SurveyAsk(AsMap, frozen=True):
    """Where to continue, and how much to return."""

    position: int = 0
    limit: int = DEFAULT_LIMIT
    """Queues, or partitions of streams and groups; a page has at least one thing on it."""
    by_name: bool = False
    """Queues by name instead of by creation."""
    search: str = ""
    """With ``by_name``: only queues whose name contains this, ignoring case."""
