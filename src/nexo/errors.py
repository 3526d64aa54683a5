"""Every error Nexo raises, as one tree with stable codes.

Engines raise these, the server writes ``code`` and message on the wire, and
clients raise the same class again (`from_wire`). Codes never change meaning.
"""

from __future__ import annotations

import re
from typing import ClassVar, Self


class NexoError(Exception):
    """Base of all errors of this package."""

    code: ClassVar[str] = "ERROR"
    field: str | None = None
    """The part of the caller's request that it is about, where known."""

    @property
    def message(self) -> str:
        """The mistake and what to do, as shown to the user."""
        return str(self.args[0]) if self.args else self.code


def internal_error() -> NexoError:
    """The answer to a client about a mistake of ours; the caller logs the mistake itself."""
    return NexoError("internal error; the server's log has details")


# -- the caller's input -------------------------------------------------------


class InvalidInput(NexoError):
    """A value is malformed, out of range, or of the wrong type."""

    code = "INVALID"


class InvalidName(InvalidInput):
    """A stream, queue, group, topic or key name breaks the naming rule."""

    code = "INVALID_NAME"


class InvalidOption(InvalidInput):
    """An option is unknown or its value is not allowed."""

    code = "INVALID_OPTION"


class DoesNotFit(InvalidInput):
    """A value that was read is not of the type asked for; ``value`` is what it is instead."""

    code = "DOES_NOT_FIT"

    def __init__(self, message: str = "", *, value: object = None) -> None:
        super().__init__(message)
        self.value = value


class PayloadTooLarge(InvalidInput):
    """A value or frame exceeds the configured limit."""

    code = "TOO_LARGE"


class ConfigError(InvalidInput):
    """A setting is unknown or has a bad value; the server does not start."""

    code = "CONFIG"


# -- state --------------------------------------------------------------------


class NotFound(NexoError):
    """The named thing does not exist."""

    code = "NOT_FOUND"


class Conflict(NexoError):
    """The request contradicts what exists."""

    code = "CONFLICT"


class AlreadyExists(Conflict):
    """The name is taken, with other options than asked for."""

    code = "ALREADY_EXISTS"


class WrongType(Conflict):
    """The key holds another type than the operation needs."""

    code = "WRONG_TYPE"


class Fenced(Conflict):
    """A newer generation, epoch or seek has replaced the caller's."""

    code = "FENCED"


class NotMember(Fenced):
    """The consumer is not, or no longer, a member of the group."""

    code = "NOT_MEMBER"


class NotOwner(Fenced):
    """The message or partition is held by another consumer."""

    code = "NOT_OWNER"


class LeaseLost(Fenced):
    """The lease expired or belongs to someone else; the job may run elsewhere."""

    code = "LEASE_LOST"


class NotPending(Conflict):
    """The message is not waiting for an acknowledgement."""

    code = "NOT_PENDING"


class OutOfOrderSequence(Conflict):
    """A producer's sequence number leaves a gap."""

    code = "OUT_OF_ORDER"
    _EXPECTED: ClassVar[re.Pattern[str]] = re.compile(r"where (\d+) is next")

    @classmethod
    def after(cls, producer_id: int, sequence: int, expected: int) -> Self:
        """For a batch that begins at ``sequence`` where ``expected`` is the next one."""
        return cls(
            f"producer {producer_id} sent sequence {sequence} where {expected} "
            "is next: an earlier batch is missing"
        )

    @property
    def expected(self) -> int | None:
        """The next sequence, as the message says: all before it is stored."""
        found = self._EXPECTED.search(self.message)
        return None if found is None else int(found[1])


class PartitionsChanged(Conflict):
    """The stream has another number of partitions than the sender assumed; nothing was stored."""

    code = "PARTITIONS_CHANGED"


class StreamReplaced(Conflict):
    """The stream was deleted and created again since the caller described it; describe it again."""

    code = "STREAM_REPLACED"


