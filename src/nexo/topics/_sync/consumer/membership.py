# Generated from _async/consumer/membership.py by tools/unasync.py; edit that file instead.
"""Membership in an ordered group: join, heartbeat, give up and take over partitions.

A partition changes its owner in two steps (`nexo.brokers.stream.groups.ordered`). Here that
means: what a newer generation revokes is given up only when the user holds none of its
messages, so that no two members ever work on one partition.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from nexo.client._sync import runtime
from nexo.client._sync.link.link import Duplex
from nexo.client._sync.requests import request
from nexo.client.connecting import LATE_S
from nexo.errors import ConnectionLost, NexoError, NotFound, NotMember
from nexo.protocol import stream as wire
from nexo.protocol import stream_ordered as ordered
from nexo.protocol.ops import Op
from nexo.topics.model import ReaderOptions, TopicPartition

log = logging.getLogger("nexo.topics")

_BEATS = 3
"""Heartbeats per session timeout. The broker answers them early when something changes."""
_DEFAULT_SESSION_MS = 30_000
_RETRY_S = 0.5
"""The pause after a failure, so that a persistent one does not keep the group busy."""


class Rebalanced(Protocol):
    """Is called when partitions of a member change."""

    def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """These are about to be revoked: what was processed may still be committed."""

    def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """These were assigned."""


class Membership:
    """One member. The reader sets `in_hand` and calls `settle` between messages."""

    def __init__(
        self,
        link: Duplex,
        options: ReaderOptions,
        listener: Rebalanced,
        on_news: Callable[[], None],
    ) -> None:
        self.member = ""
        self.generation = 0
        self.owned: list[TopicPartition] = []
        self.in_hand: set[TopicPartition] = set()
        """Partitions of which the user holds messages."""
        self.lock = runtime.Mutex()
        """Held while partitions come and go."""
        self._link = link
        self._options = options
        self._listener = listener
        self._on_news = on_news
        self._news: ordered.Assigned | None = None
        self._out = True
        self._stays = False
        """Whether the group knows a member that was given up here."""
        self._stopping = runtime.Event()
        self._beat = runtime.Event()
        self._task: runtime.Task | None = None
        self._unhook: Callable[[], object] = lambda: None
        session_s = (options.session_timeout_ms or _DEFAULT_SESSION_MS) / 1000
        self._pause_s = session_s / _BEATS
        self._poll: Any = None

    @property
    def unsettled(self) -> bool:
        """Whether `settle` has something to do."""
        return self._out or self._news is not None

    def lost(self) -> None:
        """The group continued without it, or is unreachable: `settle` joins again."""
        self._out = True

    # -- joining and leaving

    def join(self) -> None:
        """Become a member, unless it is one, or has left."""
        if self._stopping.is_set():
            return
        if self._out:
            with self.lock:
                if self._out:
                    self._join()
        if self._task is None:
            self._unhook = self._link.on_close(self.leave)
            self._task = runtime.spawn(self._stay, name=f"nexo-{self._options.group_id}")

    def _join(self) -> None:
        gone, self.owned, self._news = self.owned, [], None
        if gone:
            # Lost already: reported so that what was read of them is dropped.
            self._listener.revoked(gone)
        if self._stays:
            self._resign()
        ask = ordered.OrderedJoin(
            group=self._options.group_id,
            topics=list(self._options.topics),
            options=self._options.group_options(),
        )
        reply = request(self._link.call, Op.S_ORDERED_JOIN, ask, ordered.Assigned)
        self.member, self.generation, self._out = reply.member, reply.generation, False
        self._take_over(reply)

    def leave(self) -> None:
        """Give everything up."""
        self._unhook()
        self._stopping.set()
        self._beat.set()
        if self._poll is not None:
            self._poll.cancel()
        if self._task is not None and not self._task.is_current():
            self._task.join()
        out, self._out = self._out, True
        if not out or self._stays:
            self._resign()

    def _resign(self) -> None:
        self._stays = False
        ask = ordered.OrderedLeave(group=self._options.group_id, member=self.member)
        try:
            self._link.call(Op.S_ORDERED_LEAVE, wire.pack(ask))
        except NexoError as error:
            log.debug("could not leave group %r: %s", self._options.group_id, error)

    # -- staying alive

    def _stay(self) -> None:
        while not self._stopping.is_set():
            if self.unsettled:
                # The next message must be requested first; until then, only send heartbeats.
                self._beat.wait(self._pause_s)
                self._beat.clear()
            try:
                self._listen()
                self.settle()
            except (NexoError, TimeoutError) as error:
                self._failed(error)
                self._stopping.wait(_RETRY_S)

    def _listen(self) -> None:
        """Wait for a change, for as long as a heartbeat may take."""
        if self._out or self._stopping.is_set():
            return
        wait_s = 0.0 if self.unsettled else self._pause_s
        ask = self._beat_of(self.generation, wait_s)
        self._poll = self._link.poll(Op.S_HEARTBEAT, wire.pack(ask), timeout_s=wait_s + LATE_S)
        if self._stopping.is_set():
            self._poll.cancel()
        try:
            reply = self._poll.reply()
        finally:
            self._poll = None
        if reply:
            self._note(wire.unpack(ordered.Assigned, reply))

    def _failed(self, error: Exception) -> None:
        if isinstance(error, NotMember | NotFound | ConnectionLost):
            self.lost()
            self._on_news()
        else:
            log.warning("group %r: %s", self._options.group_id, error)

    def refresh(self) -> int:
        """A heartbeat that confirms nothing new; returns the group's generation."""
        if self._out:
            return self.generation
        news = self._heartbeat(self.generation)
        self._note(news)
        return news.generation

    def _note(self, news: ordered.Assigned) -> None:
        if news.generation > self.generation or self._brings_more(news):
            self._news = news
            self._on_news()

    def _brings_more(self, news: ordered.Assigned) -> bool:
        more = set(_partitions(news)) - set(self.owned)
        return news.generation == self.generation and bool(more)

    def _heartbeat(self, generation: int) -> ordered.Assigned:
        ask = self._beat_of(generation, 0.0)
        return request(self._link.call, Op.S_HEARTBEAT, ask, ordered.Assigned)

    def _beat_of(self, generation: int, wait_s: float) -> ordered.Heartbeat:
        return ordered.Heartbeat(
            group=self._options.group_id,
            member=self.member,
            generation=generation,
            wait_ms=int(wait_s * 1000),
            known=len(self.owned),
        )

    # -- partitions that come and go

    def settle(self) -> None:
        """Apply the group's changes, unless they revoke a partition the user has messages of."""
        if not self.unsettled:
            return
        with self.lock:
            if self._out:
                if not self.in_hand and not self._stopping.is_set():
                    self._join()
                return
            while (news := self._news) and not self.in_hand.intersection(self._gone(news)):
                self._news = None
                self._take(news)

    def _gone(self, news: ordered.Assigned) -> list[TopicPartition]:
        """The partitions lost with a new generation; within one, partitions are only added."""
        if news.generation <= self.generation:
            return []
        return [at for at in self.owned if at not in _partitions(news)]

    def _take(self, news: ordered.Assigned) -> None:
        """Give up what is revoked, confirm, and take over what was assigned."""
        gone = self._gone(news)
        self.generation = max(self.generation, news.generation)
        if gone:
            self._listener.revoked(gone)
            self.owned = [at for at in self.owned if at not in gone]
        confirmed = self._heartbeat(self.generation)
        if confirmed.generation != self.generation:
            self._news = confirmed  # the group moved on meanwhile
            return
        self._take_over(confirmed)

    def _take_over(self, news: ordered.Assigned) -> None:
        known, self.owned = self.owned, _partitions(news)
        new = [at for at in self.owned if at not in known]
        self._beat.set()
        if not new:
            return
        try:
            self._listener.assigned(new)
        except Exception:
            # They are owned and nobody would read them: start over.
            self.owned, self._stays = known, True
            self.lost()
            raise


def _partitions(news: ordered.Assigned) -> list[TopicPartition]:
    return [TopicPartition(*pair) for pair in news.owned]
