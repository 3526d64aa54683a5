"""The requests of pub/sub: bytes to use cases and back, and messages as pushes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nexo.brokers.pubsub.message import Encoding, Part, Publication, PubSubMessage
from nexo.dialects.nexo.handlers import Handler, Peer, json_options
from nexo.dialects.nexo.replies import reply_ok, returning
from nexo.errors import InvalidName, InvalidOption, NexoError
from nexo.model.pubsub import Subscribe, Will
from nexo.model.store import check_value
from nexo.protocol import pubsub as wire
from nexo.protocol.frames import FieldReader, pack_str
from nexo.protocol.messages import pack, unpack
from nexo.protocol.ops import Op
from nexo.services.pubsub.service import PubSubService, Receivers

# -- messages -----------------------------------------------------------------------------


class _Ours:
    """The encoding of clients that said HELLO."""

    def live(self, message: PubSubMessage) -> bytes:
        topic, value, time_ms, headers = message
        return wire.message_frame(topic.encode(), value, time_ms, headers)

    def shared(self, message: PubSubMessage, pattern: str) -> bytes:
        return wire.addressed_frame(self.live(message), pack_str(pattern))

    def retained(self, message: PubSubMessage, address: str) -> bytes:
        return wire.addressed_frame(self.live(message), pack_str(address), wire.RETAINED)


class _Classic:
    """The encoding of the existing client, which knows neither times nor headers."""

    def live(self, message: PubSubMessage) -> bytes:
        return wire.classic_frame(message.topic.encode(), message.value)

    def shared(self, message: PubSubMessage, pattern: str) -> bytes:
        return self.live(message)

    def retained(self, message: PubSubMessage, address: str) -> bytes:
        return self.live(message)


OURS: Encoding = _Ours()
CLASSIC: Encoding = _Classic()
_WILL: Any = Will | None


class ReceivedPart(Part):
    """Part of a run: our clients get the bytes as they came."""

    __slots__ = ("_base", "_ends", "_frames")

    def __init__(self, frames: bytes, base: int, ends: list[int]) -> None:
        super().__init__(None, len(ends))
        self._frames = frames
        self._base = base
        self._ends = ends
        self._joined[OURS] = frames

    @property
    def messages(self) -> Sequence[PubSubMessage]:
        """Decoded on first use."""
        if self._messages is None:
            self._messages = [_message(frame) for frame in self.alone(OURS)]
        return self._messages

    def alone(self, encoding: Encoding) -> list[bytes]:
        if encoding is OURS and encoding not in self._alone:
            self._alone[encoding] = _split(self._frames, self._base, self._ends)
        return super().alone(encoding)


class Received(Publication):
    """A run of message frames as a client published it."""

    __slots__ = ("_ends", "_frames")

    def __init__(self, run: wire.MessageRun) -> None:
        super().__init__(run.topics)
        self._frames = run.frames
        self._ends = run.ends

    @property
    def messages(self) -> Sequence[PubSubMessage]:
        return self.part(0, len(self._ends)).messages

    def part(self, first: int, last: int) -> Part:
        begin = self._ends[first - 1] if first else 0
        whole = last - first == len(self._ends)
        frames = self._frames if whole else self._frames[begin : self._ends[last - 1]]
        return ReceivedPart(frames, begin, self._ends[first:last])

    def only(self, indexes: Sequence[int]) -> Publication:
        frames = _split(self._frames, 0, self._ends)
        return Received(wire.parse_run(b"".join([frames[index] for index in indexes])))


def _split(frames: bytes, base: int, ends: list[int]) -> list[bytes]:
    begin, found = 0, []
    for end in ends:
        found.append(frames[begin : end - base])
        begin = end - base
    return found


def _message(frame: bytes) -> PubSubMessage:
    topic, value, time_ms, headers = wire.parse_message(frame)
    try:
        return PubSubMessage(topic.decode(), value, time_ms, headers)
    except UnicodeDecodeError:
        raise InvalidName(f"topic {topic[:64]!r} is not UTF-8") from None


# -- requests -------------------------------------------------------------------------------


class PubSubRequests:
    """All requests of pub/sub."""

    def __init__(self, service: PubSubService) -> None:
        self._service = service
        self.handlers: Mapping[int, Handler] = {
            Op.PUB: self._pub,
            Op.SUB: self._sub,
            Op.UNSUB: self._unsub,
            Op.PUBLISH_RUN: self._publish_run,
            Op.PUBLISH: self._publish,
            Op.SUBSCRIBE: self._subscribe,
            Op.WILL: self._will,
            Op.PS_SUBSCRIPTIONS: self._subscriptions,
            Op.PS_RETAINED: returning(wire.Listing, service.retained),
            Op.PS_TOPICS: returning(wire.Listing, service.topics),
        }

    # -- publishing

    def _publish_run(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        run = wire.parse_run(bytes(payload))
        self._service.publish(peer, Received(run), _receivers(peer, request_id))

    def _publish(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        options, run = wire.parse_publish(payload)
        self._service.publish(
            peer,
            Received(run),
            _receivers(peer, request_id),
            retain=options.retain,
            ttl_ms=options.ttl_ms,
        )

    def _pub(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        reader = FieldReader(payload)
        topic = reader.text()
        options = self._classic_options(reader.text())
        value = bytes(reader.rest()) or b"\0"  # an absent value counts as empty bytes
        check_value(value)
        publication = Publication.of([PubSubMessage(topic, value, self._service.now_ms())])
        done = reply_ok(peer, request_id)
        self._service.publish(peer, publication, done, retain=options.retain, ttl_ms=options.ttl_ms)

    def _classic_options(self, text: str) -> wire.Publish:
        if not text:
            return wire.Publish()
        given = json_options(text, wire.ClassicPublish, InvalidOption)
        if not given.retain:
            return wire.Publish()
        if given.ttl is None:
            return wire.Publish(True, self._service.default_ttl_ms or None)
        return wire.Publish(True, wire.classic_ttl_ms(given.ttl))

    def _will(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        will = unpack(_WILL, payload)
        if will is None:
            self._service.clear_will(peer)
        else:
            self._service.set_will(peer, will)
        peer.ok(request_id)

    # -- subscribing

    def _sub(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        reader = FieldReader(payload)
        asked = Subscribe(reader.text())
        reader.end()
        self._start(peer, request_id, asked)

    def _subscribe(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        self._start(peer, request_id, unpack(Subscribe, payload))

    def _start(self, peer: Peer, request_id: int, asked: Subscribe) -> None:
        encoding = OURS if peer.said_hello else CLASSIC
        self._service.subscribe(peer, asked, peer, encoding, reply_ok(peer, request_id))

    def _unsub(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        reader = FieldReader(payload)
        pattern = reader.text()
        reader.end()
        self._service.unsubscribe(peer, pattern)
        peer.ok(request_id)

    def _subscriptions(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        asked = unpack(wire.Listing, payload)
        peer.data(request_id, pack(self._service.subscriptions(peer, asked.limit)))


def _receivers(peer: Peer, request_id: int) -> Callable[[Receivers | NexoError], None]:
    def done(result: Receivers | NexoError) -> None:
        if isinstance(result, NexoError):
            peer.fail(request_id, result)
        elif result.refused:
            peer.data(request_id, wire.pack_with_refused(result.counts, result.refused))
        else:
            peer.data(request_id, wire.pack_receivers(result.counts))

    return done
