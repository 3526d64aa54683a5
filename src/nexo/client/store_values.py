"""Values that were taken off the store, and so are nowhere else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nexo.errors import DoesNotFit, InvalidInput, ProtocolError
from nexo.protocol.frames import Buffer
from nexo.protocol.values import decode_value


def taken(value: Buffer, type_: Any, done: str) -> Any:
    """A value that is no longer in the store: if it does not fit, the error has it.

    ``done`` says in the error what was changed.
    """
    try:
        return decode_value(value, type_)
    except InvalidInput as error:
        raise DoesNotFit(f"{error}; {done}: see the error's value", value=_as_is(value)) from error


def all_taken(values: Sequence[Buffer], type_: Any, done: str) -> list[Any]:
    """`taken` of several."""
    try:
        return [decode_value(value, type_) for value in values]
    except InvalidInput as error:
        as_they_are = [_as_is(value) for value in values]
        raise DoesNotFit(f"{error}; {done}: see the error's value", value=as_they_are) from error


def _as_is(value: Buffer) -> Any:
    try:
        return decode_value(value)
    except ProtocolError:
        return bytes(value)[1:]
