"""Streams by key: the newest record of one key, of all keys, and compaction."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from functools import partial

from nexo.brokers.stream import compaction
from nexo.brokers.stream.compaction import compact, is_due
from nexo.brokers.stream.keys import KeyIndex, sound
from nexo.brokers.stream.registry import Stream
from nexo.errors import InvalidOption, NexoError
from nexo.model import Persistence
from nexo.protocol import stream as wire
from nexo.protocol.frames import Buffer
from nexo.protocol.ops import Op
from nexo.services.service import Handler, Peer
from nexo.services.stream.chores import Chores, Pause, Steps, log_failure
from nexo.services.stream.core import Core

_AT_ONCE = 1_000
"""Offsets that an index may be behind and a request need not wait."""
_STATE_BYTES = 2 * 1024**2
"""How much of the log is read for one portion of the current state."""


class Keyed:
    """S_GET, S_STATE and S_COMPACT."""

    def __init__(self, core: Core, chores: Chores) -> None:
        self._core = core
        self._chores = chores
        self._compacting: set[tuple[int, int]] = set()
        self._indexes: dict[tuple[int, int], KeyIndex] = {}
        self.handlers: dict[int, Handler] = {
            Op.S_GET: self.get,
            Op.S_STATE: self.state,
            Op.S_COMPACT: self.compact,
        }

    def _index(self, stream: Stream, partition: int) -> KeyIndex:
        key = stream.id, partition
        found = self._indexes.get(key)
        if found is None:
            found = self._indexes[key] = KeyIndex(stream.partition(partition))
        return found

    def newest_offset(self, stream: Stream, key: bytes) -> int:
        """Of the newest record of a key; -1 if there is none or it was deleted."""
        index = self._index(stream, stream.partition_of(key))
        index.advance()
        return index.offset_of(key)

    def forget(self, stream: Stream) -> None:
        """The stream is gone."""
        for partition in range(stream.options.partitions):
            self._indexes.pop((stream.id, partition), None)

    # -- reading -----------------------------------------------------------------------

    def get(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """The newest record of a key, or NULL."""
        ask = wire.unpack(wire.Get, payload)
        stream = self._core.engine.streams.get(ask.stream)
        partition = stream.partition_of(ask.key)

        def reply() -> None:
            found = self._index(stream, partition).find(ask.key)
            if found is None:
                peer.null(request_id)
            else:
                peer.data(request_id, wire.pack_headed(partition), found[0], *found[1])

        self._when_indexed(peer, request_id, stream, [partition], reply)

    def state(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """The newest record of every key, a portion at a time."""
        ask = wire.unpack(wire.StateAsk, payload)
        stream = self._core.engine.streams.get(ask.stream)

        def reply() -> None:
            parts: list[Buffer] = []
            partitions: list[int] = []
            following = self._collect(stream, ask, parts, partitions)
            head = wire.pack_headed(wire.StateReply(partitions, following))
            peer.data(request_id, head, *parts)

        wanted = range(ask.partition, stream.options.partitions)
        self._when_indexed(peer, request_id, stream, wanted, reply)

    def _when_indexed(
        self,
        peer: Peer,
        request_id: int,
        stream: Stream,
        partitions: Iterable[int],
        reply: Callable[[], None],
    ) -> None:
        """Reply at once, or when the keys of a long log have been looked through."""

        def done(error: NexoError | None) -> None:
            try:
                if error is not None:
                    raise error
                reply()
            except NexoError as failure:
                peer.fail(request_id, failure)

        self.prepare(((stream, number) for number in partitions), done)

    def prepare(
        self, places: Iterable[tuple[Stream, int]], done: Callable[[NexoError | None], None]
    ) -> None:
        """Look through the keys of partitions of streams, in slices if there is much to do."""
        indexes = [(stream, self._index(stream, number)) for stream, number in places]
        late = [(stream, index) for stream, index in indexes if index.behind > _AT_ONCE]
        if not late:
            done(None)
            return
        steps = (step for stream, index in late for step in self._steps(stream, index))
        self._chores.add(steps, done)

    def _steps(self, stream: Stream, index: KeyIndex) -> Steps:
        return self._while_there(stream, index.steps())

    def _while_there(self, stream: Stream, steps: Steps) -> Steps:
        for pause in steps:
            yield pause
            self._core.check_there(stream)

    def _collect(
        self, stream: Stream, ask: wire.StateAsk, parts: list[Buffer], partitions: list[int]
    ) -> tuple[int, int] | None:
        size, read, offset = 0, 0, ask.offset
        for number in range(ask.partition, stream.options.partitions):
            index = self._index(stream, number)
            index.advance()
            for header, entry in sound(stream.partition(number), offset):
                found = index.current(entry)
                read += len(entry)
                if found is not None:
                    parts += [found[0], *found[1]]
                    partitions.append(number)
                    size += len(found[0]) + sum(map(len, found[1]))
                if size >= ask.max_bytes or read >= _STATE_BYTES:
                    return number, header.next_offset
            offset = 0
        return None

    # -- compaction --------------------------------------------------------------------

    def compact(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        """Compact a stream now; deletions go at once."""
        ask = wire.unpack(wire.Name, payload)
        stream = self._core.engine.streams.get(ask.stream)
        if not stream.options.compacts:
            raise InvalidOption(
                f"stream {ask.stream!r} keeps every record of a key (cleanup = "
                f"{stream.options.cleanup}): set cleanup=compact first"
            )
        freed: list[int] = []

        def done(error: NexoError | None) -> None:
            if error is not None:
                peer.fail(request_id, error)
            else:
                peer.data(request_id, wire.pack(sum(freed)))

        every = range(stream.options.partitions)
        self._start(stream, every, freed, done, keep_deletions=False)

    def compact_if_due(self, stream: Stream) -> None:
        """Compact what has grown dirty enough."""
        due = [
            number
            for number, partition in enumerate(stream.partitions())
            if is_due(stream, partition) and (stream.id, number) not in self._compacting
        ]
        if due:
            self._start(stream, due, [], log_failure, keep_deletions=True)

    def _start(
        self,
        stream: Stream,
        partitions: Iterable[int],
        freed: list[int],
        done: Callable[[NexoError | None], None],
        *,
        keep_deletions: bool,
    ) -> None:
        run = partial(self._compact, stream, freed=freed, keep_deletions=keep_deletions)
        steps = (step for number in partitions for step in run(number))
        self._chores.add(self._while_there(stream, steps), done)

    def _compact(
        self, stream: Stream, number: int, *, freed: list[int], keep_deletions: bool
    ) -> Steps:
        core, partition, place = self._core, stream.partition(number), (stream.id, number)
        while place in self._compacting:
            yield None
        self._compacting.add(place)
        try:
            index = self._index(stream, number)
            steps = compact(stream, partition, index, core.now_ms, keep_deletions=keep_deletions)
            freed.append((yield from self._with_syncs(steps)))
        finally:
            self._compacting.discard(place)
        core.engine.checkpoint(stream, number)
        core.end_turn_soon()

    def _with_syncs(self, steps: compaction.Steps) -> Generator[Pause | None, None, int]:
        sync = partial(self._core.runtime.committed, Persistence.FILE_SYNC)
        while True:
            try:
                step = next(steps)
            except StopIteration as end:
                return int(end.value)
            yield sync if step is compaction.Step.SYNC else None
