"""AUTO CDC flows: where they plug in. What applies changes to a table is not here yet.

A flow whose definition has `ChangeRules` is planned and run as any other: its query is a streaming
frame of changes, its position is Spark's checkpoint, and each batch comes with a number. It differs
in the columns of its table (`target_columns`) and in what it does with a batch (`writer_of`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from nexo.errors import InvalidInput
from pyspark_nexo.code.definitions import ChangeRules, FlowDefinition, OutputDefinition

if TYPE_CHECKING:
    from nexo.lake.catalog import Lake
    from pyspark_nexo.code.writers import FlowWriter


def target_columns(changes: pa.Schema, rules: ChangeRules) -> pa.Schema:
    """The columns of the table that changes with these columns are applied to."""
    return changes


def writer_of(lake: Lake, output: OutputDefinition, flow: FlowDefinition) -> FlowWriter:
    """What applies the batches of a flow to its table."""
    raise InvalidInput(f"{flow.place}: AUTO CDC is not there yet")
