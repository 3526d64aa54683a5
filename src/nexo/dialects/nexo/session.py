"""One client connection: frames in, replies out (the `Peer` that services talk to)."""

from __future__ import annotations

import asyncio
import logging
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, cast

from nexo.dialects.nexo.inbox import Inbox
from nexo.dialects.nexo.meter import Meter
from nexo.errors import NexoError, Overloaded, ProtocolError, UnknownOpcode
from nexo.model import Broker
from nexo.protocol import hello
from nexo.protocol.frames import HEADER, Buffer, Kind, Status, frame, pack_str
from nexo.protocol.ops import BROKER_OF, Op
from nexo.services.service import Peer

if TYPE_CHECKING:
    from nexo.access.login import Identity
    from nexo.dialects.nexo.relay import Relay
    from nexo.server.host import Host

log = logging.getLogger("nexo.session")

JOIN_BYTES = 64 * 1024
"""Replies up to this size are joined into one write; larger ones are written in parts."""

EARLY_PARTS = 24
"""So many parts of replies leave before the rest of a run of requests is served: the peer
has something to work on meanwhile."""
EARLY_BYTES = 8 * 1024
"""So does a part of this size."""

# Plain numbers: looking a member up in its enum costs as much as packing a header.
_REQUEST, _RESPONSE = int(Kind.REQUEST), int(Kind.RESPONSE)
_OK, _NULL, _DATA = int(Status.OK), int(Status.NULL), int(Status.DATA)
_pack = HEADER.pack


