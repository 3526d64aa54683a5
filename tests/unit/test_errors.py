"""The error tree and its way over the wire."""

import pytest

from nexo import errors
from nexo.errors import BY_CODE, Corrupt, NexoError, from_wire
from nexo.protocol.frames import pack_error, unpack_error

CLASSES = [
    found
    for found in vars(errors).values()
    if isinstance(found, type) and issubclass(found, NexoError)
]


def test_every_error_has_a_code_of_its_own() -> None:
    assert len({cls.code for cls in CLASSES}) == len(CLASSES)
    assert set(BY_CODE.values()) == set(CLASSES)


@pytest.mark.parametrize("cls", CLASSES)
def test_an_error_comes_back_over_the_wire_as_itself(cls: type[NexoError]) -> None:
    error = from_wire(cls.code, "what was wrong")
    assert type(error) is cls
    assert error.message == "what was wrong"
    assert str(error) == "what was wrong"


def test_where_damage_lies_and_ends_comes_over_the_wire() -> None:
    """SPEC E6: a reader goes on behind it."""
    error = unpack_error(pack_error(Corrupt("damaged", offset=6, next_offset=9)))
    assert isinstance(error, Corrupt)
    assert (error.message, error.offset, error.next_offset) == ("damaged", 6, 9)
    unknown = unpack_error(pack_error(Corrupt("damaged")))
    assert isinstance(unknown, Corrupt)
    assert unknown.next_offset is None


def test_a_code_from_a_newer_server_is_still_an_error_of_ours() -> None:
    error = from_wire("FROM_THE_FUTURE", "text")
    assert isinstance(error, NexoError)
    assert error.message == "text"


def test_a_code_that_stands_for_the_message_is_put_into_words() -> None:
    error = from_wire("NOT_MEMBER", "NOT_MEMBER")
    assert isinstance(error, errors.NotMember)
    assert error.message == "The consumer is not, or no longer, a member of the group."
    assert from_wire("FROM_THE_FUTURE", "FROM_THE_FUTURE").code == "ERROR"


def test_timeouts_and_lost_connections_are_also_the_builtin_kinds() -> None:
    assert issubclass(errors.RequestTimeout, TimeoutError)
    assert issubclass(errors.ConnectionLost, ConnectionError)


def test_fencing_errors_can_be_caught_as_one() -> None:
    assert all(issubclass(BY_CODE[code], errors.Fenced) for code in ("NOT_MEMBER", "LEASE_LOST"))
