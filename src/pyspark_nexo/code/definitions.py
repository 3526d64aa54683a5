"""What users' files define: tables, views and sinks, and the flows that fill them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

from nexo.errors import Conflict, NexoError, NotFound
from nexo.pipelines import Expectation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

FrameMaker: TypeAlias = "Callable[[], DataFrame]"
"""Makes a flow's rows; called again whenever its plan is to be made anew."""


class OutputKind(StrEnum):
    """What a flow fills."""

    STREAMING = "streaming table"
    VIEW = "materialized view"
    TEMPORARY = "temporary view"
    SINK = "sink"


@dataclass(frozen=True, slots=True)
class CodePlace:
    """A line of a user's file."""

    file: str
    line: int | None = None

    def __str__(self) -> str:
        return self.file if self.line is None else f"{self.file}:{self.line}"


class CodeError(NexoError):
    """Something is wrong in users' code; the message says where."""

    code = "CODE_ERROR"


def code_error(place: CodePlace, message: str) -> CodeError:
    """An error that begins with its place."""
    return CodeError(f"{place}: {message}")


@dataclass(frozen=True, slots=True)
class OutputDefinition:
    """A table, view or sink. Without columns it has those of its first flow."""

    name: str
    kind: OutputKind
    place: CodePlace
    comment: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)
    partitions: Sequence[str] = ()
    cluster_by: Sequence[str] = ()
    schema: StructType | str | None = None
    format: str = ""
    """Of a sink, as are the options."""
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FlowDefinition:
    """What fills a table, view or sink; several flows may fill one."""

    name: str
    target: str
    place: CodePlace
    query: FrameMaker
    conf: Mapping[str, str] = field(default_factory=dict)
    expectations: Sequence[Expectation] = ()
    changes: ChangeRules | None = None
    """How its rows are applied; None if they are appended, or are all of a view's rows."""


@dataclass(frozen=True, slots=True)
class ChangeRules:
    """AUTO CDC: how a stream of changes is applied to a table. Expressions are texts of SQL."""

    source: str
    """The name of the stream of changes, which the flow's ``query`` reads as a streaming frame."""
    keys: tuple[str, ...]
    sequence_by: str
    apply_as_deletes: str | None = None
    columns: tuple[str, ...] | None = None
    except_columns: tuple[str, ...] | None = None
    scd_type: int = 1
    track: tuple[str, ...] | None = None
    track_except: tuple[str, ...] | None = None


@dataclass(slots=True)
class Definitions:
    """All that a folder defines."""

    outputs: dict[str, OutputDefinition] = field(default_factory=dict)
    flows: dict[str, FlowDefinition] = field(default_factory=dict)
    digest: str = ""
    """Of the files: views are made anew if it has changed."""

    def add_output(self, output: OutputDefinition) -> None:
        known = self.outputs.get(output.name)
        if known is not None:
            raise Conflict(f"{output.place}: {output.name!r} is defined twice: see {known.place}")
        self.outputs[output.name] = output

    def add_flow(self, flow: FlowDefinition) -> None:
        known = self.flows.get(flow.name)
        if known is not None:
            raise Conflict(f"{flow.place}: flow {flow.name!r} is defined twice: see {known.place}")
        self.flows[flow.name] = flow

    def flows_into(self, target: str) -> list[FlowDefinition]:
        """The flows that fill an output."""
        return [flow for flow in self.flows.values() if flow.target == target]

    def check(self) -> None:
        """Raise if flows and outputs do not belong together."""
        for flow in self.flows.values():
            if flow.target not in self.outputs:
                raise NotFound(
                    f"{flow.place}: flow {flow.name!r} fills {flow.target!r}, which is not "
                    "defined: dp.create_streaming_table(…), or CREATE STREAMING TABLE"
                )
        for output in self.outputs.values():
            flows = self.flows_into(output.name)
            if output.kind in (OutputKind.VIEW, OutputKind.TEMPORARY) and len(flows) != 1:
                raise Conflict(f"{output.place}: {output.kind} {output.name!r} needs one query")
