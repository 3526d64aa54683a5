"""Adds expectations of rows to Spark's Declarative Pipelines.

Decorate a query function below ``@dp.table``::

    from pyspark import pipelines as dp
    from nexo import pipelines as nx

    @dp.table
    @nx.expect_or_drop("positive", "amount > 0")
    def clean_orders():
        return spark.readStream.table("orders")
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from nexo.errors import InvalidInput

_KEPT = "__nexo_expectations__"
_Query = TypeVar("_Query", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Expectation:
    """A condition in SQL that each row should meet. A row for which it is null does not meet it."""

    name: str
    condition: str
    action: Literal["warn", "drop", "fail"]


def expect(name: str, condition: str) -> Callable[[_Query], _Query]:
    """Count rows that do not meet a condition; they stay."""
    return _expecting(Expectation(name, condition, "warn"))


def expect_or_drop(name: str, condition: str) -> Callable[[_Query], _Query]:
    """Keep rows that do not meet a condition out of the table, in ``<table>_dead_letters``."""
    return _expecting(Expectation(name, condition, "drop"))


def expect_or_fail(name: str, condition: str) -> Callable[[_Query], _Query]:
    """Stop the flow, with nothing written, if a row does not meet a condition."""
    return _expecting(Expectation(name, condition, "fail"))


def _expecting(expectation: Expectation) -> Callable[[_Query], _Query]:
    if not expectation.name or not expectation.condition.strip():
        raise InvalidInput("an expectation has a name and a condition: expect('paid', 'sum > 0')")

    def decorated(query: _Query) -> _Query:
        known = expectations_of(query)
        if any(each.name == expectation.name for each in known):
            raise InvalidInput(f"two expectations are called {expectation.name!r}")
        setattr(query, _KEPT, (expectation, *known))
        return query

    return decorated


def expectations_of(query: Callable[..., Any]) -> Sequence[Expectation]:
    """The expectations of a query's rows."""
    found: Sequence[Expectation] = getattr(query, _KEPT, ())
    return found
