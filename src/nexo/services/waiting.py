"""Requests that wait for an event: long polls, watchers of a job, blocked reads.

One room per broker. A wait names the channels it listens to, such as a group's records or
one job's end; an event wakes its channel. A channel that is a tuple belongs to its first
field, so that all channels of one stream can be woken together. Every way a wait can end is
here: an answer, its deadline, a cancel, an error, the end of its connection. A client that
does not read its replies gets no more of them: its waits are paused. An answer that raises
is logged, and the others are still answered.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any, Final

from nexo.errors import NexoError, ShuttingDown, internal_error
from nexo.services.connection import Connection, Done

log = logging.getLogger("nexo.waiting")

WaitKey = tuple[int, Hashable]

_STALE = 64
"""Stale deadlines that may stay in the heap before it is rebuilt."""


ELSEWHERE: Final = object()
"""Returned by `Wait.attempt` after `WaitingRoom.leave`: something else has to answer first."""


@dataclass(slots=True, eq=False)
class Wait:
    """One waiting request."""

    connection: Connection
    ticket: Hashable
    """The dialect's number of the request, unique in its connection; `cancel` takes it."""
    channels: tuple[Hashable, ...]
    due_ms: int
    attempt: Callable[[], Any]
    """Returns the result, or None while there is none; may raise the `NexoError` to answer with."""
    done: Done[Any]
    nothing: Any = None
    """The answer at the deadline, or a function that returns it."""
    each: bool = False
    """Whether each wait of the channel looks for something else: the next may find something when
    this one does not."""

    @property
    def key(self) -> WaitKey:
        """Unique in the room."""
        return self.connection.id, self.ticket

    def give_up(self) -> None:
        """Answer with nothing."""
        self.answer(_outcome(self.nothing) if callable(self.nothing) else self.nothing)

    def answer(self, result: Any) -> None:
        """Call ``done``; what it raises is logged, so that the other waits are still answered."""
        try:
            self.done(result)
        except Exception:
            log.exception("a waiting request of %s could not be answered", self.connection.name)


