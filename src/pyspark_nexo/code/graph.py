"""The order of flows, and what each reads: found by asking Spark for each flow's rows.

Spark says which name it does not know. If another flow fills it, that one comes first; else it is
a stream or a table of the lake, which is registered. So nothing is parsed twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nexo.errors import Conflict, NotFound
from nexo.lake.user_tables import TableShape, check_user_table, ensure_user_table
from pyspark_nexo.code.cdc import change_shape, open_keyed
from pyspark_nexo.code.definitions import (
    Definitions,
    FlowDefinition,
    OutputDefinition,
    OutputKind,
    code_error,
)
from pyspark_nexo.code.loading import located
from pyspark_nexo.failures import plain_errors
from pyspark_nexo.tables.catalog import DATABASE, SparkCatalog, quoted
from pyspark_nexo.tables.sources import described_table, lake_table
from pyspark_nexo.tables.writing import arrow_columns

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

SORT_PROPERTY = "nexo.sort"
_OWN = f"spark_catalog.{DATABASE}."


@dataclass(slots=True)
class FlowGraph:
    """Flows in an order in which each comes after those that fill what it reads.

    Unless it may ``make`` them, tables are only described: nothing is written.
    """

    definitions: Definitions
    catalog: SparkCatalog
    root: Path
    make: bool = True
    order: list[FlowDefinition] = field(default_factory=list)
    reads: dict[str, list[str]] = field(default_factory=dict)
    """By flow: the streams and tables that it reads."""
    columns: dict[str, pa.Schema] = field(default_factory=dict)
    """By table."""
    _under_way: list[str] = field(default_factory=list)

    def build(self) -> None:
        """Find the order; creates the tables that are missing."""
        for name in self.definitions.outputs:
            self._prepare(name)
        planned, self.order = self.order, []
        for flow in planned:
            self._place(flow, planned, [])

    def _place(
        self, flow: FlowDefinition, planned: Sequence[FlowDefinition], below: Sequence[str]
    ) -> None:
        """Put a flow after all that fill what it reads."""
        if flow in self.order:
            return
        if flow.name in below:
            circle = " → ".join([*reversed(below), flow.name])
            raise code_error(flow.place, f"flows read one another's tables in a circle: {circle}")
        for each in planned:
            if each.target in self.reads[flow.name]:
                self._place(each, planned, [*below, flow.name])
        self.order.append(flow)

    def frame(self, flow: FlowDefinition) -> DataFrame:
        """A flow's rows, planned anew: with the columns that its sources have now."""
        with self.settings(flow.conf), located(self.root, flow.place), plain_errors():
            return self.catalog.resolved(flow.query, self._provide)

    @contextmanager
    def settings(self, conf: Mapping[str, str]) -> Iterator[None]:
        spark = self.catalog.spark
        before: dict[str, str | None] = {name: spark.conf.get(name, None) for name in conf}
        for name, wanted in conf.items():
            spark.conf.set(name, wanted)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    spark.conf.unset(name)
                else:
                    spark.conf.set(name, value)

    def below(self, target: str) -> set[str]:
        """The outputs whose rows come from this one, directly or not."""
        found, todo = set[str](), [target]
        while todo:
            name = todo.pop()
            for flow in self.order:
                if name in self.reads[flow.name] and flow.target not in found:
                    found.add(flow.target)
                    todo.append(flow.target)
        return found

    # -- one output ----------------------------------------------------------------------

    def _provide(self, name: str) -> bool:
        """Register a name that Spark did not find, if the code defines it."""
        known = {each.lower(): each for each in self.definitions.outputs}
        if name.lower() not in known:
            return False
        wanted = known[name.lower()]
        if self.definitions.outputs[wanted].kind == OutputKind.SINK:
            raise NotFound(f"{name!r} is a sink, which cannot be read")
        self._prepare(wanted)
        return True

    def _prepare(self, name: str) -> None:
        """Plan an output's flows, and make it known to Spark."""
        if name in self.columns:
            return
        output = self.definitions.outputs[name]
        if name in self._under_way:
            circle = " → ".join([*self._under_way[self._under_way.index(name) :], name])
            raise code_error(output.place, f"tables read one another in a circle: {circle}")
        self._under_way.append(name)
        try:
            changed = any(flow.changes for flow in self.definitions.flows_into(name))
            if output.schema is not None and not changed:
                self._open(output, self._given(output))
            for flow in self.definitions.flows_into(name):
                self._plan(output, flow)
            if name not in self.columns:
                raise code_error(output.place, f"{name!r} has neither columns nor a flow")
        finally:
            self._under_way.pop()

    def _plan(self, output: OutputDefinition, flow: FlowDefinition) -> None:
        frame = self.frame(flow)
        wanted = output.kind in (OutputKind.STREAMING, OutputKind.SINK)
        if output.kind != OutputKind.TEMPORARY and frame.isStreaming != wanted:
            raise code_error(
                flow.place,
                f"{output.kind} {output.name!r} needs a "
                + ("stream: spark.readStream.table(…), or FROM STREAM …" if wanted else "table: "
                   "spark.read.table(…), or FROM without STREAM"),
            )  # fmt: skip
        if output.kind == OutputKind.TEMPORARY:
            frame.createOrReplaceTempView(quoted(output.name))
        self.reads[flow.name] = self._sources(frame)
        self.order.append(flow)
        with located(self.root, flow.place):
            if flow.changes is not None:
                self._open_changed(output, frame, flow)
                return
            found = arrow_columns(frame.schema, output.name)
            if output.kind in (OutputKind.TEMPORARY, OutputKind.SINK):
                self.columns[output.name] = found
            elif output.schema is None:
                self._open(output, found)

    def _given(self, output: OutputDefinition) -> pa.Schema:
        from pyspark.sql.types import StructType  # noqa: PLC0415 - slow to import

        found: Any = output.schema
        with located(self.root, output.place), plain_errors():
            schema: Any = StructType.fromDDL(found) if isinstance(found, str) else found
            return arrow_columns(schema, output.name)

    def _open(self, output: OutputDefinition, columns: pa.Schema) -> None:
        """Make the table, or only describe it, and register it."""
        name, lake = output.name, self.catalog.lake
        with located(self.root, output.place):
            if self.catalog.is_stream(name):
                raise Conflict(f"{name!r} is a stream: give the table another name")
            if self.make:
                table = ensure_user_table(lake, name, columns, shape_of(output))
                source = lake_table(name, lake.settings, table)
            else:
                check_user_table(name, columns, shape_of(output))
                source = described_table(name, lake.settings, columns)
        with plain_errors():
            self.catalog.register(quoted(name), source)
        self.columns[name] = columns

    def _open_changed(
        self, output: OutputDefinition, frame: DataFrame, flow: FlowDefinition
    ) -> None:
        """Make the table that changes are applied to, or only describe it, and register it."""
        name, lake, shape = output.name, self.catalog.lake, change_shape(frame, flow)
        if self.catalog.is_stream(name):
            raise Conflict(f"{name!r} is a stream: give the table another name")
        if self.make:
            keyed = open_keyed(lake, output, shape, shape_of(output))
            source = lake_table(name, lake.settings, keyed.rows)
        else:
            source = described_table(name, lake.settings, shape.shown)
        with plain_errors():
            self.catalog.register(quoted(name), source)
        self.columns[name] = shape.shown

    def _sources(self, frame: DataFrame) -> list[str]:
        """The streams and tables that a frame's rows come from."""
        spelled = {each.lower(): each for each in self.definitions.outputs}
        found = dict.fromkeys(_leaves(frame))
        return [spelled.get(each, each) for each in found]


def shape_of(output: OutputDefinition) -> TableShape:
    """How a definition lays its table out."""
    given = dict(output.properties)
    sort = [part.strip() for part in given.pop(SORT_PROPERTY, "").split(",") if part.strip()]
    return TableShape(output.partitions, sort or output.cluster_by, output.comment, given)


def _leaves(frame: DataFrame) -> Iterator[str]:
    """The names that a plan reads; ``?`` for anything that is not of Nexo's catalog."""
    made: Any = frame
    leaves = made._jdf.queryExecution().analyzed().collectLeaves()
    for number in range(leaves.size()):
        leaf = leaves.apply(number)
        kind = str(leaf.getClass().getSimpleName())
        if kind not in ("DataSourceV2Relation", "StreamingRelationV2"):
            if kind not in ("Range", "LocalRelation", "OneRowRelation"):
                yield "?"
            continue
        identifier = leaf.identifier()
        if identifier.isDefined():
            spaces = [str(each) for each in identifier.get().namespace()]
            yield ".".join(
                [*(each for each in spaces if each != DATABASE), identifier.get().name()]
            )
        else:
            yield "?"
