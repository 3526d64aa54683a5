"""A stream's contract, as clients show it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ContractColumn:
    """A typed column, and the field of the values that it holds."""

    column: str
    type: str
    field: str


@dataclass(frozen=True, slots=True)
class ContractInfo:
    """How a stream's values are taken apart into columns of its table."""

    stream: str
    format: str
    """``json``, ``avro`` or ``protobuf``."""
    message: str
    """Protobuf: which message the values are."""
    schema_ids: tuple[int, ...]
    """Ids of a schema registry that values may begin with; empty if they begin with none."""
    permissive: bool
    """Whether a field that does not fit is null alone, and the record no dead letter."""
    additions: bool
    """Whether new fields become columns by themselves."""
    columns: tuple[ContractColumn, ...]
    dead_letters: int
    """Records whose value did not fit, so far."""


@dataclass(frozen=True, slots=True)
class BackfillResult:
    """The outcome of filling the columns of older records."""

    files: int = 0
    records: int = 0
