"""Streams and groups as things: make, describe, change, list, delete."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

import msgspec

from nexo.brokers.stream.registry import Stream
from nexo.brokers.stream.retention import retain
from nexo.brokers.stream.survey import survey
from nexo.errors import AlreadyExists, NexoError, NotFound
from nexo.model import Persistence
from nexo.protocol import stream as wire
from nexo.protocol.ops import Op
from nexo.protocol.survey import MAX_LIMIT, SurveyAsk
from nexo.services.service import Handler, Peer, shown_to
from nexo.services.stream.bounds import check_limit, check_not_negative
from nexo.services.stream.core import Core, answer
from nexo.services.stream.keyed import Keyed
from nexo.services.stream.replay import Replay

MAX_NAMES = 10_000


class Admin:
    """Requests about streams and groups as a whole."""

    def __init__(self, core: Core, keyed: Keyed) -> None:
        self._core = core
        self._keyed = keyed
        self.on_deleted: Callable[[], None] = lambda: None
        """Called when a stream was deleted."""
        self.handlers: dict[int, Handler] = {
            Op.S_MAKE: self.make,
            Op.S_DESCRIBE: self.describe,
            Op.S_UPDATE: self.update,
            Op.S_LIST: self.names,
            Op.S_GROUPS: self.groups,
            Op.S_SURVEY: self.survey,
            Op.S_TIERED: self.tiered,
            Op.S_RETAIN: self.retain,
        }

    def make(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Create a stream."""
        ask = wire.unpack(wire.Make, payload)
        self._core.runtime.check_writable()
        if ask.fresh and ask.stream in self._core.engine.streams:
            raise AlreadyExists(
                f"stream {ask.stream!r} exists: delete it first or use another name"
            )
        core = self._core
        is_new = ask.stream not in core.engine.streams
        stream = core.engine.create(ask.stream, ask.options, core.now_ms)
        info = wire.pack(_info(stream, core.replay))

        def done(error: NexoError | None) -> None:
            if error is not None and is_new and core.engine.streams.numbered(stream.id) is stream:
                core.engine.delete(ask.stream, core.now_ms)  # what was refused is not there
            answer(peer, request_id, error, info)

        core.when_safe_or_undone(stream.options.persistence, done)

    def update(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Change options."""
        ask = wire.unpack(wire.Make, payload)
        stream = self._core.engine.update(ask.stream, ask.options)
        self._describe_when_safe(peer, request_id, stream)

    def _describe_when_safe(self, peer: Peer, request_id: int, stream: Stream) -> None:
        mode = stream.options.persistence
        self._core.data_when_safe(
            mode, peer, request_id, wire.pack(_info(stream, self._core.replay))
        )

    def describe(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Show a stream."""
        ask = wire.unpack(wire.Name, payload)
        stream = self._core.engine.streams.get(ask.stream)
        peer.data(request_id, wire.pack(_info(stream, self._core.replay)))

    def delete(self, peer: Peer, request_id: int, name: str) -> None:
        """Delete a stream; its files go once the deletion is durable."""
        core = self._core
        stream = core.delete(name, lambda error: answer(peer, request_id, error))
        self._keyed.forget(stream)
        core.waits.fail_under(stream.id, NotFound(f"stream {name!r} was deleted"))
        self.on_deleted()

    def names(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """List names in order."""
        ask = wire.unpack(wire.ListAsk, payload)
        check_limit(ask.limit)
        streams = self._core.engine.streams
        found = filter(shown_to(peer), streams.names(ask.prefix, ask.after))
        peer.data(request_id, wire.pack(list(islice(found, min(ask.limit, MAX_NAMES)))))

    def groups(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Show the groups of a stream, with their lag."""
        ask = wire.unpack(wire.GroupsAsk, payload)
        stream = self._core.engine.streams.get(ask.stream)
        names = list(stream.groups) if ask.group is None else [ask.group]
        peer.data(request_id, wire.pack([_group_info(stream, name) for name in names]))

    def survey(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Show a page of all streams and groups with their lag."""
        ask = wire.unpack(SurveyAsk, payload)
        check_limit(ask.limit)
        check_not_negative(ask.position, "position")
        page = survey(self._core.engine, ask.position, min(ask.limit, MAX_LIMIT))
        peer.data(request_id, wire.pack(page))

    def tiered(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Note what the lake holds."""
        ask = wire.unpack(wire.TieredTo, payload)
        stream = self._core.engine.streams.get(ask.stream)
        stream.check_incarnation(ask.created_ms)
        self._core.engine.tiered(stream, ask.partition, ask.offset)
        self._core.ok_when_safe(Persistence.FILE_SYNC, peer, request_id)

    def retain(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Apply the limits now."""
        ask = wire.unpack(wire.Name, payload)
        stream = self._core.engine.streams.get(ask.stream)
        peer.data(request_id, wire.pack(self.apply_limits(stream)))

    def apply_limits(self, stream: Stream) -> int:
        """Free what a stream need not keep, and tell its groups."""
        core = self._core
        starts = [part.start_offset for part in stream.partitions()]
        freed = retain(stream, core.now_ms, core.hot)
        for index, part in enumerate(stream.partitions()):
            if part.start_offset > starts[index]:
                kept = core.replay.first_offset(stream, index) < part.start_offset
                core.engine.dropped(stream, index, (starts[index], part.start_offset), kept=kept)
                core.end_turn_soon()
        return freed


def _info(stream: Stream, replay: Replay) -> wire.StreamInfo:
    return wire.StreamInfo(
        name=stream.name,
        created_ms=stream.created_ms,
        options=msgspec.to_builtins(stream.options),
        partitions=[
            wire.PartitionInfo(
                start_offset=replay.first_offset(stream, index),
                hot_offset=part.start_offset,
                next_offset=part.next_offset,
                stable_offset=part.stable_offset,
                size_bytes=part.log.size_bytes,
                tiered_offset=stream.tiered[index],
                last_ms=part.last_ms,
            )
            for index, part in enumerate(stream.partitions())
        ],
        groups=list(stream.groups),
    )


def _group_info(stream: Stream, name: str) -> wire.GroupInfo:
    group, parts = stream.group(name), stream.partitions()
    lanes = [
        wire.LaneInfo(
            floor=lane.floor,
            next_offset=part.next_offset,
            lag=lane.lag,
            in_flight=lane.in_flight,
            to_redeliver=lane.to_redeliver,
            parked=lane.parked,
        )
        for lane, part in zip(group.status(stream.ends()), parts, strict=True)
    ]
    return wire.GroupInfo(
        name=name,
        generation=group.generation,
        options=msgspec.to_builtins(group.options),
        consumers=list(group.members),
        lag=sum(lane.lag for lane in lanes),
        partitions=lanes,
    )
