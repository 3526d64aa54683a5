"""Kafka's error codes, and which of ours is which."""

from __future__ import annotations

import enum
from typing import Any

from nexo.brokers.stream.groups.kafka.model import GroupError
from nexo.errors import NexoError


class Error(enum.IntEnum):
    """What a response says."""

    UNKNOWN = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER = 6
    REQUEST_TIMED_OUT = 7
    MESSAGE_TOO_LARGE = 10
    OFFSET_METADATA_TOO_LARGE = 12
    NOT_COORDINATOR = 16
    INVALID_TOPIC = 17
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    INVALID_REQUEST = 42
    OUT_OF_ORDER_SEQUENCE = 45
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    STORAGE_ERROR = 56
    SASL_AUTHENTICATION_FAILED = 58
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    UNSUPPORTED_COMPRESSION = 76
    MEMBER_ID_REQUIRED = 79
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELECTION_NOT_NEEDED = 84
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    PRODUCER_FENCED = 90
    FEATURE_UPDATE_FAILED = 96
    UNKNOWN_TOPIC_ID = 100
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    TRANSACTION_ABORTABLE = 120
    INVALID_REGULAR_EXPRESSION = 128


class Refused(NexoError):
    """A request that Kafka has an error of its own for."""

    def __init__(self, error: Error, message: str = "") -> None:
        super().__init__(message or error.name)
        self.error = error


_BY_CODE = {
    "ALREADY_EXISTS": Error.TOPIC_ALREADY_EXISTS,
    "CORRUPT": Error.CORRUPT_MESSAGE,
    "DISK_FAILED": Error.STORAGE_ERROR,
    "DISK_FULL": Error.STORAGE_ERROR,
    "FENCED": Error.INVALID_PRODUCER_EPOCH,
    "FORBIDDEN": Error.TOPIC_AUTHORIZATION_FAILED,
    "INVALID": Error.INVALID_REQUEST,
    "INVALID_NAME": Error.INVALID_TOPIC,
    "INVALID_OPTION": Error.INVALID_CONFIG,
    "NOT_FOUND": Error.UNKNOWN_TOPIC_OR_PARTITION,
    "OFFSET_RANGE": Error.OFFSET_OUT_OF_RANGE,
    "OUT_OF_ORDER": Error.OUT_OF_ORDER_SEQUENCE,
    "OVERLOADED": Error.REQUEST_TIMED_OUT,
    "PROTOCOL": Error.INVALID_REQUEST,
    "READ_ONLY": Error.STORAGE_ERROR,
    "SHUTTING_DOWN": Error.NOT_LEADER,
    "STREAM_REPLACED": Error.UNKNOWN_TOPIC_OR_PARTITION,
    "TOO_LARGE": Error.MESSAGE_TOO_LARGE,
    "TX_ABORTED": Error.INVALID_TXN_STATE,
    "TX_UNKNOWN": Error.REQUEST_TIMED_OUT,
    "UNAVAILABLE": Error.REQUEST_TIMED_OUT,
}


def error_of(error: NexoError, forbidden: Error = Error.TOPIC_AUTHORIZATION_FAILED) -> Error:
    """Kafka's code for one of our errors; ``forbidden`` is the one for a missing permission."""
    if isinstance(error, Refused):
        return error.error
    found = _BY_CODE.get(error.code, Error.UNKNOWN)
    return forbidden if found is Error.TOPIC_AUTHORIZATION_FAILED else found


def coordinator_error(error: NexoError, forbidden: Error) -> Error:
    """The same for what a coordinator is asked: while it stops, clients look for it again."""
    found = error_of(error, forbidden)
    return Error.NOT_COORDINATOR if found is Error.NOT_LEADER else found


def failure(error: NexoError) -> dict[str, Any]:
    return {"error": error_of(error), "message": error.message}


def refusal(error: NexoError) -> Error:
    """Kafka's code for an error about a group."""
    found = coordinator_error(error, Error.GROUP_AUTHORIZATION_FAILED)
    return Error.INVALID_GROUP_ID if found is Error.INVALID_TOPIC else found


def group_error(error: GroupError | None) -> Error:
    """What a coordinator refused with."""
    return Error.NONE if error is None else Error[error.name]
