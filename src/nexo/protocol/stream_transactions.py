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

from nexo.protocol.messages import AsArray, AsMap
from nexo.protocol.stream import Range


class ProducerStart(AsArray, frozen=True):
    """The identity of an idempotent producer."""

    producer: int
    epoch: int


class TxBegin(AsMap, frozen=True):
    """Open a transaction, aborted automatically after ``timeout_ms``."""

    timeout_ms: int = 60_000


class TxAcks(AsArray, frozen=True):
    """Records of a shared group that are finished with the transaction."""

    stream: str
    group: str
    consumer: str
    generation: int
    spans: list[Range]


class TxOffsets(AsArray, frozen=True):
    """Offsets of an ordered group that are committed with the transaction."""

    group: str
    member: str
    generation: int
    offsets: list[tuple[str, int, int, str]]
    """``stream, partition, offset, metadata``: the last one processed."""
    rewind: bool = False
    """The member sought back, so lower offsets are intended."""


class KeyAt(AsArray, frozen=True):
    """The newest record of a key, as a transaction saw it."""

    stream: str
    key: bytes
    offset: int
    """-1: there was none."""


class TxInputs(AsMap, frozen=True):
    """What the transaction has read."""

    transaction: int
    acks: list[TxAcks] = []
    offsets: list[TxOffsets] = []
    unchanged: list[KeyAt] = []
    """If one of these keys has another newest record by then, the commit is rejected."""
