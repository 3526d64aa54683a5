"""Topic ids: a stream's time of creation and its number, so that none is ever given twice."""

from __future__ import annotations

from uuid import UUID

from nexo.dialects.kafka.request import Request
from nexo.services.stream.admin import Outline

_HALF = 64
_LOW = (1 << _HALF) - 1
NONE = UUID(int=0)


def topic_id(outline: Outline) -> UUID:
    return UUID(int=outline.created_ms << _HALF | outline.number)


def outline_of(request: Request, found: UUID) -> Outline:
    """The stream with an id; `NotFound` if there is none."""
    admin = request.session.shared.streams.admin
    return admin.outline_numbered(request.session, found.int & _LOW, found.int >> _HALF)
