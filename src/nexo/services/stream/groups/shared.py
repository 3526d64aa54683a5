"""Use cases of shared groups: join, settle, seek (SPEC F); `taking.py` delivers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from nexo.access.permit import ADMIN
from nexo.brokers.stream.groups.flight import Refusal
from nexo.brokers.stream.groups.shared import SharedGroup
from nexo.brokers.stream.registry import OpenStream
from nexo.errors import NexoError
from nexo.model import check_name
from nexo.model.stream import Range, SettleRecords, StartPosition
from nexo.options.described import check_range, merged
from nexo.options.stream import SharedOptions
from nexo.services.connection import Connection, Done
from nexo.services.stream.core import Core
from nexo.services.stream.groups.taking import GroupTakes
from nexo.services.stream.permits import permit_group
from nexo.services.stream.positions import offsets_at, positions

_FLEETING = frozenset({"extend", "start"})
"""Verbs that only change leases. Leases are kept in memory, so no reply waits for the disk."""

_NAME_CHARS = 40
"""How many characters of a client's name begin its consumers' names."""


class JoinedConsumer(msgspec.Struct, frozen=True):
    """A consumer's identity in a group."""

    consumer: str
    generation: int
    ack_wait_ms: int
    floor: int
    """The lowest unfinished offset of partition 0."""


