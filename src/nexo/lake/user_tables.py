"""Tables that users' own code fills: their names, and what they are made of.

They are Iceberg tables beside those of streams. A property says what a table's users call it, which
may be any name; the catalog's own name of it is one that SQL allows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from nexo.errors import Conflict, InvalidInput, NotFound
from nexo.lake.catalog import NEW_TABLE, Lake
from nexo.lake.commit import refresh
from nexo.lake.failures import lake_errors
from nexo.lake.schema import file_schema
from nexo.lake.tables import STREAM, USER, table_name

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table

# ruff: noqa: PLC0415 - PyIceberg takes half a second to import

SORT, COMMENT = "nexo.sort", "comment"
"""Properties of such a table: the columns by which its files are sorted, and what it is for."""
_PARTITION = re.compile(r"(?:(\w+)\()?(?:(\d+)\s*,\s*)?`?([^`()]+?)`?(?:\s*,\s*(\d+))?\)?")
_TRANSFORMS = {"years": "year", "months": "month", "days": "day", "hours": "hour"}
_WIDER = {
    ("int32", "int64"), ("float", "double"), ("int8", "int32"), ("int16", "int32"),
    ("int8", "int64"), ("int16", "int64"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TableShape:
    """How a table is laid out."""

    partitions: Sequence[str] = ()
    """Columns, or transforms of them: ``day``, ``days(at)``, ``bucket(16, id)``."""
    sort: Sequence[str] = ()
    comment: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)


def find_user_table(lake: Lake, name: str) -> Table | None:
    """A user's table as it is now; None if there is none of that name."""
    table = lake.at(table_name(name))
    return table if table is not None and table.properties.get(USER) == name else None


def get_user_table(lake: Lake, name: str) -> Table:
    """A user's table; `NotFound` if there is none."""
    found = find_user_table(lake, name)
    if found is None:
        raise NotFound(f"there is no table {name!r} in the lake")
    return found


def user_tables(lake: Lake) -> Iterator[Table]:
    """Every table of users."""
    yield from (table for table in lake.every() if USER in table.properties)


def ensure_user_table(
    lake: Lake, name: str, columns: pa.Schema, shape: TableShape | None = None
) -> Table:
    """A user's table, created if missing; `Conflict` if something else has its name.

    New columns are added to a table that is there.
    """
    found = find_user_table(lake, name)
    if found is None:
        return _create(lake, name, columns, shape or TableShape())
    return widened(found, columns)


def check_user_table(name: str, columns: pa.Schema, shape: TableShape) -> None:
    """Raise if a table of these columns cannot be made."""
    _spec(_schema(name, columns), shape.partitions)


def _create(lake: Lake, name: str, columns: pa.Schema, shape: TableShape) -> Table:
    from pyiceberg.exceptions import TableAlreadyExistsError

    taken = lake.at(table_name(name))
    if taken is not None:
        owner = taken.properties.get(STREAM)
        whose = f"of stream {owner!r}" if owner else "not Nexo's"
        raise Conflict(
            f"table {'.'.join(taken.name())} is {whose}: give the table {name!r} another name"
        )
    schema = _schema(name, columns)
    properties = {**shape.properties, USER: name}
    if shape.comment:
        properties[COMMENT] = shape.comment
    if shape.sort:
        properties[SORT] = json.dumps(list(shape.sort))
    with lake_errors(f"cannot create table {name!r}", settings=True):
        lake.catalog.create_namespace_if_not_exists(lake.settings.namespace)
        try:
            return lake.catalog.create_table(
                (lake.settings.namespace, table_name(name)),
                schema,
                partition_spec=_spec(schema, shape.partitions),
                properties=properties | NEW_TABLE,
            )
        except TableAlreadyExistsError:
            return get_user_table(lake, name)


def _schema(name: str, columns: pa.Schema) -> Schema:
    from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids
    from pyiceberg.schema import assign_fresh_schema_ids

    if not len(columns):
        raise InvalidInput(f"table {name!r} would have no columns")
    plain = pa.schema([_optional(each) for each in columns])
    try:
        return assign_fresh_schema_ids(
            _pyarrow_to_schema_without_ids(plain, downcast_ns_timestamp_to_us=True)
        )
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"table {name!r} cannot be kept in the lake: {error}") from None


