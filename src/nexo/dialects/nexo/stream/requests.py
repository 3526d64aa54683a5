"""The opcode table of the stream broker."""

from __future__ import annotations

from collections.abc import Mapping

from nexo.dialects.nexo.handlers import Handler
from nexo.dialects.nexo.stream.admin import AdminRequests
from nexo.dialects.nexo.stream.classic import ClassicRequests
from nexo.dialects.nexo.stream.groups import GroupRequests
from nexo.dialects.nexo.stream.ordered import ordered_handlers
from nexo.dialects.nexo.stream.publishing import PublishingRequests
from nexo.dialects.nexo.stream.reading import ReadingRequests, key_handlers
from nexo.dialects.nexo.stream.transactions import TransactionRequests
from nexo.dialects.nexo.stream.xstreams import XRequests
from nexo.services.stream.service import StreamService


class StreamRequests:
    """Handlers of all stream requests, by opcode."""

    def __init__(self, service: StreamService) -> None:
        self.handlers: Mapping[int, Handler] = {
            **PublishingRequests(service.publishing).handlers,
            **AdminRequests(service.admin).handlers,
            **ReadingRequests(service.reading).handlers,
            **key_handlers(service.keyed),
            **TransactionRequests(service.transact).handlers,
            **GroupRequests(service.groups, service.parked).handlers,
            **ordered_handlers(service.ordered, service.offsets, service.overview),
            **XRequests(service.xmessages, service.xgroups).handlers,
            **ClassicRequests(
                service.core, service.publishing, service.groups, service.admin
            ).handlers,
        }
