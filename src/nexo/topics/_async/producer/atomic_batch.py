"""Stores messages all or none (SPEC G2)."""

from __future__ import annotations

import time
from collections.abc import Sequence

from nexo.batch import Compression
from nexo.client._async.client import AsyncClient
from nexo.client.stream_records import by_partition
from nexo.model import Broker
from nexo.protocol.ops import Op
from nexo.protocol.stream_publishing import publish_head, read_places
from nexo.topics.model import RecordMetadata
from nexo.topics.packing import Packed


async def store_together(
    client: AsyncClient,
    topic: str,
    partitions: Sequence[int],
    packed: Sequence[Packed[None]],
    count: int,
    compression: Compression,
) -> list[RecordMetadata]:
    """Store in a transaction, unless all are in one batch, which is stored whole anyway.

    ``partitions`` has the partition of each message, which is one of ``count``.
    """
    rows = [(each.kind, each.content) for each in packed]
    keys, headers = [each.key for each in packed], [each.headers for each in packed]
    runs, lanes = by_partition(partitions, rows, keys, headers)
    if len(runs) == 1:
        head, body = runs[0][1].encode(int(time.time() * 1000), compression=compression)
        where = publish_head(topic, partitions[0], count)
        reply = await client.link(Broker.STREAM).call(Op.S_PUBLISH, where, head, *body)
        firsts = [next(read_places(reply or b""))[1]]
    else:
        async with client.transaction() as tx:
            firsts = [
                (await tx.publish_batch(topic, partition, records, count=count)).offset
                for partition, records in runs
            ]
    return [RecordMetadata(topic, runs[run][0], firsts[run] + at) for run, at in lanes]
