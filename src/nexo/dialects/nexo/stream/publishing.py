"""Requests of producers; `nexo.protocol.stream_publishing` says what they look like."""

from __future__ import annotations

from nexo.brokers.stream.producers import ProducerSession
from nexo.brokers.stream.publishing import Placed
from nexo.dialects.nexo.handlers import Handler, Peer
from nexo.dialects.nexo.replies import reply_data, reply_packed
from nexo.protocol.frames import FieldReader
from nexo.protocol.ops import Op
from nexo.protocol.stream_publishing import PLACE, pack_refused, read_publish
from nexo.protocol.values import check_value
from nexo.services.connection import Done
from nexo.services.stream.publish import Publishing, PublishOutcome


class PublishingRequests:
    """S_PUBLISH, S_PUBLISH_EACH, S_ADD and S_PRODUCER."""

    def __init__(self, publishing: Publishing) -> None:
        self._publishing = publishing
        self.handlers: dict[int, Handler] = {
            Op.S_PUBLISH: self.publish,
            Op.S_PUBLISH_EACH: self.publish_each,
            Op.S_ADD: self.add,
            Op.S_PRODUCER: self.start_producer,
        }

    def publish(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Store one batch."""
        name, partition, partitions, entry = read_publish(payload)
        done = reply_data(peer, request_id, pack_places)
        self._publishing.publish(peer, name, entry, done, partition, partitions)

    def publish_each(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Store the records of one batch that the stream takes."""
        name, partition, partitions, entry = read_publish(payload)
        done = reply_data(peer, request_id, _pack_published)
        self._publishing.publish_fitting(peer, name, entry, done, partition, partitions)

    def add(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Store one plain record."""
        name, partition, partitions, value = read_publish(payload)
        check_value(value)
        done, content = reply_data(peer, request_id, _pack_place), value[1:]
        self._publishing.publish_one(peer, name, value[0], content, done, partition, partitions)

    def start_producer(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Give out a producer id."""
        done: Done[ProducerSession] = reply_packed(peer, request_id)
        self._publishing.start_producer(peer, FieldReader(payload).text(), done)


def pack_places(placed: list[Placed]) -> bytes:
    """Where records went, as `PLACE` each."""
    if len(placed) == 1:
        return _pack_place(placed[0])
    return b"".join(map(_pack_place, placed))


def _pack_place(placed: Placed) -> bytes:
    return PLACE.pack(*placed[:3])


def _pack_published(result: PublishOutcome) -> bytes:
    places = pack_places(result.placed)
    if not result.refused:
        return places
    return places + pack_refused(result.max_message_bytes, result.refused)