class Groups:
    """The requests of a consumer of a shared group."""

    def __init__(self, core: Core, taking: GroupTakes) -> None:
        self._core = core
        self._taking = taking
        self._joined = 0
        self._members: dict[int, dict[str, tuple[OpenStream, str]]] = {}

    def counts(self, connection: Connection, stream: str, group: str) -> list[int]:
        """The number of partitions: at first, after each growth, and now."""
        permit_group(connection, stream, group)
        return self._core.engine.streams.get(stream).counts

    # -- membership ------------------------------------------------------------------

    def join(
        self,
        connection: Connection,
        stream: str,
        group: str,
        done: Done[JoinedConsumer],
        *,
        options: dict[str, Any] | None = None,
        start: StartPosition = "beginning",
        start_ms: int | None = None,
        reports_starts: bool = False,
    ) -> None:
        """Become a consumer; creates the group if necessary, at ``start`` or at a time."""
        permit_group(connection, stream, group)
        check_name(group, "group")
        found = self._core.engine.streams.get(stream)

        def join(at: StartPosition) -> None:
            shared = self._ensure(found, group, options or {}, at)
            consumer = self._enter(connection, found, group, reports_starts=reports_starts)
            joined = JoinedConsumer(
                consumer, shared.generation, shared.options.ack_wait_ms, shared.floor(0)
            )
            self._core.done_when_safe(found.options.persistence, done, joined)

        if start_ms is None or group in found.groups:
            join(start)
        else:
            self._at_time(connection, found, start_ms, done, join)

    def _ensure(
        self, stream: OpenStream, name: str, options: dict[str, Any], start: StartPosition
    ) -> SharedGroup:
        """The group, created if necessary, tuned if options are given."""
        core, group = self._core, stream.groups.get(name)
        if group is None:
            wanted = merged(options, core.runtime.settings.group_options, "group")
            wanted.check_members()
            return self._make(stream, name, positions(core.replay, stream, start), wanted)
        group.options.check_members()
        if options:
            wanted = merged(options, group.options, "group")
            if wanted != group.options:
                group.tune(wanted, core.now_ms)
                self._taking.moved(stream, name, group)
        return group

    def _make(
        self, stream: OpenStream, name: str, starts: dict[int, int], options: SharedOptions
    ) -> SharedGroup:
        """A new group, at the beginning of partitions that ``starts`` does not name."""
        starts = positions(self._core.replay, stream, "beginning") | starts
        return self._core.engine.make_group(stream, name, starts, options)

    def _enter(
        self, connection: Connection, stream: OpenStream, group: str, *, reports_starts: bool
    ) -> str:
        """Make the client a consumer under a unique name, which begins with its own."""
        self._joined += 1
        number = f"{self._core.started_ms:x}-{connection.id:x}-{self._joined:x}"
        consumer = f"{connection.name[:_NAME_CHARS]}-{number}"
        stream.group(group).join(consumer, reports_starts=reports_starts)
        self._members.setdefault(connection.id, {})[consumer] = stream, group
        return consumer

    def leave(
        self,
        connection: Connection,
        stream: str,
        group: str,
        consumer: str,
        done: Done[None],
        *,
        unstarted: list[Range] | None = None,
        generation: int | None = None,
    ) -> None:
        """Stop being a consumer: releases its records and answers its waiting takes."""
        permit_group(connection, stream, group)
        found, shared = self._core.engine.find(stream, group)
        if generation is not None:
            shared.check(consumer, generation)
        self._exit(connection, found, group, consumer, unstarted)
        self._core.done_when_safe(found.options.persistence, done, None)

    def _exit(
        self,
        connection: Connection,
        stream: OpenStream,
        name: str,
        consumer: str,
        unstarted: list[Range] | None = None,
    ) -> None:
        """Release everything a consumer holds, and answer its waiting takes."""
        group = stream.groups.get(name)
        if group is not None and group.leave(consumer, self._core.now_ms, unstarted):
            self._taking.moved(stream, name, group)
        self._members.get(connection.id, {}).pop(consumer, None)
        self._core.waits.give_up(consumer)

    def connection_closed(self, connection: Connection) -> None:
        """Release everything that the client's consumers held."""
        for consumer, (stream, name) in self._members.pop(connection.id, {}).items():
            self._exit(connection, stream, name, consumer)

    # -- settling --------------------------------------------------------------------

    def settle(
        self,
        connection: Connection,
        said: SettleRecords,
        done: Done[list[Refusal]],
    ) -> None:
        """Ack, nack, release, extend or start leased records; answers what was rejected."""
        group, who, generation, begins = said.group, said.consumer, said.generation, said.begins
        permit_group(connection, said.stream, group)
        check_range("delay_ms", said.delay_ms)
        self._core.runtime.check_leads()
        found = self._core.engine.streams.get(said.stream)
        shared = found.group(group)
        if begins:
            shared.check(who, generation, begins)
        refusals = self._apply(shared, said)
        if begins:
            shared.start(who, generation, begins)
        self._taking.moved(found, group, shared)
        if said.verb in _FLEETING:
            done(refusals)
        else:
            self._core.done_when_safe(found.options.persistence, done, refusals)

    def _apply(self, group: SharedGroup, said: SettleRecords) -> list[Refusal]:
        now_ms, who, generation = self._core.now_ms, said.consumer, said.generation
        match said.verb:
            case "ack":
                return group.ack(who, generation, said.ranges)
            case "nack":
                reason = said.reason or "nack"
                return group.nack(
                    who, generation, said.ranges, now_ms, delay_ms=said.delay_ms, reason=reason
                )
            case "release":
                return group.release(who, generation, said.ranges)
            case "extend":
                return group.extend(who, generation, now_ms, said.ranges or None)
            case "start":
                group.start(who, generation, said.ranges)
                group.take_up(who)
                return []

    # -- seeking and deleting ----------------------------------------------------------

    def seek(
        self,
        connection: Connection,
        stream: str,
        group: str,
        done: Done[int],
        *,
        to: StartPosition = "beginning",
        to_ms: int | None = None,
    ) -> None:
        """Reset a group, creating it if necessary; answers its new generation."""
        permit_group(connection, stream, group)
        found = self._core.engine.streams.get(stream)

        def reset(starts: dict[int, int]) -> None:
            generation = self._reset(found, group, starts)
            self._core.done_when_safe(found.options.persistence, done, generation)

        if to_ms is None:
            reset(positions(self._core.replay, found, to))
        else:
            self._at_time(connection, found, to_ms, done, reset)

    def _at_time(
        self,
        connection: Connection,
        stream: OpenStream,
        time_ms: int,
        done: Done[Any],
        then: Callable[[dict[int, int]], None],
    ) -> None:
        """Call ``then`` with the offsets of a time, once they are found."""

        def located(found: dict[int, int] | NexoError) -> None:
            if connection.closed:
                return
            try:
                if isinstance(found, NexoError):
                    raise found
                self._core.check_there(stream)
                then(found)
            except NexoError as error:
                done(error)

        offsets_at(self._core.replay, stream, range(stream.options.partitions), time_ms, located)

    def _reset(self, stream: OpenStream, name: str, starts: dict[int, int]) -> int:
        group = stream.groups.get(name)
        if group is None:
            defaults = self._core.runtime.settings.group_options
            group = self._make(stream, name, starts, defaults)
        generation = group.seek(starts)
        self._taking.moved(stream, name, group)
        return generation

    def delete(self, connection: Connection, stream: str, group: str, done: Done[None]) -> None:
        """Delete a group; waiting takes get an error."""
        permit_group(connection, stream, group, ADMIN)
        found = self._core.engine.streams.get(stream)
        self._core.engine.drop_group(found, group)
        self._core.touched(found)
        self._core.done_when_safe(found.options.persistence, done, None)
