"""One client connection: runs the requests of its frames."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from time import monotonic_ns
from typing import Any, cast

from nexo import limits
from nexo.access.login import INTERNAL, ClientCredentials
from nexo.dialects.dialect import Origin
from nexo.dialects.nexo import moving
from nexo.dialects.nexo.inbox import Drain, Inbox
from nexo.dialects.nexo.link import BrokerLink
from nexo.dialects.nexo.movable import ClientMove, Unwritten
from nexo.dialects.nexo.replies import reply_data
from nexo.dialects.nexo.replying import ReplyingSession
from nexo.dialects.nexo.state import NexoState
from nexo.errors import NexoError, Overloaded, ProtocolError, UnknownOpcode, internal_error
from nexo.model import Broker
from nexo.protocol import hello
from nexo.protocol.frames import FrameKind, frame
from nexo.protocol.messages import pack
from nexo.protocol.ops import BROKER_OF, Op
from nexo.protocol.server import (
    BackupAsk,
    BackupBegin,
    BackupEnd,
    BackupFiles,
    BackupRead,
    unpack_ask,
)
from nexo.protocol.values import encode_value
from nexo.version import __version__

log = logging.getLogger("nexo.session")

TURN_NS = 4_000_000
"""After so long, requests of one read that have not run yet wait until others were served."""
_REQUEST = int(FrameKind.REQUEST)
"""A plain number: looking up an enum member costs as much as packing a header."""


class NexoSession(ReplyingSession, asyncio.BufferedProtocol):
    """Implements `nexo.dialects.nexo.handlers.Peer` on an asyncio transport.

    While the client does not read its replies, no more of its requests are read.
    """

    dialect = "nexo"
    __slots__ = (
        "_busy_poll", "_checked", "_inbox", "_links", "_max_in_flight", "_pinged", "_table",
        "_token", "_turn", "_whereabouts",
    )  # fmt: skip

    def __init__(self, state: NexoState, origin: Origin) -> None:
        super().__init__(state, origin)
        host = state.host
        self._table = state.before_login
        most, buffer = host.settings.max_payload_bytes, state.read_buffer
        if host.guard is not None:
            most, buffer = min(most, limits.BEFORE_LOGIN_BYTES), state.stranger_buffer
        self._inbox: Inbox | Drain = Inbox(buffer, most, self._on_frame)
        self._busy_poll = host.busy_poll
        self._turn = host.turn
        self._links: dict[Broker, BrokerLink] = {}
        self._token = ""
        self._whereabouts: moving.Whereabouts | None = None
        self._max_in_flight = host.settings.max_in_flight
        self._pinged = False
        self._checked = (0, 0, 0)

    @property
    def introduced(self) -> bool:
        if self._host.guard is None:
            return self._meter.requests > 0
        return self.identity is not None

    # -- asyncio's side -------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._inbox.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Run every request that arrived, then send all their replies at once."""
        meter, busy_poll, turn = self._meter, self._busy_poll, self._turn
        meter.arrived_ns = now_ns = monotonic_ns()
        busy_poll.heard(now_ns, nbytes)
        self._pinged = False
        self._replying = not meter.waiting
        self._touched = True  # replies are sent below
        turn.reading = True
        try:
            self._inbox.received(nbytes)
        except NexoError as error:
            self.refuse(error, self._inbox.refused)
        finally:
            self._replying = False
            turn.reading = False
            if turn.asked:
                turn.read(self)
            if self._out:
                self.flush()
            else:
                self._touched = False
            now_ns = meter.read(nbytes, self._inbox)
            if not meter.waiting:
                busy_poll.sent(now_ns)

    def connection_lost(self, exc: Exception | None) -> None:
        for link in self._links.values():
            link.close()
        self._state.linked.pop(self._token, None)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The client reads too slowly: hold its requests, including those that have arrived."""
        super().pause_writing()
        for link in self._links.values():
            link.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.congested:
            for link in self._links.values():
                link.resume_reading()

    def _stop_reading(self) -> None:
        self._inbox.halt()
        super()._stop_reading()

    def _start_reading(self) -> None:
        self._inbox.go_on()
        if self._inbox.midway:
            self.buffer_updated(0)
        if not self._inbox.halted and not self._closing:
            super()._start_reading()

    # -- requests -------------------------------------------------------------

    def _on_frame(self, kind: int, meta: int, request_id: int, payload: memoryview) -> None:
        if kind != _REQUEST:
            self._on_sign_of_life(kind, request_id)
        elif not self._closing:
            answer, handler = self._table.answers[meta], self._table.handlers[meta]
            self._in_flight = in_flight = self._in_flight + 1
            try:
                if answer is not None:
                    self._answered(request_id, answer(self, payload))
                    return
                if handler is None or in_flight > self._max_in_flight:
                    self._run_other(meta, request_id, payload)
                else:
                    handler(self, request_id, payload)
                    if self._in_flight == in_flight:
                        self._meter.left(meta, request_id)
                        self._replying = False
                if monotonic_ns() - self._meter.arrived_ns > TURN_NS:
                    self._give_way()
            except NexoError as error:
                self.fail(request_id, error)
            except Exception:
                log.exception("request 0x%02X of %s failed", meta, self.name)
                self.fail(request_id, internal_error())

    def _run_other(self, op: int, request_id: int, payload: memoryview) -> None:
        """Run a request that has no handler in this host, or reject one too many."""
        in_flight = self._in_flight
        if in_flight > self._max_in_flight and op != Op.CANCEL:
            raise Overloaded(f"{self._max_in_flight} requests wait for an answer; slow down")
        self._on_other(op, request_id, payload)
        if self._in_flight == in_flight and BROKER_OF[op] in self._host.services:
            self._meter.left(op, request_id)  # others are timed where they run
            self._replying = False

    def _give_way(self) -> None:
        """Run the rest of what has arrived after others were served."""
        self.hold()
        self._host.loop.call_soon(self.release)

    def _on_sign_of_life(self, kind: int, request_id: int) -> None:
        self._meter.requests -= 1  # it was counted as one of the read's frames
        if kind == FrameKind.PING:
            self._send(frame(FrameKind.PONG, 0, request_id))
        elif kind != FrameKind.PONG:
            raise ProtocolError(f"Frame type 0x{kind:02X} is not for clients to send")

    def _on_other(self, op: int, request_id: int, payload: memoryview) -> None:
        """Run a request of this process, or of another broker."""
        match op:
            case Op.ECHO:
                self.data(request_id, bytes(payload))
            case Op.HELLO:
                self._on_hello(request_id, payload)
            case Op.STATUS | Op.PEERS | Op.CANCEL | Op.BACKUP:
                self._for_broker(op, request_id, payload)
            case _:
                self._relay(BROKER_OF[op], op, request_id, payload)

    def _on_hello(self, request_id: int, payload: memoryview) -> None:
        _, asked = hello.decode_hello(payload)
        self.said_hello = asked.said_hello if self.origin is Origin.LINK else True
        self.resends = asked.resends
        if self.origin is Origin.LINK and asked.link:
            self._token = asked.link
            self._state.linked[asked.link] = self
        if asked.client:
            self.name = _printable(asked.client, limits.CLIENT_NAME_CHARS)
        if self.origin is Origin.ADMIN and asked.address:
            self.address = _printable(asked.address, limits.CLIENT_NAME_CHARS)
        given = ClientCredentials(asked.user, asked.password, asked.token)
        self.log_in(given, partial(self._welcome, request_id))

    def _welcome(self, request_id: int, error: NexoError | None) -> None:
        if error is not None:
            self.fail(request_id, error)
            return
        settings = self._host.settings
        self._table = self._state.table
        if isinstance(self._inbox, Inbox):
            self._inbox.admit(self._state.read_buffer, settings.max_payload_bytes)
        welcome = hello.Welcome(__version__, settings.max_payload_bytes, settings.idle_ping_ms)
        self.data(request_id, pack(welcome))

    def _for_broker(self, op: int, request_id: int, payload: memoryview) -> None:
        """STATUS, PEERS, CANCEL and BACKUP name their broker in the first byte."""
        try:
            broker = Broker(payload[0])
        except (IndexError, ValueError):
            raise ProtocolError("the payload must start with a broker's number, 1 to 4") from None
        service = self._host.services.get(broker)
        if service is None:
            self._relay(broker, op, request_id, payload)
        elif op == Op.CANCEL:
            self.unanswered()
            service.cancel(self, int.from_bytes(payload[1:5], "big"))
        elif op == Op.BACKUP:
            self._backup(broker, request_id, unpack_ask(payload[1:]))
        elif op == Op.STATUS:
            status = self._host.overview.status(self, broker)
            status["requests"] = self._state.timings.status(broker)
            self.data(request_id, encode_value(status))
        else:
            found = self._host.overview.connections(self, broker)
            self.data(request_id, encode_value(found))

    def _backup(self, broker: Broker, request_id: int, ask: BackupAsk) -> None:
        backups = self._host.backups
        match ask:
            case BackupBegin():
                self.data(request_id, pack(BackupFiles(backups.begin(self, broker))))
            case BackupRead(number, position):
                done = reply_data(self, request_id, bytes)
                backups.read(self, broker, number, position, done)
            case BackupEnd():
                backups.end(self, broker)
                self.ok(request_id)

    def _relay(self, broker: Broker | None, op: int, request_id: int, payload: memoryview) -> None:
        if broker is None or broker in self._host.services:
            raise UnknownOpcode(f"Unknown opcode: 0x{op:02X}")
        link = self._links.get(broker)
        if link is None or link.closed:
            link = self._links[broker] = self._new_link(broker)
            link.open(self._introduction(link))
        link.forward(op, request_id, bytes(payload))
        if self._whereabouts is not None and self._whereabouts.relayed(link, self._meter.requests):
            link.wanted = True

    def _new_link(self, broker: Broker) -> BrokerLink:
        path = self._host.link_path(broker)
        buffer, most_bytes = self._state.read_buffer, self._host.settings.write_buffer_bytes
        link = BrokerLink(self, broker, path, buffer, most_bytes)
        link.on_quiet = self._move_over
        return link

    def _introduction(self, link: BrokerLink) -> hello.Hello:
        user = None
        if self.identity is not None and self.identity.user is not INTERNAL:
            user = self.identity.user.name
        if self._whereabouts is None and self.origin is Origin.CLIENT and not self.said_hello:
            self._whereabouts = moving.Whereabouts()
        return hello.Hello(
            client=self.name, user=user, said_hello=self.said_hello, resends=self.resends,
            link=link.token,
        )  # fmt: skip

    # -- moving to another process ------------------------------------------------------

    def _move_over(self, link: BrokerLink) -> None:
        """Move to the other end of a link, once what was said is written."""
        call_soon = self._host.loop.call_soon
        call_soon(call_soon, moving.give, self, link)

    @property
    def transport(self) -> asyncio.Transport:
        """The connection."""
        return self._transport

    def waiting(self) -> list[int] | None:
        """The requests that wait for an answer; None if the connection cannot move now."""
        if self.origin is not Origin.CLIENT or self.said_hello or not self._may_run:
            return None
        if self._out or self._inbox.midway or self._transport.get_write_buffer_size():
            return None
        found = [*self._meter.waiting]
        for link in set(self._links.values()):
            found += link.pending
        return found if len(found) == self._in_flight and moving.is_plain(self._transport) else None

    def reached_without(self, link: BrokerLink) -> list[Broker]:
        """The brokers here, and those that have a link, but for one."""
        return [*self._host.services, *(to for to, one in self._links.items() if one is not link)]

    def live_on(self, link: BrokerLink) -> None:
        """The client has moved to the other end of a link: represent it here from now on."""
        assert link.transport is not None
        self.origin, self._transport = Origin.LINK, link.transport
        self._whereabouts = None
        self._token = link.token
        self._state.linked[link.token] = self
        self._links = {to: one for to, one in self._links.items() if one is not link}
        link.transport.set_protocol(self)

    def take_place(self, move: ClientMove) -> Unwritten:
        """The client that this session represents moves here."""
        link = self._new_link(move.brokers[0])
        link.token, self._token = self._token, ""
        self._state.linked.pop(link.token, None)
        link.take(self._transport, set(move.waiting))
        own = {to: one for to, one in self._links.items() if not one.closed}
        self._links = dict.fromkeys(move.brokers, link) | own
        waits = Unwritten()
        self._transport = cast("asyncio.Transport", waits)
        self.origin = Origin.CLIENT
        self.name, self.address = move.name, move.address
        self._in_flight += len(move.waiting)
        self._whereabouts = moving.Whereabouts()
        return waits

    def arrive(self, transport: asyncio.Transport, waits: Unwritten) -> None:
        """The client's connection is here."""
        if self._gone:
            transport.abort()
            return
        transport.set_write_buffer_limits(high=self._host.settings.write_buffer_bytes)
        transport.set_protocol(self)
        self._transport = transport
        transport.writelines(waits.parts)
        if waits.is_closing():
            transport.close()
        elif not self._may_run:
            transport.pause_reading()

    def check(self, now_ms: int) -> None:
        """Ping a silent client that can answer; kick one that stays silent or stops mid-frame."""
        limit_ms, before = self._host.settings.idle_ping_ms, self._checked
        meter, silent_ms = self._meter, now_ms - self.heard_ms
        self._checked = (now_ms, meter.requests, meter.bytes_in)
        if silent_ms >= 2 * limit_ms and (self._pinged or self._midway or self.congested):
            self.kick("no sign of life")
        elif before[0] and self._midway and meter.requests == before[1]:
            if meter.bytes_in - before[2] < limits.FRAME_BYTES_PER_S * (now_ms - before[0]) / 1000:
                self.kick("its request arrives too slowly")
        elif silent_ms >= limit_ms and self._may_ping and not self._pinged:
            self._pinged = True
            self._send(frame(FrameKind.PING, 0, 0))

    @property
    def _may_ping(self) -> bool:
        """Clients without HELLO know no ping; a link notices by itself when its process ends."""
        return self.said_hello and self.origin is not Origin.LINK

    @property
    def _midway(self) -> bool:
        """Whether part of a frame has arrived, the rest has not, and we would read it."""
        return self._inbox.midway and not self._inbox.halted

    @property
    def heard_ms(self) -> int:
        """When it last sent anything."""
        ago_ns = monotonic_ns() - self._meter.arrived_ns
        return self._host.clock.now_ms() - ago_ns // 1_000_000

    def status(self) -> dict[str, Any]:
        return super().status() | {
            "heard_ms": self.heard_ms,
            "requests": self._meter.requests,
            "bytes_in": self._meter.bytes_in,
            "bytes_out": self._meter.bytes_out,
            "in_flight": self._in_flight,
            "hello": self.said_hello,
        }

    def dismiss(self) -> None:
        if self.resends and not self._closing:
            self._say_goodbye()
        self.finish()

    def finish(self) -> None:
        if not self._closing:
            self._inbox = Drain(self._state.read_buffer)
        super().finish()


def _printable(text: str, most: int) -> str:
    """At most ``most`` characters of ``text``; control characters and the like are escaped."""
    short = text if len(text) <= most else text[: most - 1] + "…"
    if short.isprintable():
        return short
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in short)
