"""The names that topics may have; other streams may have more, and are read all the same."""

from __future__ import annotations

import re
from itertools import product

from nexo.dialects.kafka.format.errors import Error, Refused
from nexo.dialects.kafka.request import Request, stream_of
from nexo.errors import NexoError

_LEGAL = re.compile(r"[a-zA-Z0-9._-]{1,249}")
INTERNAL = frozenset(
    ["__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata"]
)
_MOST_VARIANTS = 1_024


def check_new_topic(request: Request, topic: str) -> None:
    """Raise unless a client may create a topic of this name."""
    check_legal(topic)
    if topic in INTERNAL:
        raise Refused(Error.INVALID_REQUEST, f"{topic} is Kafka's own: there is none here")
    for other in _colliding(topic):
        if _is_there(request, other):
            raise Refused(
                Error.INVALID_TOPIC,
                f"topic {topic!r} collides with {other!r}: Kafka's metrics write '.' as '_'",
            )


def check_legal(topic: str) -> None:
    """Raise unless Kafka knows such names."""
    if topic in (".", "..") or not _LEGAL.fullmatch(topic):
        raise Refused(
            Error.INVALID_TOPIC,
            f"topic name {topic[:64]!r}: use 1 to 249 of a-z, A-Z, 0-9, '.', '_' and '-', and not "
            "'.' or '..' alone",
        )


def _colliding(topic: str) -> list[str]:
    """Names that differ from this one only by ``.`` and ``_``."""
    parts = re.split(r"[._]", topic)
    if len(parts) == 1 or 1 << (len(parts) - 1) > _MOST_VARIANTS:
        return []
    found = []
    for marks in product("._", repeat=len(parts) - 1):
        name = parts[0] + "".join(map("".join, zip(marks, parts[1:], strict=True)))
        if name != topic:
            found.append(name)
    return found


def _is_there(request: Request, topic: str) -> bool:
    """Whether there is such a topic that the client may know of."""
    try:
        request.session.streams.admin.outline(request.session, stream_of(topic))
    except NexoError:
        return False
    return True