class WaitingRoom:
    """All waiting requests of one broker, first come first served within a channel."""

    def __init__(self) -> None:
        self._waits: dict[WaitKey, Wait] = {}
        self._away: dict[WaitKey, Wait] = {}
        """Those that are `ELSEWHERE`: nothing but an end of theirs concerns them."""
        self._channels: dict[Hashable, dict[WaitKey, Wait]] = {}
        self._under: dict[Hashable, dict[Hashable, None]] = {}
        self._by_connection: dict[int, dict[WaitKey, Wait]] = {}
        self._deadlines: list[tuple[int, int, WaitKey]] = []
        self._entered = 0

    def __len__(self) -> int:
        return len(self._waits)

    def answer(self, wait: Wait) -> bool:
        """Answer now if there is a result; returns whether it need not wait here.

        Raises what the attempt raises. An earlier one of that ticket ends with nothing.
        """
        if self._away and wait.key in self._away:
            self.cancel(wait.connection, wait.ticket)
        result = wait.attempt()
        if result is None:
            return False
        if result is not ELSEWHERE:
            wait.done(result)
        return True

    def answer_or_wait(self, wait: Wait, now_ms: int) -> bool:
        """`answer` now, with nothing if it is due; else wait. Returns whether it waits."""
        return not self.answer(wait) and self.wait(wait, now_ms)

    def wait(self, wait: Wait, now_ms: int) -> bool:
        """Answer with nothing if it is due, else wait; returns whether it waits."""
        if wait.due_ms <= now_ms:
            wait.give_up()
            return False
        self.add(wait)
        return True

    def leave(self, wait: Wait) -> None:
        """A wait that is tried needs something else first, which is followed by `back`."""
        self._away[wait.key] = wait

    def back(self, wait: Wait, error: NexoError | None) -> bool:
        """What a wait went `ELSEWHERE` for is there, or failed; returns whether to go on."""
        if self._away.get(wait.key) is not wait:
            return False
        del self._away[wait.key]
        if error is not None:
            wait.answer(error)
        return error is None

    def add(self, wait: Wait) -> None:
        """Add a wait without trying it first; an earlier one of that ticket ends with nothing."""
        key = wait.key
        if key in self._waits:
            self.cancel(wait.connection, wait.ticket)
        self._waits[key] = wait
        self._by_connection.setdefault(key[0], {})[key] = wait
        if not wait.connection.congested:
            self._enter_channels(wait)
        self._entered += 1
        heappush(self._deadlines, (wait.due_ms, self._entered, key))
        if len(self._deadlines) > 2 * len(self._waits) + _STALE:
            self._rebuild_deadlines()

    def waiting_on(self, channel: Hashable) -> bool:
        return channel in self._channels

    def waiting_under(self, subject: Hashable) -> bool:
        """Whether any request waits on a channel ``(subject, ...)``."""
        return subject in self._under

    # -- ways to end ------------------------------------------------------------

    def wake(self, channel: Hashable) -> None:
        """Answer in order until one finds nothing: then there is nothing for the next either."""
        waits = self._channels.get(channel)
        while waits:
            wait = next(iter(waits.values()))
            if not self._try(wait):
                if wait.each:
                    self._wake_rest(channel)
                return

    def _wake_rest(self, channel: Hashable) -> None:
        """Continue after a first wait that looks for something of its own."""
        for wait in list(self._in(channel))[1:]:
            if wait.key in self._waits and not self._try(wait) and not wait.each:
                return

    def wake_under(self, subject: Hashable) -> None:
        """Wake every channel ``(subject, ...)``."""
        for channel in list(self._under.get(subject, ())):
            self.wake(channel)

    def wake_every(self, channel: Hashable) -> None:
        """Answer every wait that finds something; each looks for something else."""
        for wait in self._in(channel):
            self._try(wait)

    def give_up(self, channel: Hashable) -> None:
        """Answer all waits of a channel with nothing, as if they were due."""
        for wait in [*self._in(channel), *self._away.values()]:
            if channel in wait.channels:
                self.cancel(wait.connection, wait.ticket)

    def fail(self, channel: Hashable, error: NexoError) -> None:
        """Answer all waits of a channel with an error: what they wait for is gone."""
        for wait in self._in(channel):
            self._remove(wait)
            wait.answer(error)

    def fail_under(self, subject: Hashable, error: NexoError) -> None:
        """Answer all on channels ``(subject, ...)`` with an error."""
        for channel in list(self._under.get(subject, ())):
            self.fail(channel, error)

    def cancel(self, connection: Connection, ticket: Hashable) -> bool:
        """Answer one with nothing; False if it does not wait."""
        key = connection.id, ticket
        if (wait := self._waits.get(key)) is not None:
            self._give_up(wait)
        elif (wait := self._away.pop(key, None)) is not None:
            wait.give_up()
        return wait is not None

    def drop(self, connection: Connection) -> None:
        """Drop the waits of a closed connection."""
        for wait in list(self._by_connection.get(connection.id, {}).values()):
            self._remove(wait)
        if self._away:
            self._away = {key: wait for key, wait in self._away.items() if key[0] != connection.id}

    def pause(self, connection: Connection) -> None:
        """The client does not read its replies: its waits find nothing until `resume`."""
        for wait in self._by_connection.get(connection.id, {}).values():
            self._leave_channels(wait)

    def resume(self, connection: Connection) -> None:
        """The client reads again: answer its waits that find something now."""
        for wait in list(self._by_connection.get(connection.id, {}).values()):
            if connection.congested:
                return
            if self._waits.get(wait.key) is wait:
                self._enter_channels(wait)
                self._try(wait)

    def stop(self) -> None:
        """End all waits before a stop: a client that `resends` asks again, others get nothing."""
        for wait in list(self._waits.values()):
            if wait.connection.resends:
                self._remove(wait)
                wait.answer(ShuttingDown("the server is stopping; ask again in a moment"))
            else:
                self._give_up(wait)

    def expire(self, now_ms: int) -> None:
        """Answer every wait that is due with nothing."""
        while (due_ms := self.next_due_ms()) is not None and due_ms <= now_ms:
            self._give_up(self._waits[heappop(self._deadlines)[2]])

    def next_due_ms(self) -> int | None:
        """When `expire` has something to do."""
        heap = self._deadlines
        while heap:
            due_ms, _, key = heap[0]
            wait = self._waits.get(key)
            if wait is not None and wait.due_ms == due_ms:
                return due_ms
            heappop(heap)
        return None

    # -- inside -------------------------------------------------------------------

    def _in(self, channel: Hashable) -> Iterable[Wait]:
        """The waits of a channel that are still there when their turn comes."""
        for wait in list(self._channels.get(channel, {}).values()):
            if self._waits.get(wait.key) is wait:
                yield wait

    def _try(self, wait: Wait) -> bool:
        result = _outcome(wait.attempt)
        if result is None:
            return False
        self._remove(wait)
        if result is not ELSEWHERE:
            wait.answer(result)
        return True

    def _give_up(self, wait: Wait) -> None:
        self._remove(wait)
        wait.give_up()

    def _remove(self, wait: Wait) -> None:
        key = wait.key
        del self._waits[key]
        _take_out(self._by_connection, key[0], key)
        self._leave_channels(wait)

    def _enter_channels(self, wait: Wait) -> None:
        for channel in wait.channels:
            if channel not in self._channels:
                self._open(channel)
            self._channels[channel][wait.key] = wait

    def _leave_channels(self, wait: Wait) -> None:
        for channel in wait.channels:
            if _take_out(self._channels, channel, wait.key) and isinstance(channel, tuple):
                _take_out(self._under, channel[0], channel)

    def _open(self, channel: Hashable) -> None:
        self._channels[channel] = {}
        if isinstance(channel, tuple):
            self._under.setdefault(channel[0], {})[channel] = None

    def _rebuild_deadlines(self) -> None:
        self._deadlines = [
            (wait.due_ms, number, key) for number, (key, wait) in enumerate(self._waits.items())
        ]
        heapify(self._deadlines)


def _outcome(call: Callable[[], Any]) -> Any:
    """The result or the error, without its traceback, which would form a reference cycle."""
    try:
        return call()
    except NexoError as error:
        return error.with_traceback(None)
    except Exception:
        log.exception("a waiting request failed")
        return internal_error()


def _take_out(rooms: dict[Any, dict[Any, Any]], name: Hashable, key: Hashable) -> bool:
    """Remove a key from a room; returns whether that emptied, and so removed, the room."""
    found = rooms.get(name)
    if found is None:
        return False
    found.pop(key, None)
    if not found:
        del rooms[name]
    return not found
