"""Sessions of protocols that answer requests in the order in which they came.

Requests run as they arrive, so several may wait for their answers at once; an answer that is
ready before an earlier one is held back. What a client may send and leave unanswered is bounded
here, so that no dialect has to think of it.
"""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from nexo import limits
from nexo.dialects.dialect import Origin
from nexo.dialects.session import BaseSession, DialectState
from nexo.errors import NexoError, ProtocolError, ShuttingDown, Unauthenticated
from nexo.model import Buffer

log = logging.getLogger("nexo.session")

_FIRST_BYTES = 64
"""So much of a request says how it is refused."""
_ROOM = 64 * 1024
"""A request has this much room beside the largest payload."""
WORK_PER_TURN = 1024**2
"""About a millisecond, so that others are served meanwhile."""


@dataclass(slots=True, eq=False)
class Pending:
    """A request that waits for its answer; it is answered once."""

    session: PipelinedSession
    data: bytes | bytearray
    """The whole request; a large one as it was gathered, without a copy."""
    number: int
    """Counts the requests of the connection; identifies a wait."""
    room: int = 0
    """What it has taken of the room for large requests."""
    is_last: bool = False
    """The connection ends with its answer."""
    parts: Sequence[Buffer] | None = None
    """What to send, once it is answered."""

    def send(self, parts: Sequence[Buffer]) -> None:
        """Answer, with nothing if the client expects no answer."""
        self.parts = parts
        self.session.answered()

    def refuse(self, error: NexoError) -> None:
        """Answer with an error; a protocol without words for it closes the connection."""
        if reply := self.session.refusal(bytes(self.data[:_FIRST_BYTES]), error):
            self.send([reply])
        else:
            self.session.refuse(error)


def _done(steps: Iterator[int]) -> bool:
    """Do as much as fits into a turn of the loop; whether that was all."""
    left = WORK_PER_TURN
    for size in steps:
        left -= size
        if left <= 0:
            return False
    return True


class Skipping(Protocol):
    """Reads a request that is too large to be kept."""

    left: int
    """The bytes that are still to come."""

    def feed(self, data: memoryview) -> None:
        """Read the next bytes, at most ``left``; `ProtocolError` if they make no sense."""

    def answer(self, request: Pending) -> None:
        """Refuse it, once all of it was read."""


