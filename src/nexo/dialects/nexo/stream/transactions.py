"""Requests of transactions; `nexo.protocol.stream_transactions` says what they look like."""

from __future__ import annotations

from nexo.dialects.nexo.handlers import Handler, Peer
from nexo.dialects.nexo.replies import reply_data, reply_ok, returning
from nexo.dialects.nexo.stream.publishing import pack_places
from nexo.protocol import stream as wire
from nexo.protocol import stream_transactions as transactions
from nexo.protocol.frames import FieldReader
from nexo.protocol.ops import Op
from nexo.protocol.stream_publishing import read_publish
from nexo.services.stream.transact import Transact


class TransactionRequests:
    """S_TX_BEGIN to S_TX_OUTCOME. A transaction belongs to its connection."""

    def __init__(self, transact: Transact) -> None:
        self._transact = transact
        self.handlers: dict[int, Handler] = {
            Op.S_TX_BEGIN: returning(transactions.TxBegin, transact.begin),
            Op.S_TX_PUBLISH: self.publish,
            Op.S_TX_INPUTS: returning(transactions.TxInputs, transact.add_inputs, reply_ok),
            Op.S_TX_COMMIT: self.commit,
            Op.S_TX_ABORT: self.abort,
            Op.S_TX_OUTCOME: self.outcome,
        }

    def publish(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        reader = FieldReader(payload)
        number = reader.u64()
        name, partition, partitions, entry = read_publish(reader.rest())
        done = reply_data(peer, request_id, pack_places)
        self._transact.publish(peer, number, name, entry, done, partition, partitions)

    def commit(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        self._transact.commit(peer, wire.unpack(int, payload), reply_ok(peer, request_id))

    def abort(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        self._transact.abort(peer, wire.unpack(int, payload), reply_ok(peer, request_id))

    def outcome(self, peer: Peer, request_id: int, payload: memoryview) -> None:
        number = wire.unpack(int, payload)
        self._transact.outcome(peer, request_id, number, reply_ok(peer, request_id))
