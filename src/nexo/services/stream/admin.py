"""Administration of streams and shared groups: create, describe, change, list, delete."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from msgspec import to_builtins
from msgspec.structs import asdict

from nexo.access.grants import Action, Extent
from nexo.access.permit import ADMIN, ANY, permit, visible_rows
from nexo.brokers.stream.cleanup.retention import retain
from nexo.brokers.stream.registry import OpenStream
from nexo.brokers.stream.status import MAX_SURVEY, MembersOf, survey
from nexo.errors import AlreadyExists, InvalidOption, NexoError, NotFound, OffsetOutOfRange
from nexo.model import Broker, Persistence, check_name
from nexo.model.stream import GroupInfo, PartitionInfo, PartitionProgress, StreamInfo, StreamSurvey
from nexo.options.described import check_range
from nexo.options.stream import StreamOptions, options_from, updated
from nexo.services.connection import Connection, Done
from nexo.services.durability import check_offered
from nexo.services.stream.core import Core
from nexo.services.stream.keyed import Keyed
from nexo.services.stream.permits import permit_everything, permit_group
from nexo.services.stream.reading import MAX_LIMIT

MAX_NAMES = 10_000


@dataclass(frozen=True, slots=True)
class Outline:
    """What is known of a stream without opening its logs."""

    name: str
    options: StreamOptions
    is_system: bool
    number: int
    """Never reused by another stream."""
    created_ms: int


class StreamAdmin:
    """Requests of administrators and observers."""

    def __init__(self, core: Core, keyed: Keyed) -> None:
        self._core = core
        self._keyed = keyed
        self.on_deleted: Callable[[OpenStream], None] = lambda _stream: None
        """Called when a stream was deleted."""
        self.on_partitions_added: Callable[[OpenStream], None] = lambda _stream: None
        """Called when a stream has got more partitions."""
        self.members: MembersOf = lambda _group: {}
        """The readers of a group besides the members that the engine knows."""

    # -- streams -------------------------------------------------------------------------

    def create(
        self,
        connection: Connection,
        name: str,
        options: Mapping[str, Any],
        done: Done[StreamInfo],
        *,
        fresh: bool = False,
        update: bool = False,
    ) -> None:
        """Create a stream, or find it if it has these options.

        With ``fresh`` one that exists is an error, with ``update`` it is changed.
        """
        core = self._core
        if update and name in core.engine.streams:
            self.update(connection, name, options, done)
            return
        permit(connection.identity, Broker.STREAM, ADMIN, name)
        check_offered(options, core.runtime.settings)
        core.runtime.check_writable()
        is_new = name not in core.engine.streams
        if fresh and not is_new:
            raise AlreadyExists(f"stream {name!r} exists: delete it first or use another name")
        stream = core.engine.create(name, options, core.now_ms)
        if is_new:
            core.unjournalled.add(stream.id)
        description = self._describe(stream)

        def safe(error: NexoError | None) -> None:
            if error is not None and is_new and core.engine.streams.numbered(stream.id) is stream:
                core.engine.delete(name, core.now_ms)  # a refused stream must not exist
            done(error or description)

        core.when_safe_or_undone(stream.options.persistence, safe)

    def ensure(
        self, connection: Connection, name: str, options: Mapping[str, Any], done: Done[None]
    ) -> None:
        """Create a stream; one that exists keeps its options."""
        permit(connection.identity, Broker.STREAM, ADMIN, name)
        stream = self._core.made(name, options)
        self._core.done_when_safe(stream.options.persistence, done, None)

    def is_there(self, name: str) -> bool:
        return name in self._core.engine.streams

    def check_create(
        self, connection: Connection, name: str, options: Mapping[str, Any]
    ) -> StreamOptions:
        """Raise what creating a new stream would raise; returns the options it would have."""
        permit(connection.identity, Broker.STREAM, ADMIN, name)
        check_name(name, "stream")
        check_offered(options, self._core.runtime.settings)
        if name in self._core.engine.streams:
            raise AlreadyExists(f"stream {name!r} exists: delete it first or use another name")
        return options_from(options, self._core.runtime.settings.stream_options)

    def check_more_partitions(self, connection: Connection, name: str, partitions: int) -> None:
        """Raise unless a stream has fewer partitions, and may have that many."""
        stream = self._core.permitted(connection, ADMIN, name)
        stream.check_growable()
        now = stream.options.partitions
        if updated(stream.options, {"partitions": partitions}).partitions == now:
            raise InvalidOption(f"stream {name!r} has {now} partitions already")

    def drop_before(self, connection: Connection, name: str, partition: int, offset: int) -> int:
        """Forget the records of a partition below an offset, -1 for all of them.

        Returns the first offset that is left.
        """
        stream = self._core.permitted(connection, ADMIN, name)
        stream.check_writable()
        found = stream.partition(partition)
        offset = found.stable_offset if offset == -1 else offset
        if not 0 <= offset <= found.stable_offset:
            raise OffsetOutOfRange(
                f"offset {offset} of stream {name!r}, partition {partition}: must be from 0 to "
                f"{found.stable_offset}"
            )
        start = found.start_offset
        found.drop_before(offset)
        self._skip_dropped(stream, partition, start)
        return found.start_offset

    def update(
        self,
        connection: Connection,
        name: str,
        options: Mapping[str, Any],
        done: Done[StreamInfo],
    ) -> None:
        """Change options of a stream while it runs."""
        permit(connection.identity, Broker.STREAM, ADMIN, name)
        check_offered(options, self._core.runtime.settings)
        engine, before = self._core.engine, self._core.engine.streams.get(name).options.partitions
        stream = engine.update(name, options, self._core.now_ms)
        if stream.options.partitions > before:
            self._core.unjournalled.add(stream.id)  # what is published to the new ones waits
            self.on_partitions_added(stream)
        self._core.done_when_safe(stream.options.persistence, done, self._describe(stream))

    def describe(self, connection: Connection, name: str) -> StreamInfo:
        """Show a stream."""
        return self._describe(self._core.permitted(connection, ANY, name))

    def check_knows_streams(self, connection: Connection) -> None:
        """Raise `Forbidden` for a user who may use no stream at all."""
        visible_rows(connection.identity, Broker.STREAM, ANY, Extent.NAME)

    def outline(self, connection: Connection, name: str) -> Outline:
        """Show a stream without opening its logs."""
        return _outline(self._core.permitted(connection, ANY, name))

    def start_offset(self, connection: Connection, name: str, partition: int) -> int:
        """The first offset of a partition that can be read."""
        stream = self._core.permitted(connection, ANY, name)
        return self._core.replay.first_offset(stream, partition)

    def size_bytes(self, connection: Connection, name: str, partition: int) -> int:
        """What a partition's log takes."""
        return self._core.permitted(connection, ANY, name).partition(partition).log.size_bytes

    def outline_numbered(self, connection: Connection, number: int, created_ms: int) -> Outline:
        """Show the stream with a number; `NotFound` if there is none."""
        stream = self._core.engine.streams.numbered(number)
        if stream is None or stream.created_ms != created_ms:
            raise NotFound(f"there is no stream with number {number}")
        permit(connection.identity, Broker.STREAM, ANY, stream.name)
        return _outline(stream)

    def delete(self, connection: Connection, name: str, done: Done[None]) -> None:
        """Delete a stream; its files are removed once that is durable."""
        permit(connection.identity, Broker.STREAM, ADMIN, name)
        core = self._core
        stream = core.delete(name, done)
        self._keyed.forget(stream)
        core.waits.fail_under(stream.id, NotFound(f"stream {name!r} was deleted"))
        self.on_deleted(stream)

    def names(
        self,
        connection: Connection,
        prefix: str = "",
        after: str = "",
        limit: int = MAX_NAMES,
        *,
        tiering: bool = False,
    ) -> list[str]:
        """Names in order that begin with ``prefix``, from after ``after`` on.

        With ``tiering``, of streams that have it on, so that a pipeline need not look at others.
        """
        shows = visible_rows(connection.identity, Broker.STREAM, ANY, Extent.NAME)
        check_range("limit", limit, MAX_LIMIT, 1)
        streams = self._core.engine.streams
        found: Iterator[str] = filter(shows, streams.names(prefix, after))
        if tiering:
            found = (name for name in found if streams.get(name).options.tiering)
        return list(islice(found, min(limit, MAX_NAMES)))

    def survey(self, connection: Connection, position: int, limit: int) -> StreamSurvey:
        """A page of all streams and groups with their lag."""
        permit_everything(connection, (Action.READ, Action.ADMIN))
        check_range("limit", limit, MAX_LIMIT, 1)
        check_range("position", position)
        return survey(self._core.engine, position, min(limit, MAX_SURVEY), self.members)

    def tiered(
        self,
        connection: Connection,
        name: str,
        partition: int,
        offset: int,
        done: Done[None],
        created_ms: int = 0,
    ) -> None:
        """Note that the lake holds everything of this incarnation below ``offset``."""
        stream = self._core.permitted(connection, ADMIN, name)
        stream.check_incarnation(created_ms)
        self._core.engine.tiered(stream, partition, offset)
        self._core.when_safe(Persistence.FILE_SYNC, done)

    def retain(self, connection: Connection, name: str) -> int:
        """Apply the limits now; returns the bytes freed."""
        return self.apply_limits(self._core.permitted(connection, ADMIN, name))

    def apply_limits(self, stream: OpenStream) -> int:
        """Free what a stream need not keep; its groups skip that."""
        core = self._core
        starts = [part.start_offset for part in stream.partitions()]
        freed = retain(stream, core.now_ms, core.hot)
        for index, start in enumerate(starts):
            self._skip_dropped(stream, index, start)
        return freed

    def _skip_dropped(self, stream: OpenStream, index: int, start: int) -> None:
        """Move groups past what a partition's log has dropped since it began at ``start``."""
        core, dropped = self._core, stream.partition(index).start_offset
        if dropped > start:
            in_lake = core.replay.first_offset(stream, index) < dropped
            core.engine.skip(stream, index, [(start, dropped)], in_lake=in_lake)
            core.end_turn_soon()

    def _describe(self, stream: OpenStream) -> StreamInfo:
        first_offset = self._core.replay.first_offset
        partitions = [
            PartitionInfo(
                start_offset=first_offset(stream, index),
                next_offset=part.next_offset,
                stable_offset=part.stable_offset,
                size_bytes=part.log.size_bytes,
                tiered_offset=stream.tiered[index],
                last_ms=part.last_ms,
                hot_offset=part.start_offset,
            )
            for index, part in enumerate(stream.partitions())
        ]
        options = to_builtins(stream.options)
        groups, growths = list(stream.groups), stream.growths.ends
        return StreamInfo(stream.name, stream.created_ms, options, partitions, groups, growths)

    # -- shared groups -------------------------------------------------------------------

    def groups(
        self, connection: Connection, name: str, group: str | None = None,
        record: tuple[int, int] | None = None,
    ) -> list[GroupInfo]:  # fmt: skip
        """The groups of a stream, or one of them, with their lag.

        ``record`` is a partition and an offset: what each has done with that one.
        """
        permit_group(connection, name, group)
        stream = self._core.engine.streams.get(name)
        wanted = list(stream.groups) if group is None else [group]
        if record is not None:
            check_range("offset", record[1])
            stream.partition(record[0])  # raises if there is none
        return [_describe_group(stream, each, record) for each in wanted]


def _outline(stream: OpenStream) -> Outline:
    return Outline(stream.name, stream.options, stream.is_system, stream.id, stream.created_ms)


def _describe_group(stream: OpenStream, name: str, record: tuple[int, int] | None) -> GroupInfo:
    group = stream.group(name)
    counts = group.status(stream.ends())
    partitions = [
        PartitionProgress(next_offset=part.next_offset, **asdict(each))
        for part, each in zip(stream.partitions(), counts, strict=True)
    ]
    return GroupInfo(
        name=name,
        generation=group.generation,
        options=to_builtins(group.options),
        consumers=list(group.members),
        lag=sum(each.lag for each in counts),
        partitions=partitions,
        record=None if record is None else group.record(*record),
    )