def _optional(column: pa.Field) -> pa.Field:
    """A column whose values, and their parts, may be null: later rows may have such."""
    kind = column.type
    if pa.types.is_struct(kind):
        kind = pa.struct([_optional(each) for each in kind])
    elif pa.types.is_list(kind):
        kind = pa.list_(_optional(kind.value_field))
    elif pa.types.is_map(kind):
        kind = pa.map_(_optional(kind.key_field).with_nullable(False), _optional(kind.item_field))
    return column.with_type(kind).with_nullable(True)


def _spec(schema: Schema, partitions: Sequence[str]) -> PartitionSpec:
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.transforms import UnknownTransform, parse_transform

    fields = []
    for number, text in enumerate(partitions):
        matched = _PARTITION.fullmatch(text.strip())
        if matched is None:
            raise InvalidInput(f"{text!r} is no partition: write a column, or days(column)")
        kind, before, column, after = matched.groups()
        argument = before or after
        word = _TRANSFORMS.get(kind or "identity", kind or "identity")
        try:
            source = schema.find_field(column)
            transform = parse_transform(f"{word}[{argument}]" if argument else word)
            if isinstance(transform, UnknownTransform):
                raise ValueError(word)
        except ValueError:
            known = ", ".join(schema.column_names)
            raise InvalidInput(
                f"cannot partition by {text!r}: write one of the columns {known}, or years, "
                "months, days, hours, bucket(16, column) or truncate(4, column) of it"
            ) from None
        label = column if word == "identity" else f"{column}_{word}"
        fields.append(PartitionField(source.field_id, 1000 + number, transform, label))
    return PartitionSpec(*fields)


# -- columns ---------------------------------------------------------------------------


def widened(table: Table, columns: pa.Schema) -> Table:
    """A table with these columns, too; `Conflict` if one has changed in a way that does not fit."""
    known = {each.name: each for each in file_schema(table.schema())}
    changed = []
    for each in columns:
        held = known.get(each.name)
        if held is None or (not fits(each.type, held.type) and _promoted(held.type, each.type)):
            changed.append(each)
        elif not fits(each.type, held.type):
            raise Conflict(
                f"column {each.name!r} of table {table.properties.get(USER)!r} is {held.type}, and "
                f"now {each.type} is written to it: cast it, or make the table anew with --full"
            )
    if not changed:
        return table
    name = ".".join(table.name())
    wanted = _schema(name, pa.schema(changed))
    with lake_errors(f"cannot add columns to table {name}"), table.update_schema() as update:
        update.union_by_name(wanted)
    return refresh(table)


def _promoted(held: pa.DataType, given: pa.DataType) -> bool:
    """Whether Iceberg lets a column become of another type."""
    if pa.types.is_decimal(given) and pa.types.is_decimal(held):
        return bool(given.scale == held.scale and given.precision > held.precision)
    return (str(held), str(given)) in (("int32", "int64"), ("float", "double"))


def fits(given: pa.DataType, held: pa.DataType) -> bool:
    """Whether values of a type can be kept in a column of another one."""
    if given == held or pa.types.is_null(given):
        return True
    if pa.types.is_struct(given) and pa.types.is_struct(held):
        return [each.name for each in given] == [each.name for each in held] and all(
            fits(one.type, other.type) for one, other in zip(given, held, strict=True)
        )
    if pa.types.is_list(given) and pa.types.is_list(held):
        return fits(given.value_type, held.value_type)
    if pa.types.is_map(given) and pa.types.is_map(held):
        return fits(given.key_type, held.key_type) and fits(given.item_type, held.item_type)
    if pa.types.is_decimal(given) and pa.types.is_decimal(held):
        return bool(given.scale == held.scale and given.precision <= held.precision)
    return (str(given), str(held)) in _WIDER
