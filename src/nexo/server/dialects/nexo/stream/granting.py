"""When offsets may be told: see `nexo.brokers.stream.numbering`."""

from __future__ import annotations

from collections.abc import Iterable

from nexo.brokers.stream.partition import Partition
from nexo.brokers.stream.publishing import Placed
from nexo.brokers.stream.registry import Stream
from nexo.errors import NexoError
from nexo.model import Persistence
from nexo.server.service import Runtime


class Granting:
    """Renews grants in the background, so that hardly ever anybody waits for one."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def mode(self, stream: Stream, placed: Iterable[Placed]) -> Persistence:
        """The safety that records need before anybody is told of them."""
        mode = stream.options.persistence
        if mode is Persistence.FILE_SYNC:
            return mode
        for place in placed:
            partition, end = stream.partition(place.partition), place.offset + place.count
            if end > partition.grant.renew_at:
                self._renew(partition)
                if end > partition.grant.limit:
                    mode = Persistence.FILE_SYNC
        return mode

    def _renew(self, partition: Partition) -> None:
        grant, end = partition.grant, partition.next_offset
        if grant.renewing:
            return
        grant.renewing = True

        def synced(error: NexoError | None) -> None:
            grant.renewing = False
            if error is None:
                grant.raise_behind(end)

        self._runtime.committed(Persistence.FILE_SYNC, synced)
