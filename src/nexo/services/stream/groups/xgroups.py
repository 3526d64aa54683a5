"""Groups of `nexo.xstreams`: named consumers that keep their messages (SPEC J2)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import islice
from typing import TypeAlias

from nexo.access.grants import Action
from nexo.access.permit import READ
from nexo.brokers.stream.delivery import gather
from nexo.brokers.stream.groups.claims import Claims
from nexo.brokers.stream.groups.flight import DeliveredRange
from nexo.brokers.stream.groups.progress import NO_END
from nexo.brokers.stream.groups.records import CountedRange
from nexo.brokers.stream.groups.shared import SharedGroup
from nexo.brokers.stream.messages import MessageLog
from nexo.brokers.stream.registry import OpenStream
from nexo.errors import Conflict, NexoError
from nexo.model import Buffer, check_name
from nexo.model.stream import Id, XConsumer, XDelivered, XGroup, XInfo, XPending
from nexo.options.described import check_range
from nexo.options.stream import SharedOptions
from nexo.services.connection import Connection, Done
from nexo.services.stream.core import Core
from nexo.services.stream.groups.xmessages import STREAM_OPTIONS, XMessages, following, ranges_of
from nexo.services.stream.permits import permit_group
from nexo.services.stream.reading import REPLY_BYTES
from nexo.services.waiting import Wait

MAX_CLAIMED = 10_000
"""The most messages that one claim takes over."""
XDelivery: TypeAlias = tuple[XDelivered, list[Buffer]]
"""What was delivered, and the batches that hold it."""


class XGroups:
    """The requests of a consumer of a group of `nexo.xstreams`."""

    def __init__(self, core: Core, messages: XMessages) -> None:
        self._core = core
        self._messages = messages

    # -- finding -----------------------------------------------------------------------

    def _find(self, stream: str, group: str) -> tuple[OpenStream, SharedGroup, Claims]:
        found, shared = self._core.engine.find(stream, group)
        if shared.claims is None:
            raise Conflict(
                f"group {group!r} of stream {stream!r} has leases that expire: use "
                f"client.stream, or another group"
            )
        return found, shared, shared.claims

    def _permitted(
        self, connection: Connection, stream: str, group: str
    ) -> tuple[OpenStream, SharedGroup, Claims]:
        permit_group(connection, stream, group)
        return self._find(stream, group)

    # -- groups ------------------------------------------------------------------------

    def make_group(
        self, connection: Connection, stream: str, group: str, start: Id | None, done: Done[bool]
    ) -> None:
        """Create a group unless it exists; answers whether it is new.

        It starts after an id, or with new messages only. Creating the stream too requires
        permission to write to it.
        """
        permit_group(connection, stream, group)
        check_name(group, "group")
        if stream not in self._core.engine.streams:
            permit_group(connection, stream, None, (Action.WRITE, Action.ADMIN))
        found = self._core.made(stream, STREAM_OPTIONS)
        log = self._messages.log(found)
        is_new = group not in found.groups
        if is_new:
            at = log.end if start is None else log.offset_from(following(start))
            after_id = start if start is not None and log.is_ahead(start) else None
            options = SharedOptions(release="claim")
            self._core.engine.make_group(found, group, {0: at}, options, after_id)
        else:
            self._find(stream, group)
        self._core.done_when_safe(found.options.persistence, done, is_new)

    def delete_consumer(
        self, connection: Connection, stream: str, group: str, consumer: str, done: Done[int]
    ) -> None:
        """Remove a consumer and what it holds; answers its waiting reads."""
        found, shared, claims = self._permitted(connection, stream, group)
        count = claims.dismiss(consumer)
        self._core.waits.give_up(_channel(found, group, consumer))
        self._after(found, group, shared)
        self._core.done_when_safe(found.options.persistence, done, count)

    def info(self, connection: Connection, stream: str) -> XInfo:
        """The stream's length and its groups."""
        found = self._core.permitted(connection, READ, stream)
        log = self._messages.log(found)
        self._messages.pass_over(found, log)
        groups = [
            _group_view(log, name, group.claims)
            for name, group in sorted(found.groups.items())
            if group.claims is not None
        ]
        return XInfo(log.count(), groups)

    # -- consuming ---------------------------------------------------------------------

    def read(
        self,
        connection: Connection,
        ticket: Hashable,
        stream: str,
        group: str,
        consumer: str,
        count: int,
        wait_ms: int,
        max_pending: int,
        done: Done[XDelivery],
    ) -> None:
        """Deliver new messages, unless the consumer holds ``max_pending``; wait for some."""
        found, _, _ = self._permitted(connection, stream, group)
        check_range("count", count, low=1)

        def attempt() -> XDelivery | None:
            return self._delivered(found, stream, group, consumer, count, max_pending)

        def delivered(messages: XDelivery | NexoError) -> None:
            if isinstance(messages, NexoError) or not messages[0].ranges:
                done(messages)
            else:  # holdings must be durable before they are reported
                self._core.done_when_safe(found.options.persistence, done, messages)

        # One channel each: a consumer at its limit must not block the others.
        channels = (_channel(found, group, consumer),)
        due_ms = self._core.due_ms(wait_ms)
        nothing: XDelivery = XDelivered([]), []
        self._core.answer_or_wait(
            Wait(connection, ticket, channels, due_ms, attempt, delivered, nothing)
        )

    def _delivered(
        self, found: OpenStream, stream: str, name: str, consumer: str, count: int, max_pending: int
    ) -> XDelivery | None:
        _, group, claims = self._find(stream, name)
        log, now_ms = self._messages.log(found), self._core.now_ms
        if claims.after_id is not None:
            self._messages.pass_over(found, log)
        while True:
            end = log.fitting(claims.position, count, REPLY_BYTES)
            given = claims.deliver(consumer, count, end, now_ms, max_pending)
            self._core.changed(found, name, group)
            if not given:
                return None
            batches = gather(found, given, NO_END)
            batches.check()
            if batches.gaps:
                group.skip(batches.gaps)
            if batches.parts:
                ranges = [(each.first, each.end, each.attempt) for each in given]
                return XDelivered(ranges), batches.parts

    def ack(
        self, connection: Connection, stream: str, group: str, ids: Sequence[Id], done: Done[int]
    ) -> None:
        """Finish messages, whoever holds them; answers how many were pending."""
        found, shared, claims = self._permitted(connection, stream, group)
        count = claims.ack(ranges_of(self._messages.log(found).offsets_of(ids)))
        self._after(found, group, shared)
        self._core.done_when_safe(found.options.persistence, done, count)

    def pending(
        self,
        connection: Connection,
        stream: str,
        group: str,
        consumer: str | None,
        offset: int,
        limit: int,
    ) -> list[XPending]:
        """A page of held messages, of one consumer or all, from an offset on."""
        found, _, claims = self._permitted(connection, stream, group)
        rows = list(islice(claims.held_from(offset, consumer), limit))
        stamps = self._messages.log(found).timestamps([at for at, _ in rows])
        now_ms = self._core.now_ms
        return [
            XPending(
                stamps.get(at, 0), at, lease.member.name,
                max(0, now_ms - lease.since_ms), lease.attempt,
            )
            for at, lease in rows
        ]  # fmt: skip

    def claim(
        self,
        connection: Connection,
        stream: str,
        group: str,
        consumer: str,
        min_idle_ms: int,
        count: int,
        done: Done[XDelivery],
    ) -> None:
        """Give a consumer messages that some consumer has held for too long."""
        found, shared, claims = self._permitted(connection, stream, group)
        check_range("count", count, low=1)
        now_ms = self._core.now_ms
        stale = claims.stale(min_idle_ms, min(count, MAX_CLAIMED), now_ms)
        batches = gather(found, [DeliveredRange(*each, 0, 0) for each in stale], REPLY_BYTES)
        batches.check()
        if batches.unsent:
            stale = _before(stale, min(first for _, first, _ in batches.unsent))
        claims.take_over(consumer, stale, now_ms)
        if batches.gaps:
            shared.skip(batches.gaps)
        self._core.changed(found, group, shared)
        claimed = XDelivered([(first, end, attempt) for _, first, end, attempt in stale])
        self._core.done_when_safe(found.options.persistence, done, (claimed, batches.parts))

    def renew(
        self,
        connection: Connection,
        stream: str,
        group: str,
        consumer: str,
        ids: Sequence[Id],
        done: Done[list[Id]],
    ) -> None:
        """Restart the idle time of held messages; answers the ids the consumer still holds."""
        found, shared, claims = self._permitted(connection, stream, group)
        offsets = self._messages.log(found).offsets_of(ids)
        held = claims.renew(consumer, ranges_of(offsets), self._core.now_ms)
        self._core.changed(found, group, shared)
        kept = {offset for _, first, end in held for offset in range(first, end)}
        still = [each for each in dict.fromkeys(ids) if each[1] in kept]
        self._core.done_when_safe(found.options.persistence, done, still)

    def _after(self, stream: OpenStream, name: str, group: SharedGroup) -> None:
        self._core.changed(stream, name, group)
        self._core.touched(stream)


def _channel(stream: OpenStream, group: str, consumer: str) -> tuple[int, str]:
    return stream.id, f"{group}\n{consumer}"


def _before(ranges: list[CountedRange], offset: int) -> list[CountedRange]:
    """The part of ascending ranges before an offset."""
    return [
        (partition, first, min(end, offset), attempt)
        for partition, first, end, attempt in ranges
        if first < offset
    ]


def _group_view(log: MessageLog, name: str, claims: Claims) -> XGroup:
    consumers = sorted(claims.members.values(), key=lambda keeper: keeper.name)
    return XGroup(
        name,
        claims.after_id or log.id_at(claims.position - 1),
        sum(keeper.held for keeper in consumers),
        claims.unread(log.end),
        claims.trimmed_unread,
        [XConsumer(keeper.name, keeper.held, keeper.seen_ms) for keeper in consumers],
    )
