"""Names that were meant, where one that does not exist was given."""

from __future__ import annotations

import re
from difflib import get_close_matches
from itertools import islice
from typing import TYPE_CHECKING

from nexo.cli.options import client
from nexo.errors import NexoError
from nexo.model import Broker
from nexo.protocol.ops import Op
from nexo.protocol.queue import decode, encode
from nexo.protocol.survey import MAX_LIMIT, QueueSurvey, SurveyAsk

if TYPE_CHECKING:
    from nexo import Client

_MOST = 10_000
_QUOTED = re.compile(r"'([^']+)'")
_OF_QUEUES = {"queue", "dlq"}
_OF_STREAMS = {"stream", "tail", "lag", "seek"}


def names_like(message: str, command: str) -> str:
    """A question to append to ``message``, about names like the one it quotes; or nothing."""
    quoted = _QUOTED.search(message)
    if quoted is None or command not in _OF_QUEUES | _OF_STREAMS:
        return ""
    try:
        with client() as nexo:
            known = _queues(nexo) if command in _OF_QUEUES else list(islice(nexo.streams(), _MOST))
    except NexoError:  # the first error is the one to be told
        return ""
    if quoted[1] in known:
        return ""
    close = get_close_matches(quoted[1], known, n=3)
    return f" (did you mean {' or '.join(map(repr, close))}?)" if close else ""


def _queues(nexo: Client) -> list[str]:
    ask = encode(SurveyAsk(limit=MAX_LIMIT, by_name=True))
    page = decode(nexo.link(Broker.QUEUE).call(Op.Q_SURVEY, ask) or b"", QueueSurvey)
    return [str(row["name"]) for row in page.queues]
