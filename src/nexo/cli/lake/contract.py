"""``nexo pipeline schema``, ``backfill`` and ``redrive``: a stream's contract, and what it does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nexo.cli import output
from nexo.cli.lake.lake_location import lake_options, open_lake, server_address
from nexo.cli.options import load_name, read_value
from nexo.client.views import ContractInfo

if TYPE_CHECKING:
    from nexo.contracts import StreamContract

# ruff: noqa: PLC0415 - Arrow and PyIceberg are slow to import, and optional


@click.command()
@click.argument("stream")
@click.option("--set", "given", metavar="JSON",
              help='Columns: {"amount": "decimal(10, 2)"}; @name: file.')  # fmt: skip
@click.option("--infer", is_flag=True, help="Find columns in what was published last.")
@click.option("--json-schema", "schema_file", metavar="JSON",
              help="Columns of a JSON Schema of the values; @name: file.")  # fmt: skip
@click.option("--model", metavar="MODULE:NAME",
              help="Columns of a dataclass, msgspec struct or pydantic model.")  # fmt: skip
@click.option("--avro", metavar="JSON", help="Values are Avro of this schema; @name: file.")
@click.option("--protobuf", "descriptors", type=click.Path(exists=True, path_type=Path),
              metavar="FILE", help="Values are Protobuf: a descriptor set, with --message.",
              )  # fmt: skip
@click.option("--debezium", metavar="JSON",
              help="Values are Debezium's envelopes; settings such as {}.")  # fmt: skip
@click.option("--message", metavar="NAME", help="The full name of a Protobuf message.")
@click.option("--schema-id", type=click.IntRange(0, 2**32 - 1),
              help="Values begin with a zero and this id, as a schema registry's do.")  # fmt: skip
@click.option("--format", "value_format", type=click.Choice(["json"]),
              help="Read values as JSON again.")  # fmt: skip
@click.option(
    "--permissive/--strict",
    default=None,
    help="A field that does not fit: it alone is null, or its record is a dead letter.",
)
@click.option(
    "--additions/--no-additions",
    default=None,
    help="New fields of JSON values become columns, or do not.",
)
@click.option("--rename", "renamed", metavar="OLD=NEW", multiple=True, help="Rename a column.")
@lake_options
def schema(
    stream: str,
    given: str | None,
    infer: bool,
    schema_file: str | None,
    model: str | None,
    avro: str | None,
    descriptors: Path | None,
    debezium: str | None,
    message: str | None,
    schema_id: int | None,
    value_format: str | None,
    permissive: bool | None,
    additions: bool | None,
    renamed: tuple[str, ...],
    **where: Any,
) -> None:
    """Show or change STREAM's contract: the typed columns that its values become in the lake.

    Types: boolean, int, long, float, double, string, binary, date, timestamp, json, decimal(P, S),
    list<T>, map<K, T>, struct<name: T, …>.
    """
    _check(avro, descriptors, message, schema_id)
    said = (given, infer, schema_file, model, avro, descriptors, debezium, value_format, renamed)
    change = any(said) or permissive is not None or additions is not None
    contract = _contract(stream, where, make=change)
    found: ContractInfo | None = None
    if value_format:
        found = contract.json()
    if avro:
        found = contract.avro(_object(avro), schema_id=schema_id)
    if descriptors and message:
        found = contract.protobuf(descriptors.read_bytes(), message, schema_id=schema_id)
    if debezium:
        found = contract.debezium(_object(debezium))
    if infer or schema_file or model or given:
        found = contract.set(_wanted(contract, given, infer, schema_file, model))
    if permissive is not None:
        found = contract.permissive(permissive)
    if additions is not None:
        found = contract.additions(additions)
    for pair in renamed:
        found = contract.rename(*pair.partition("=")[::2])
    _show(_looked(contract) if found is None else found)


def _wanted(
    contract: StreamContract,
    given: str | None,
    infer: bool,
    schema_file: str | None,
    model: str | None,
) -> Mapping[str, str]:
    """Columns from all sources that were named; those of ``--set`` override the others."""
    from nexo.lake.typed.models import columns_from

    contract.table()  # or why it has none
    wanted = contract.inferred() if infer else {}
    if schema_file:
        wanted |= columns_from(_object(schema_file))
    if model:
        wanted |= columns_from(load_name(model))
    return wanted | (_object(given) if given else {})


def _check(
    avro: str | None, descriptors: Path | None, message: str | None, schema_id: int | None
) -> None:
    if (descriptors is None) != (message is None):
        raise click.UsageError("--protobuf and --message belong together")
    if avro and descriptors:
        raise click.UsageError("values are of one format: give either --avro or --protobuf")
    if schema_id is not None and not (avro or descriptors):
        raise click.UsageError("--schema-id says which values are of --avro or --protobuf")


def _contract(stream: str, where: dict[str, Any], *, make: bool = False) -> StreamContract:
    lake = open_lake(**where, make=make)
    from nexo.contracts import StreamContract

    return StreamContract(lake, server_address(), stream)


def _object(text: str) -> dict[str, Any]:
    found = read_value(text, "json")
    if not isinstance(found, dict):
        raise click.BadParameter("columns and schemas are a JSON object")
    return found


def _looked(contract: StreamContract) -> ContractInfo:
    _, tiering = contract.known_table()
    if not tiering:
        output.note(
            f"stream {contract.stream!r} has tiering off: nothing of it is taken into the lake"
        )
    return contract.info()


def _show(found: ContractInfo) -> None:
    rows = [asdict(column) for column in found.columns]
    output.rows(rows, ["column", "type", "field"], "no typed columns")
    if rows or found.additions:
        output.note("; ".join(_terms(found)))


def _terms(found: ContractInfo) -> Iterator[str]:
    """The settings of a contract besides its columns."""
    ids = f" with schema ids {', '.join(map(str, found.schema_ids))}" if found.schema_ids else ""
    yield f"values: {found.format}{' ' * bool(found.message)}{found.message}{ids}"
    yield (
        "permissive: a field that does not fit is null"
        if found.permissive
        else "strict: a value that does not fit is a dead letter"
    )
    if found.additions:
        yield "new fields become columns"
    if found.dead_letters:
        yield f"{found.dead_letters:,} dead letters"


@click.command()
@click.argument("stream")
@lake_options
def backfill(stream: str, **where: Any) -> None:
    """Fill STREAM's typed columns in records that are older than the columns."""
    done = _contract(stream, where).backfill()
    said = f"{stream}: filled {done.records:,} records in {done.files:,} files"
    output.done(said, stream=stream, files=done.files, records=done.records)


@click.command()
@click.argument("stream")
@click.option("--to", "other", metavar="STREAM", help="Publish them there instead.")
@lake_options
def redrive(stream: str, other: str | None, **where: Any) -> None:
    """Publish STREAM's dead letters again, those that were not yet, for columns that fit now."""
    count = _contract(stream, where).redrive(other)
    where_to = other or stream
    said = f"{stream}: published {count:,} dead letters to {where_to}"
    output.done(said, stream=stream, to=where_to, records=count)


COMMANDS = (schema, backfill, redrive)
