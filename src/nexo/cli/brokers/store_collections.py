"""``nexo store map|list|set-of``: single items of a collection.

Whole collections are shown by ``nexo store get`` and deleted by ``nexo store del``.
"""

from __future__ import annotations

import click

from nexo.cli import output
from nexo.cli.options import SignedGroup, as_option, client, fail_unless, read_value
from nexo.errors import NotFound


@click.group(cls=SignedGroup)
def map_commands() -> None:
    """Fields of a map."""


@map_commands.command(name="set")
@click.argument("name")
@click.argument("field")
@click.argument("value")
@as_option
def map_set(name: str, field: str, value: str, kind: str) -> None:
    """Set FIELD of the map NAME."""
    with client() as nexo:
        new = nexo.store.map(name).set(field, read_value(value, kind))
    output.done("added" if new else "changed", name=name, field=field, new=new)


@map_commands.command(name="get")
@click.argument("name")
@click.argument("field")
def map_get(name: str, field: str) -> None:
    """Print FIELD of the map NAME."""
    absent = object()
    with client() as nexo:
        found: object = nexo.store.map(name).get(field, absent)
    if found is absent:
        raise NotFound(f"there is no field {field!r} in {name!r}")
    output.value(found)


@map_commands.command(name="del")
@click.argument("name")
@click.argument("fields", nargs=-1, required=True)
def map_delete(name: str, fields: tuple[str, ...]) -> None:
    """Remove FIELDS from the map NAME."""
    with client() as nexo:
        count = nexo.store.map(name).delete(*fields)
    output.done(f"deleted {count}", name=name, deleted=count)
    fail_unless(count > 0)


@click.group(cls=SignedGroup)
def list_commands() -> None:
    """Values of a list."""


_left = click.option("--left", is_flag=True, help="At the left end instead of the right.")


@list_commands.command(name="push")
@click.argument("name")
@click.argument("values", nargs=-1, required=True)
@as_option
@_left
def list_push(name: str, values: tuple[str, ...], kind: str, left: bool) -> None:
    """Add VALUES to the list NAME."""
    contents = [read_value(value, kind) for value in values]
    with client() as nexo:
        held = nexo.store.list(name)
        length = held.push_left(*contents) if left else held.push(*contents)
    output.done(f"{length} values", name=name, length=length)


@list_commands.command(name="pop")
@click.argument("name")
@_left
def list_pop(name: str, left: bool) -> None:
    """Take a value off the list NAME and print it."""
    with client() as nexo:
        taken = nexo.store.list(name).pop_many(1, left=left)
    if not taken:
        raise NotFound(f"the list {name!r} is empty")
    output.value(taken[0])


@click.group(cls=SignedGroup)
def set_commands() -> None:
    """Members of a set."""


@set_commands.command(name="add")
@click.argument("name")
@click.argument("members", nargs=-1, required=True)
@as_option
def set_add(name: str, members: tuple[str, ...], kind: str) -> None:
    """Add MEMBERS to the set NAME."""
    with client() as nexo:
        count = nexo.store.set_(name).add(*(read_value(member, kind) for member in members))
    output.done(f"added {count}", name=name, added=count)


@set_commands.command(name="del")
@click.argument("name")
@click.argument("members", nargs=-1, required=True)
@as_option
def set_remove(name: str, members: tuple[str, ...], kind: str) -> None:
    """Remove MEMBERS from the set NAME."""
    with client() as nexo:
        count = nexo.store.set_(name).remove(*(read_value(member, kind) for member in members))
    output.done(f"removed {count}", name=name, removed=count)
    fail_unless(count > 0)
