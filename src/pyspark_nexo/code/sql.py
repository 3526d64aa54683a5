"""Definitions in SQL, by Spark's own parser: ``CREATE STREAMING TABLE … AS SELECT …``.

Scripts are cut into statements by Spark, too. A statement's parts are fields of its plan, and its
query becomes a frame when the flow starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from pyspark_nexo.code.definitions import (
    ChangeRules,
    CodePlace,
    Definitions,
    FlowDefinition,
    OutputDefinition,
    OutputKind,
    code_error,
)
from pyspark_nexo.failures import plain
from pyspark_nexo.tables.catalog import lake_name, quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

JavaObject: TypeAlias = Any
"""An object of the JVM."""
_KNOWN = (
    "CREATE STREAMING TABLE, CREATE MATERIALIZED VIEW, CREATE TEMPORARY VIEW, CREATE FLOW … AS "
    "INSERT INTO … BY NAME or AUTO CDC INTO …, SET"
)


def define(spark: SparkSession, found: Definitions, text: str, file: str) -> None:
    """Add what a script defines."""
    from pyspark.errors import PySparkException  # noqa: PLC0415 - slow to import

    jvm: Any = spark._jvm
    cutter = jvm.org.apache.spark.sql.pipelines.graph.SqlGraphRegistrationContext
    conf: dict[str, str] = {}
    try:
        statements = list(_items(cutter.splitSqlFileIntoQueries(spark._jsparkSession, text, file)))
    except PySparkException as error:
        raise code_error(CodePlace(file), plain(str(error)).message) from None
    for each in statements:
        line = each.queryOrigin().line()
        place = CodePlace(file, int(line.get()) if line.isDefined() else None)
        _Statement(spark, found, each.plan(), place, conf).add()


@dataclass(frozen=True, slots=True)
class _Statement:
    """One statement of a script."""

    spark: SparkSession
    found: Definitions
    plan: JavaObject
    place: CodePlace
    conf: dict[str, str]
    """What ``SET`` said above it."""

    def add(self) -> None:
        kind = str(self.plan.getClass().getSimpleName()).rstrip("$")
        known: dict[str, Callable[[], None]] = {
            "CreateStreamingTableAsSelect": lambda: self._table(OutputKind.STREAMING),
            "CreateMaterializedViewAsSelect": lambda: self._table(OutputKind.VIEW),
            "CreateStreamingTable": self._empty_table,
            "CreateStreamingTableAutoCdc": self._changing_table,
            "CreateFlowCommand": self._flow,
            "CreateViewCommand": self._view,
            "SetCommand": self._set,
        }
        if kind not in known:
            raise code_error(self.place, f"a pipeline's script has {_KNOWN}; this is {kind}")
        known[kind]()

    # -- tables ------------------------------------------------------------------------

    def _output(self, kind: OutputKind) -> str:
        """Define the table that the plan creates; returns its name."""
        plan, name = self.plan, _identifier(self.plan.name())
        layout = [str(each.describe()) for each in _items(plan.partitioning())]
        clusters = [each for each in layout if each.startswith("cluster_by(")]
        spec = plan.tableSpec()
        self.found.add_output(
            OutputDefinition(
                name,
                kind,
                self.place,
                _option(spec.comment()) or "",
                _mapping(spec.properties()),
                tuple(each for each in layout if each not in clusters),
                _inside(clusters[0]) if clusters else (),
                _columns(plan.columns()),
            )
        )
        return name

    def _table(self, kind: OutputKind) -> None:
        name = self._output(kind)
        self._add_flow(name, name, self.plan.query())

    def _empty_table(self) -> None:
        self._output(OutputKind.STREAMING)

    def _view(self) -> None:
        name = str(self.plan.name().table())
        output = OutputDefinition(name, OutputKind.TEMPORARY, self.place)
        self.found.add_output(output)
        self._add_flow(name, name, self.plan.plan())

    def _set(self) -> None:
        pair = _option(self.plan.kv())
        value = None if pair is None else _option(pair._2())
        if pair is not None and value is not None:
            self.conf[str(pair._1())] = str(value)

    # -- flows -------------------------------------------------------------------------

    def _add_flow(
        self, name: str, target: str, query: JavaObject, rules: ChangeRules | None = None
    ) -> None:
        read = None if rules is None else _source(query)

        def frame() -> DataFrame:
            # What is a table's name alone would stay unresolved once it was not found.
            return (
                frame_of(self.spark, query) if read is None else self.spark.readStream.table(read)
            )

        self.found.add_flow(
            FlowDefinition(name, target, self.place, frame, dict(self.conf), (), rules)
        )

    def _flow(self) -> None:
        name, does = _identifier(self.plan.name()), self.plan.flowOperation()
        kind = str(does.getClass().getSimpleName())
        if kind == "AutoCdcInto":
            target = _relation(does.targetTable())
            self._add_flow(name, target, does.source(), _rules(does))
        elif kind == "InsertIntoStatement":
            self._add_flow(name, _relation(does.table()), does.query())
        else:
            raise code_error(self.place, "a flow is INSERT INTO … BY NAME or AUTO CDC INTO …")

    def _changing_table(self) -> None:
        name = self._output(OutputKind.STREAMING)
        self._add_flow(name, name, self.plan.source(), _rules(self.plan))


def frame_of(spark: SparkSession, plan: JavaObject) -> DataFrame:
    """The rows of a parsed query."""
    from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame  # noqa: PLC0415

    jvm: Any = spark._jvm
    # A plan that could not be resolved keeps that in mind.
    return ClassicFrame(
        jvm.org.apache.spark.sql.classic.Dataset.ofRows(spark._jsparkSession, plan.clone()), spark
    )


def _rules(plan: JavaObject) -> ChangeRules:
    return ChangeRules(
        _relation(plan.source()),
        _names(plan.keys()) or (),
        str(plan.sequenceByExpr().sql()),
        None if not plan.deleteCondition().isDefined() else str(plan.deleteCondition().get().sql()),
        _names(_option(plan.includeColumns())),
        _names(_option(plan.excludeColumns())),
        int(plan.storedAsScdType()),
        _names(_option(plan.trackHistoryColumns())),
        _names(_option(plan.trackHistoryExceptColumns())),
    )


# -- plans -----------------------------------------------------------------------------


def _items(sequence: JavaObject) -> Iterator[JavaObject]:
    for number in range(sequence.size()):
        yield sequence.apply(number)


def _option(found: JavaObject) -> JavaObject | None:
    return found.get() if found.isDefined() else None


def _mapping(found: JavaObject) -> Mapping[str, str]:
    pairs = _items(found.toSeq())
    return {str(pair._1()): str(pair._2()) for pair in pairs}


def _identifier(plan: JavaObject) -> str:
    return lake_name(quoted(*(str(each) for each in _items(plan.nameParts()))))


def _relation(plan: JavaObject) -> str:
    """The name of the table that a plan reads, or writes to."""
    for leaf in _items(plan.collectLeaves()):
        kind = leaf.getClass().getSimpleName()
        if kind == "UnresolvedIdentifier":
            return _identifier(leaf)
        if kind == "UnresolvedRelation":
            return lake_name(quoted(*(str(each) for each in _items(leaf.multipartIdentifier()))))
    return str(plan)


def _source(plan: JavaObject) -> str | None:
    """The table that changes are read from, as SQL spells it."""
    for leaf in _items(plan.collectLeaves()):
        if leaf.getClass().getSimpleName() == "UnresolvedRelation":
            return quoted(*(str(each) for each in _items(leaf.multipartIdentifier())))
    return None


def _names(columns: JavaObject | None) -> tuple[str, ...] | None:
    return None if columns is None else tuple(str(each.name()) for each in _items(columns))


def _inside(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.partition("(")[2].rstrip(")").split(","))


def _columns(columns: JavaObject) -> str | None:
    """The columns as text of SQL; None if the query says them."""
    found = [f"{quoted(str(each.name()))} {each.dataType().sql()}" for each in _items(columns)]
    return ", ".join(found) or None