class PipelinedSession(BaseSession, asyncio.BufferedProtocol):
    """One connection, but for what a request is and does."""

    def __init__(self, state: DialectState, origin: Origin) -> None:
        super().__init__(state.host, origin)
        self._state = state
        self.dialect = state.dialect.name
        self.refusal = state.dialect.refusal
        self._arrived = bytearray()
        self._partial_since_ms = 0
        """When the part of a request that is here began to arrive; 0 if there is none."""
        self._waiting: deque[Pending] = deque()
        self._full = False
        """Too many requests wait for their answers."""
        self._room = 0
        """What the request that arrives has taken of the room for large ones."""
        self._skipping: Skipping | None = None
        self._heard_ms = self.opened_ms
        self._requests = 0
        self._bytes_in = self._bytes_out = 0

    # -- the protocol's own part -------------------------------------------------------

    @abstractmethod
    def request_size(self, arrived: bytearray, at: int) -> int | None:
        """The size of the request that begins at ``at``; None while too few bytes are here.

        `ProtocolError` if no request begins like this.
        """

    @abstractmethod
    def run(self, request: Pending) -> None:
        """Decode a request and call a use case, which answers now or later.

        A `NexoError` is answered; a `ProtocolError` also ends the connection.
        """

    @property
    def largest_request(self) -> int:
        """The size of the largest request of a client that is no stranger."""
        return self._usual_size

    def skipping(self, size: int) -> Skipping | None:
        """How to refuse a larger one in the protocol's words; None ends the connection."""
        return None

    # -- what it is given --------------------------------------------------------------

    def work(self, steps: Iterator[int]) -> None:
        """Do the work of a request, in several turns of the loop if it is much.

        Each step says how much it was. Later requests of the connection run after the last.
        """
        if not _done(steps):
            self.hold()
            self._host.loop.call_soon(self._work_on, steps)

    def _work_on(self, steps: Iterator[int]) -> None:
        try:
            if not _done(steps):
                self._host.loop.call_soon(self._work_on, steps)
                return
        except Exception:
            log.exception("a request of %s failed", self.name)
            self.kick("its request failed")
        self.release()

    def admit(self, *, needs_login: bool = True) -> None:
        """Raise `ShuttingDown` or `Unauthenticated` if a request must not be run now."""
        if self._state.stopping:
            raise ShuttingDown("the server is stopping; reconnect in a moment")
        if needs_login and self._is_stranger:
            raise Unauthenticated("log in first")

    @property
    def _is_stranger(self) -> bool:
        """It has not logged in where authentication is on."""
        return self.identity is None and self._host.guard is not None

    @property
    def introduced(self) -> bool:
        return self.identity is not None if self._host.guard else self._requests > 0

    # -- bytes in ----------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._is_stranger:
            return self._state.stranger_buffer
        return self._state.read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Run every whole request that has arrived."""
        if self._closing:
            return
        self._heard_ms = self._host.clock.now_ms()
        self._bytes_in += nbytes
        self._arrived += self._state.read_buffer[:nbytes]
        turn = self._host.turn
        turn.reading = True
        try:
            self._run_arrived()
        finally:
            turn.reading = False
            if turn.asked:
                turn.read(self)

    def _run_arrived(self) -> None:
        at = 0
        try:
            while not (self._closing or self._holds):
                size = None if self._skipping else self._whole_size(at)
                if size is None:
                    break
                data, at = self._taken(at, size)
                self._run(data)
            if self._skipping is not None and not self._closing:
                at += self._skip(self._skipping, memoryview(self._arrived)[at:])
        except ProtocolError as error:
            self.refuse(error)
        except Exception:
            log.exception("a request of %s failed", self.name)
            self.kick("its request failed")
        del self._arrived[:at]
        self._note_partial(at)

    def _taken(self, at: int, size: int) -> tuple[bytes | bytearray, int]:
        """The request at ``at``, and where the next one begins."""
        if at == 0 and len(self._arrived) == size > self._usual_size:
            data, self._arrived = self._arrived, bytearray()
            return data, 0
        return bytes(memoryview(self._arrived)[at : at + size]), at + size

    def _run(self, data: bytes | bytearray) -> None:
        self._requests += 1
        request = Pending(self, data, self._requests, self._room)
        self._room = 0
        self._waiting.append(request)
        try:
            self.run(request)
        except ProtocolError:
            raise
        except NexoError as error:
            request.refuse(error)
        if len(self._waiting) >= limits.PIPELINED_REQUESTS:
            self._full = True
            self.hold()

    def _whole_size(self, at: int) -> int | None:
        """The size of the next request if all of it is here."""
        size, here = self.request_size(self._arrived, at), len(self._arrived) - at
        known = here if size is None else size
        if known > limits.BEFORE_LOGIN_BYTES and not self._may_keep(known):
            return None
        return size if size is not None and size <= here else None

    @property
    def _usual_size(self) -> int:
        return self._host.settings.max_payload_bytes + _ROOM

    def _may_keep(self, size: int) -> bool:
        """Whether there is room for a request of this size now."""
        most = limits.BEFORE_LOGIN_BYTES if self._is_stranger else self.largest_request
        if size > most:
            self._skipping = None if self._is_stranger else self.skipping(size)
            if self._skipping is None:
                raise ProtocolError(f"a request of {size} bytes: must be at most {most}")
            return False
        if size <= self._usual_size or self._room:
            return True
        room = self._state.large_requests
        if not room.take(size, lambda: self._given(size)):
            self.hold()
            return False
        self._room = size
        return True

    def _given(self, size: int) -> None:
        """There is room for the request that arrives."""
        if self._gone:
            self._state.large_requests.give_back(size)
            return
        self._room = size
        self._partial_since_ms = self._host.clock.now_ms()
        self.release()

    def _skip(self, skipping: Skipping, arrived: memoryview) -> int:
        """Read on in a request that is too large; returns how much of ``arrived`` is its own."""
        with arrived, arrived[: skipping.left] as part:
            size = len(part)
            skipping.feed(part)
        if not skipping.left:
            self.hold()
            self._skipping = None
            request = Pending(self, b"", self._requests, is_last=True)
            self._waiting.append(request)
            skipping.answer(request)
        return size

    def _note_partial(self, taken: int) -> None:
        if not (self._arrived or self._skipping):
            self._partial_since_ms = 0
        elif taken or not self._partial_since_ms:
            self._partial_since_ms = self._host.clock.now_ms()

    # -- bytes out ---------------------------------------------------------------------

    def answered(self) -> None:
        """A request has its answer: send all that are next in line."""
        if self.closed:
            return
        parts: list[Any] = []
        is_last = False
        while self._waiting and self._waiting[0].parts is not None:
            request = self._waiting.popleft()
            parts += request.parts or ()
            is_last = request.is_last
            if request.room:
                self._state.large_requests.give_back(request.room)
        if parts:
            self._bytes_out += sum(map(len, parts))
            self._transport.writelines(parts)
        if is_last:
            self.finish()
        if self._full and len(self._waiting) < limits.PIPELINED_REQUESTS:
            self._full = False
            self.release()

    def _start_reading(self) -> None:
        self._host.loop.call_soon(self._go_on)  # not within the answer that made room

    def _go_on(self) -> None:
        if self._may_run:
            super()._start_reading()
            self._run_arrived()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._gone:
            taken = self._room + sum(request.room for request in self._waiting)
            if taken:
                self._state.large_requests.give_back(taken)
        super().connection_lost(exc)

    # -- what the host asks ------------------------------------------------------------

    def refuse(self, error: NexoError) -> None:
        """Say why no request can be taken, in the protocol's words, and end the connection."""
        log.info("refusing %s: %s", self.name, error.message)
        if not self.closed:
            self._transport.write(self.refusal(b"", error))
        self.finish()

    def check(self, now_ms: int) -> None:
        """Kick a client whose request does not arrive."""
        if not self._partial_since_ms or not self._may_run:
            return
        size = self.request_size(self._arrived, 0) or 0
        rate = limits.FRAME_BYTES_PER_S
        if self._room and self._state.large_requests.is_wanted:
            rate = limits.LARGE_REQUEST_BYTES_PER_S
        allowed_ms = 1000 * (limits.LOGIN_S + size / rate)
        if now_ms - self._partial_since_ms > allowed_ms:
            self.kick("its request does not arrive")

    def status(self) -> dict[str, Any]:
        return super().status() | {
            "heard_ms": self._heard_ms,
            "requests": self._requests,
            "bytes_in": self._bytes_in,
            "bytes_out": self._bytes_out,
            "in_flight": len(self._waiting),
        }