class TransactionAborted(Conflict):
    """The transaction was rolled back; nothing of it is visible."""

    code = "TX_ABORTED"


class OutcomeUnknown(NexoError):
    """Whether it was done could not be found out: look, or ask again.

    A transaction's ``commit`` asks for its outcome when it is called again.
    """

    code = "TX_UNKNOWN"


class OffsetOutOfRange(InvalidInput):
    """The offset lies outside what the partition holds."""

    code = "OFFSET_RANGE"


# -- the service --------------------------------------------------------------


class Unavailable(NexoError):
    """The service cannot do this now; trying again later may work."""

    code = "UNAVAILABLE"


class Overloaded(Unavailable):
    """A high-water mark is reached; slow down and retry."""

    code = "OVERLOADED"


class QueueFull(Overloaded):
    """The queue holds as many jobs as its ``max_jobs`` allows; push again when some are done."""

    code = "QUEUE_FULL"


class DiskFull(Unavailable):
    """Too little disk space is left for writes; reads, acks and deletes continue."""

    code = "DISK_FULL"


class DiskFailed(Unavailable):
    """The disk refused a call and nothing was changed; trying again may work."""

    code = "DISK_FAILED"


class ReadOnly(Unavailable):
    """A sync to disk failed; the broker no longer accepts writes."""

    code = "READ_ONLY"


class ShuttingDown(Unavailable):
    """The server is stopping."""

    code = "SHUTTING_DOWN"


class NotLeader(Unavailable):
    """Another server leads: connect to that one."""

    code = "NOT_LEADER"


class Corrupt(NexoError):
    """Stored bytes fail their checksum or cannot be decoded.

    Where offsets are known, the damage covers ``offset`` up to but not ``next_offset``, and
    reading continues there.
    """

    code = "CORRUPT"

    def __init__(
        self, message: str = "", *, offset: int | None = None, next_offset: int | None = None
    ) -> None:
        super().__init__(message)
        self.offset = offset
        self.next_offset = next_offset


# -- the connection -----------------------------------------------------------


class ProtocolError(NexoError):
    """Bytes on the wire break the protocol."""

    code = "PROTOCOL"


class UnknownOpcode(ProtocolError):
    """The request's opcode is not known here."""

    code = "UNKNOWN_OPCODE"


class ConnectionLost(NexoError, ConnectionError):
    """The connection ended before the reply; the request may or may not have run."""

    code = "CONNECTION"


class ClientClosed(ConnectionLost):
    """The client was closed: nothing more can be sent with it."""

    code = "CLOSED"


class NoResponder(NexoError):
    """Nobody subscribes to the topic of a request; it was sent to nobody."""

    code = "NO_RESPONDER"


class ReplyFailed(NexoError):
    """The handler that should reply to a request failed."""

    code = "REPLY_FAILED"


class RequestTimeout(NexoError, TimeoutError):
    """No reply came in time; the request may or may not have run."""

    code = "TIMEOUT"


class Unauthenticated(NexoError):
    """Credentials are missing or wrong."""

    code = "UNAUTHENTICATED"


class LockedOut(Unauthenticated):
    """Too many logins failed; wait a little before the next one."""

    code = "LOCKED_OUT"


class Forbidden(NexoError):
    """The user lacks the permission."""

    code = "FORBIDDEN"


def _tree(root: type[NexoError]) -> list[type[NexoError]]:
    return [root, *(cls for sub in root.__subclasses__() for cls in _tree(sub))]


BY_CODE: dict[str, type[NexoError]] = {cls.code: cls for cls in _tree(NexoError)}


def from_wire(code: str, message: str) -> NexoError:
    """Rebuild an error that a server reported; unknown codes give the base class.

    Where the protocol has the code stand for the message, the class says what it means.
    """
    kind = BY_CODE.get(code, NexoError)
    return kind(kind.__doc__ if message == code and kind.__doc__ else message)
