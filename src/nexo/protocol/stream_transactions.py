"""Messages of producers and transactions to the stream broker (SPEC G3, H1).

=============  ===================================  ===============
opcode         request                              reply
=============  ===================================  ===============
S_PRODUCER     name str                             `ProducerStart`
S_TX_BEGIN     `TxBegin`                            transaction id
S_TX_PUBLISH   transaction u64, then as S_PUBLISH   as S_PUBLISH
S_TX_INPUTS    `TxInputs`                           OK
S_TX_COMMIT    transaction id                       OK
S_TX_ABORT     transaction id                       OK
S_TX_OUTCOME   transaction id                       OK
=============  ===================================  ===============

A client that got no reply to S_TX_COMMIT sends S_TX_OUTCOME, on any connection: the reply
is sent once it is known, and is the same: OK, or `TransactionAborted`. Ids are never
reused.
"""

from __future__ import annotations

from nexo.model import AsArray, AsMap
from nexo.model.stream import KeyAt, TxAcks, TxOffsets

__all__ = ["KeyAt", "TxAcks", "TxOffsets"]


class ProducerStart(AsArray, frozen=True):
    """The identity of an idempotent producer."""

    producer: int
    epoch: int


class TxBegin(AsMap, frozen=True):
    """Open a transaction, aborted automatically after ``timeout_ms``."""

    timeout_ms: int = 60_000


class TxInputs(AsMap, frozen=True):
    """What the transaction has read."""

    transaction: int
    acks: list[TxAcks] = []
    offsets: list[TxOffsets] = []
    unchanged: list[KeyAt] = []
    """If one of these keys has another newest record by then, the commit is rejected."""
