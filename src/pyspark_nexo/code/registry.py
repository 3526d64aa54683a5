"""Receives what users' Python code defines by ``pyspark.pipelines``, on a classic session.

PySpark's decorators hand plain objects to a registry in a context variable. Only AUTO CDC needs
Spark Connect there, for expressions, so while files are loaded that function is replaced by one
that keeps expressions as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import pipelines
from pyspark.pipelines import api
from pyspark.pipelines.graph_element_registry import (
    GraphElementRegistry,
    graph_element_registration_context,
)
from pyspark.pipelines.output import MaterializedView, Sink, StreamingTable, TemporaryView
from pyspark.pipelines.source_code_location import get_caller_source_code_location

from nexo.errors import InvalidInput
from nexo.pipelines import expectations_of
from pyspark_nexo.code.definitions import (
    ChangeRules,
    CodePlace,
    Definitions,
    FlowDefinition,
    FrameMaker,
    OutputDefinition,
    OutputKind,
    code_error,
)
from pyspark_nexo.tables.catalog import lake_name

if TYPE_CHECKING:
    from pyspark.pipelines.flow import AutoCdcFlow, Flow
    from pyspark.pipelines.output import Output
    from pyspark.pipelines.source_code_location import SourceCodeLocation
    from pyspark.sql import Column, SparkSession

_KINDS: dict[type[Any], OutputKind] = {
    StreamingTable: OutputKind.STREAMING,
    MaterializedView: OutputKind.VIEW,
    TemporaryView: OutputKind.TEMPORARY,
    Sink: OutputKind.SINK,
}
_FORMATS = ("", "nexo", "iceberg", "parquet")
"""What a table may ask for: it becomes Iceberg's, of Parquet files."""


@dataclass(slots=True)
class CodeRegistry(GraphElementRegistry):
    """Collects definitions; ``root`` is the folder that places are shown below."""

    spark: SparkSession
    root: Path
    found: Definitions

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Receive what code in the block defines."""
        replaced = api.create_auto_cdc_flow
        with graph_element_registration_context(self):
            try:
                pipelines.create_auto_cdc_flow = api.create_auto_cdc_flow = self._auto_cdc
                yield
            finally:
                pipelines.create_auto_cdc_flow = api.create_auto_cdc_flow = replaced

    def place(self, where: SourceCodeLocation) -> CodePlace:
        """A place as users know it."""
        path = Path(where.filename)
        inside = path.is_relative_to(self.root)
        return CodePlace(str(path.relative_to(self.root) if inside else path), where.line_number)

    def register_output(self, output: Output) -> None:
        place = self.place(output.source_code_location)
        properties = dict(getattr(output, "table_properties", {}))
        wanted = (getattr(output, "format", None) or "").lower()
        is_sink = isinstance(output, Sink)
        if not is_sink and wanted not in _FORMATS:
            raise code_error(
                place,
                f"{output.name!r} asks for format {wanted!r}: tables of the lake are Iceberg's",
            )
        self.found.add_output(
            OutputDefinition(
                lake_name(output.name),
                _KINDS[type(output)],
                place,
                output.comment or "",
                properties,
                tuple(getattr(output, "partition_cols", None) or ()),
                tuple(getattr(output, "cluster_by", None) or ()),
                getattr(output, "schema", None),
                wanted if is_sink else "",
                dict(getattr(output, "options", {})),
            )
        )

    def register_flow(self, flow: Flow) -> None:
        self.found.add_flow(
            FlowDefinition(
                flow.name,
                lake_name(flow.target),
                self.place(flow.source_code_location),
                flow.func,
                flow.spark_conf,
                expectations_of(flow.func),
            )
        )

    def register_auto_cdc_flow(self, flow: AutoCdcFlow) -> None:
        raise InvalidInput(
            "import create_auto_cdc_flow from pyspark.pipelines in a pipeline's file"
        )

    def register_sql(self, sql_text: str, file_path: Path) -> None:
        """Definitions in SQL (`pyspark_nexo.code.sql`)."""
        from pyspark_nexo.code.sql import define  # noqa: PLC0415 - which imports this module

        define(self.spark, self.found, sql_text, str(file_path))

    def changes(
        self, name: str, target: str, place: CodePlace, rules: ChangeRules,
        conf: Mapping[str, str],
    ) -> None:  # fmt: skip
        """Define an AUTO CDC flow, which reads its source as a stream."""
        self.found.add_flow(change_flow(self.spark, name, lake_name(target), place, rules, conf))

    def _auto_cdc(
        self,
        target: str,
        source: str,
        keys: Sequence[str | Column],
        sequence_by: str | Column,
        apply_as_deletes: str | Column | None = None,
        column_list: Sequence[str | Column] | None = None,
        except_column_list: Sequence[str | Column] | None = None,
        stored_as_scd_type: int | str | None = None,
        name: str | None = None,
        *,
        track_history_column_list: Sequence[str | Column] | None = None,
        track_history_except_column_list: Sequence[str | Column] | None = None,
        spark_conf: Mapping[str, str] | None = None,
    ) -> None:
        """``dp.create_auto_cdc_flow``, with the same arguments."""
        place = self.place(get_caller_source_code_location(stacklevel=1))
        if column_list and except_column_list:
            raise code_error(place, "give either column_list or except_column_list")
        if track_history_column_list and track_history_except_column_list:
            raise code_error(place, "give one of track_history_(except_)column_list")
        if str(stored_as_scd_type or 1) not in ("1", "2"):
            raise code_error(place, f"stored_as_scd_type is 1 or 2, not {stored_as_scd_type!r}")
        if not keys:
            raise code_error(place, "keys: name at least one column")
        rules = ChangeRules(
            source,
            _texts(keys) or (),
            _text(sequence_by),
            None if apply_as_deletes is None else _text(apply_as_deletes),
            _texts(column_list),
            _texts(except_column_list),
            int(stored_as_scd_type or 1),
            _texts(track_history_column_list),
            _texts(track_history_except_column_list),
        )
        self.changes(name or target, target, place, rules, spark_conf or {})


def change_flow(
    spark: SparkSession,
    name: str,
    target: str,
    place: CodePlace,
    rules: ChangeRules,
    conf: Mapping[str, str],
) -> FlowDefinition:
    """An AUTO CDC flow; its query is the stream of changes."""

    def query() -> Any:
        return spark.readStream.table(rules.source)

    made: FrameMaker = query
    return FlowDefinition(name, target, place, made, conf, (), rules)


def _texts(columns: Sequence[str | Column] | None) -> tuple[str, ...] | None:
    return tuple(_text(each) for each in columns) if columns else None


def _text(expression: str | Column) -> str:
    """An expression as SQL has it."""
    if isinstance(expression, str):
        return expression
    found: Any = expression
    node = found._jc.node() if hasattr(found, "_jc") else None
    if node is None:
        raise InvalidInput(f"write {expression} as text of SQL")
    return str(node.sql())
