# Generated from _async/producer/atomic_batch.py by tools/unasync.py; edit that file instead.
"""Stores messages all or none (SPEC G2)."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from nexo.batch import Compression
from nexo.client._sync.client import Client
from nexo.model import Broker
from nexo.protocol.ops import Op
from nexo.protocol.stream_publishing import publish_head, read_places
from nexo.topics.model import RecordMetadata
from nexo.topics.packing import BATCH_BYTES, Packed, batch_of, chunks


def store_together(
    client: Client,
    topic: str,
    lanes: Mapping[int, list[int]],
    packed: Sequence[Packed[None]],
    count: int,
    compression: Compression,
) -> list[RecordMetadata]:
    """Store in a transaction, unless all are for one partition: a batch is stored whole anyway.

    ``lanes`` maps each of the ``count`` partitions to the indexes of its messages.
    """
    if len(lanes) == 1 and sum(each.size_bytes for each in packed) <= BATCH_BYTES:
        (partition,) = lanes
        head, body = batch_of(packed).encode(int(time.time() * 1000), compression=compression)
        where = publish_head(topic, partition, count)
        reply = client.link(Broker.STREAM).call(Op.S_PUBLISH, where, head, *body)
        _, first, _ = next(read_places(reply or b""))
        return [RecordMetadata(topic, partition, first + at) for at in range(len(packed))]
    places: dict[int, RecordMetadata] = {}
    with client.transaction() as tx:
        for partition, lane in lanes.items():
            for numbers in chunks(lane, packed):
                batch = batch_of([packed[number] for number in numbers])
                _, first = tx.publish_batch(topic, partition, batch, count=count)
                for at, number in enumerate(numbers):
                    places[number] = RecordMetadata(topic, partition, first + at)
    return [places[number] for number in range(len(packed))]
