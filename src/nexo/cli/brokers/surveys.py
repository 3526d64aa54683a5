"""All queues, streams and groups of a server, read in pages that do not hold it up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from nexo.client._sync.requests import request
from nexo.model import Broker
from nexo.model.queue import QueueSurvey
from nexo.model.stream import StreamSurvey
from nexo.protocol.ops import Op
from nexo.protocol.survey import SurveyAsk

if TYPE_CHECKING:
    from nexo import Client


def stream_page(nexo: Client, position: int) -> StreamSurvey:
    """Streams and groups from ``position`` on."""
    ask = SurveyAsk(position=position)
    return request(nexo.link(Broker.STREAM).call, Op.S_SURVEY, ask, StreamSurvey)


def group_rows(nexo: Client) -> Iterator[dict[str, Any]]:
    """Every group, shared and ordered, of every stream."""
    position = 0
    while True:
        page = stream_page(nexo, position)
        for group in page.groups:
            yield {
                "stream": group.stream, "group": group.name, "kind": group.kind,
                "lag": group.lag, "in_flight": group.in_flight, "parked": group.parked,
                "consumers": group.consumers,
            }  # fmt: skip
        position = page.next
        if not position:
            return


def queue_page(nexo: Client, position: int) -> QueueSurvey:
    """Queues from ``position`` on."""
    ask = SurveyAsk(position=position)
    return request(nexo.link(Broker.QUEUE).call, Op.Q_SURVEY, ask, QueueSurvey)