class Session(asyncio.BufferedProtocol):
    """Implements `nexo.services.service.Peer` on an asyncio transport.

    Everything sent in one turn of the loop leaves in one write. While the peer does not
    read its replies, no more of its requests are read.
    """

    __slots__ = (
        "_closing", "_host", "_in_flight", "_inbox", "_max_in_flight", "_meter", "_ours", "_out",
        "_relays", "_replying", "_touched", "_transport", "_vigil", "address", "closed", "coded",
        "congested", "id", "identity", "name", "opened_ms", "pinged", "trusted",
    )  # fmt: skip

    def __init__(self, host: Host, *, trusted: bool = False, ours: bool = False) -> None:
        """``ours`` comes from a process of this server, which logs in as anyone must."""
        self._host = host
        self._inbox = Inbox(host.read_buffer, host.settings.max_payload_bytes, self._on_frame)
        self._meter = Meter(host.timings)
        self._vigil = host.vigil
        self._out: list[Buffer] = []
        self._relays: dict[Broker, Relay] = {}
        self._touched = False
        self._replying = False
        self._closing = False
        self._in_flight = 0
        self._max_in_flight = host.settings.max_in_flight
        self.id = host.next_peer_id()
        self.name = ""
        self.coded = False
        self.closed = False
        self.congested = False
        self.pinged = False
        self.opened_ms = host.clock.now_ms()
        self.address = "local"
        self.identity: Identity | None = None
        """Who it logged in as, while authentication is on."""
        self.trusted = trusted
        """Came over an internal socket, so it may speak for another peer."""
        self._ours = ours

    # -- asyncio's side -------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take over an accepted socket."""
        transport = cast("asyncio.Transport", transport)  # uvloop's is none by inheritance
        self._transport = transport
        transport.set_write_buffer_limits(high=self._host.settings.write_buffer_bytes)
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self.address = peer[0]
        self.name = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else self.address
        try:
            self._host.session_opened(self)
        except NexoError as error:
            self._refuse(error)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the transport reads to."""
        return self._inbox.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Run every request that arrived, then send all their replies at once."""
        meter, vigil = self._meter, self._vigil
        meter.arrived_ns = now_ns = monotonic_ns()
        vigil.heard(now_ns, nbytes)
        self.pinged = False
        self._replying = not meter.waiting
        try:
            self._inbox.received(nbytes)
        except NexoError as error:
            self._refuse(error)
        finally:
            self._replying = False
            self.flush()
            now_ns = meter.read(nbytes, self._inbox)
            if not meter.waiting:
                vigil.sent(now_ns)

    def eof_received(self) -> bool:
        """The peer sends no more; close, which releases what it held (SPEC D8)."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Release everything this peer held."""
        self.closed = True
        self._out.clear()
        self._meter.waiting.clear()
        for relay in self._relays.values():
            relay.close()
        self._host.session_closed(self)

    def pause_writing(self) -> None:
        """The peer reads too slowly: what it asks for waits, that which has arrived too."""
        self.congested = True
        self._inbox.halt()
        self._transport.pause_reading()
        self._host.session_congested(self)

    def resume_writing(self) -> None:
        """The peer has caught up."""
        self.congested = False
        self._inbox.go_on()
        if self._inbox.midway and not self._closing:
            self.buffer_updated(0)
        if not self.congested:
            if not self._closing:
                self._transport.resume_reading()
            self._host.session_drained(self)

    # -- requests -------------------------------------------------------------

    def _on_frame(self, kind: int, meta: int, request_id: int, payload: memoryview) -> None:
        if kind != _REQUEST:
            self._on_sign_of_life(kind, request_id)
        elif not self._closing:
            answer = self._host.answers[meta]
            self._in_flight += 1
            try:
                if answer is not None:
                    self._answered(request_id, answer(payload))
                else:
                    self._run(meta, request_id, payload)
            except NexoError as error:
                self.fail(request_id, error)
            except Exception:
                log.exception("request 0x%02X of %s failed", meta, self.name)
                self.fail(request_id, NexoError("internal error; the server's log has details"))

    def _run(self, op: int, request_id: int, payload: memoryview) -> None:
        if self._in_flight > self._max_in_flight and op != Op.CANCEL:
            raise Overloaded(f"{self._max_in_flight} requests wait for an answer; slow down")
        handler, in_flight = self._host.handlers[op], self._in_flight
        if handler is not None:
            handler(self, request_id, payload)
        else:
            self.on_other(op, request_id, payload)
        if self._in_flight == in_flight and BROKER_OF[op] in self._host.services:
            self._meter.left(op, request_id)  # others are timed where they run
            self._replying = False

    def _answered(self, request_id: int, reply: bytes | None) -> None:
        """As `handler_of` an answer does it, without the detour."""
        self._in_flight -= 1
        out = self._out
        if reply:
            out.append(_pack(_RESPONSE, _DATA, request_id, len(reply)))
            out.append(reply)
        else:
            out.append(_pack(_RESPONSE, _NULL if reply is None else _OK, request_id, 0))
        if len(out) >= EARLY_PARTS:
            self.flush()

    def _on_sign_of_life(self, kind: int, request_id: int) -> None:
        self._meter.requests -= 1  # it was counted as one of the read's frames
        if kind == Kind.PING:
            self._send(frame(Kind.PONG, 0, request_id))
        elif kind != Kind.PONG:
            raise ProtocolError(f"Frame type 0x{kind:02X} is not for clients to send")

    def on_other(self, op: int, request_id: int, payload: memoryview) -> None:
        """Run a request that no service of this host handles."""
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
        self.coded = asked.coded if self.trusted else True
        self.name = asked.client or self.name
        if self._ours and asked.address:
            self.address = asked.address

        def decided(error: NexoError | None) -> None:
            if error is None:
                self.data(request_id, hello.encode_welcome(self._host.welcome()))
            else:
                self.fail(request_id, error)

        self._host.authenticate(self, asked, decided)

    def _for_broker(self, op: int, request_id: int, payload: memoryview) -> None:
        """STATUS, PEERS, CANCEL and BACKUP name their broker in the first byte."""
        try:
            broker = Broker(payload[0])
        except (IndexError, ValueError):
            raise ProtocolError("the payload must start with a broker's number, 1 to 4") from None
        service = self._host.services.get(broker)
        if service is None:
            self._relay(broker, op, request_id, payload)
        elif op == Op.STATUS:
            self.data(request_id, self._host.status(service))
        elif op == Op.PEERS:
            self.data(request_id, self._host.peers())
        elif op == Op.BACKUP:
            self._host.backup(self, broker, request_id, payload[1:])
        else:
            self.unanswered()
            service.cancel(self, int.from_bytes(payload[1:5], "big"))

    def _relay(self, broker: Broker | None, op: int, request_id: int, payload: memoryview) -> None:
        if broker is None or broker in self._host.services:
            raise UnknownOpcode(f"Unknown opcode: 0x{op:02X}")
        relay = self._relays.get(broker)
        if relay is None or relay.closed:
            relay = self._relays[broker] = self._host.open_relay(self, broker)
        relay.forward(op, request_id, bytes(payload))

    def _refuse(self, error: NexoError) -> None:
        """No request can be taken, as when the next frame's boundary is unknown: say why, close."""
        self._in_flight += 1
        self.fail(0, error)
        self.finish()

    # -- replies (Peer) ---------------------------------------------------------

    def ok(self, request_id: int) -> None:
        """Reply OK."""
        self._in_flight -= 1
        self._send(_pack(_RESPONSE, _OK, request_id, 0), request_id)

    def null(self, request_id: int) -> None:
        """Reply NULL."""
        self._in_flight -= 1
        self._send(_pack(_RESPONSE, _NULL, request_id, 0), request_id)

    def data(self, request_id: int, *parts: Buffer) -> None:
        """Reply DATA."""
        self._in_flight -= 1
        if self.closed:
            return
        size = len(parts[0]) if len(parts) == 1 else sum(map(len, parts))
        out = self._out
        out.append(_pack(_RESPONSE, _DATA, request_id, size))
        out += parts
        if not self._replying:
            self._late(request_id)
        if size >= EARLY_BYTES or (self._replying and len(out) >= EARLY_PARTS):
            self.flush()

    def fail(self, request_id: int, error: NexoError) -> None:
        """Reply with an error, coded for clients that said HELLO."""
        self._in_flight -= 1
        if self.coded:
            payload, status = pack_str(error.code) + pack_str(error.message), Status.ERR_CODED
        else:
            payload, status = pack_str(error.message), Status.ERR
        self._send(frame(Kind.RESPONSE, status, request_id, payload), request_id)

    def push(self, frames: Buffer) -> None:
        """Send whole frames that answer no request."""
        if self._replying or self.closed:
            self._send(frames)
            return
        self._out.append(frames)  # as `_send` does, but here: thousands may get a message
        if not self._touched:
            self._touched = True
            self._host.touched(self)

    def relayed(self, reply: Buffer) -> None:
        """Pass on a whole reply that another process gave."""
        self._in_flight -= 1
        self._send(reply)

    def unanswered(self) -> None:
        """The request is one that gets no reply."""
        self._in_flight -= 1

    def kick(self, reason: str) -> None:
        """Close the connection now, dropping what was not sent."""
        if not self.closed:
            log.info("closing %s: %s", self.name, reason)
            self._closing = True
            self._transport.abort()

    def _send(self, data: Buffer, request_id: int = -1) -> None:
        if not self.closed:
            self._out.append(data)
            if not self._replying:
                self._late(request_id)
            elif len(self._out) >= EARLY_PARTS or len(data) >= EARLY_BYTES:
                self.flush()

    def _late(self, request_id: int) -> None:
        """Something leaves that a read does not send by itself, as it may have waited."""
        if self._meter.waiting:
            self._meter.answered(request_id)
        if not self._touched:
            self._touched = True
            self._host.touched(self)

    def flush(self) -> None:
        """Write everything gathered so far."""
        self._touched = False
        out = self._out
        if not out or self.closed:
            return
        self._out = []
        if len(out) == 1:
            self._meter.bytes_out += len(out[0])
            self._transport.write(out[0])
            return
        size = sum(map(len, out))
        self._meter.bytes_out += size
        if size > JOIN_BYTES:
            self._transport.writelines(out)
        else:
            self._transport.write(b"".join(out))

    def ping(self) -> None:
        """Ask a silent peer for a sign of life."""
        self.pinged = True
        self._send(frame(Kind.PING, 0, 0))

    def status(self) -> dict[str, Any]:
        """What the dashboard shows of the connection."""
        return {
            "id": self.id,
            "name": self.name,
            "address": self.address,
            "user": self.identity.user.name if self.identity else None,
            "opened_ms": self.opened_ms,
            "heard_ms": self.heard_ms,
            "requests": self._meter.requests,
            "bytes_in": self._meter.bytes_in,
            "bytes_out": self._meter.bytes_out,
            "in_flight": self._in_flight,
            "unsent_bytes": self._transport.get_write_buffer_size(),
            "slow": self.congested,
            "internal": self.trusted,
            "hello": self.coded,
        }

    @property
    def heard_ms(self) -> int:
        """When it last sent anything."""
        return self._host.clock.ms_at(self._meter.arrived_ns)

    @property
    def midway(self) -> bool:
        """Whether part of a frame has arrived and the rest has not."""
        return self._inbox.midway

    def finish(self) -> None:
        """Send what is gathered, then close; nothing more is read."""
        if not self.closed and not self._closing:
            self._closing = True
            self.flush()
            self._transport.close()


def run_other(op: int, peer: Peer, request_id: int, payload: memoryview) -> None:
    """`Session.on_other` for those who only know a `Peer`."""
    cast("Session", peer).on_other(op, request_id, payload)
