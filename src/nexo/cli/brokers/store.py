"""``nexo store``: keys, counters and what they hold."""

from __future__ import annotations

import math
from itertools import islice
from typing import TYPE_CHECKING

import click
import msgspec

from nexo.cli import output
from nexo.cli.brokers.store_collections import list_commands, map_commands, set_commands
from nexo.cli.options import SignedGroup, as_option, client, fail_unless, read_value
from nexo.cli.times import seconds
from nexo.errors import NotFound
from nexo.options.units import duration_text

if TYPE_CHECKING:
    from nexo.client._sync.store.store import Store

_LIFE_TIME = seconds(least_ms=1)


@click.group(cls=SignedGroup)
def command() -> None:
    """Keys, counters, maps, lists and sets.

    A VALUE is - for standard input or @name for a file.
    """


command.add_command(map_commands, "map")
command.add_command(list_commands, "list")
command.add_command(set_commands, "set-of")


@command.command()
@click.argument("key")
def get(key: str) -> None:
    """Print what KEY holds; a map, list or set as JSON."""
    with client() as nexo:
        output.value(_content(nexo.store, key))


def _content(store: Store, key: str) -> object:
    info = store.inspect(key)
    match info.kind if info else None:
        case "value":
            return store.get(key)
        case "map":
            return store.map(key).all()
        case "list":
            return store.list(key).range()
        case "set":
            return store.set_(key).members()
    raise _absent(key)


@command.command(name="set")
@click.argument("key")
@click.argument("value")
@as_option
@click.option("--ttl", type=_LIFE_TIME, help="Let the key expire: 30 (seconds), 10m.")
@click.option("--keep-ttl", is_flag=True, help="Keep the life time the key has.")
@click.option("--if-absent", is_flag=True, help="Only if there is no such key.")
@click.option("--if-equal", metavar="VALUE", help="Only if the key holds this.")
def set_(
    key: str,
    value: str,
    kind: str,
    ttl: float | None,
    keep_ttl: bool,
    if_absent: bool,
    if_equal: str | None,
) -> None:
    """Set KEY to VALUE; exit code 1 if --if-absent or --if-equal forbids it."""
    content = read_value(value, kind)
    if if_absent and if_equal is not None:
        raise click.UsageError("give either --if-absent or --if-equal, not both")
    with client() as nexo:
        if if_equal is not None:
            expected = read_value(if_equal, kind)
            done = nexo.store.cas(key, expected, content, ttl=ttl, keep_ttl=keep_ttl)
        else:
            done = nexo.store.set(key, content, ttl=ttl, keep_ttl=keep_ttl, if_absent=if_absent)
    output.done("set" if done else "not set: the condition does not hold", key=key, set=done)
    fail_unless(done)


@command.command(name="del")
@click.argument("keys", nargs=-1, required=True)
def delete(keys: tuple[str, ...]) -> None:
    """Delete KEYS of any kind; exit code 1 if there is none of them."""
    with client() as nexo:
        count = nexo.store.delete_many(*keys)
    output.done(f"deleted {count}", deleted=count)
    fail_unless(count > 0)


@command.command()
@click.argument("prefix", default="")
@click.option("--prefix", "named_prefix", metavar="PREFIX", help="The same as PREFIX.")
@click.option("--glob", default="", help="Only keys that match, with * ? and [a-z].")
@click.option("--limit", type=click.IntRange(min=1), help="Stop after this many.")
@click.option("--long", "-l", "detailed", is_flag=True, help="Kind, size and life time of each.")
def keys(
    prefix: str, named_prefix: str | None, glob: str, limit: int | None, detailed: bool
) -> None:
    """List keys in order, those that begin with PREFIX."""
    if prefix and named_prefix:
        raise click.UsageError("give the prefix once: as PREFIX or with --prefix")
    prefix = prefix or named_prefix or ""
    with client() as nexo:
        found = islice(nexo.store.keys(prefix, glob=glob), limit)
        wild = "*" in prefix or "?" in prefix
        none = (
            f"no keys begin with {prefix!r}; did you mean --glob {prefix!r}?" if wild else "no keys"
        )
        if detailed:
            rows = [row for key in found if (row := _facts(nexo.store, key))]
            output.rows(rows, ["key", "kind", "items", "bytes", "ttl_s"], none)
        else:
            output.rows(({"key": key} for key in found), ["key"], none)


@command.command()
@click.argument("key")
def inspect(key: str) -> None:
    """Show a key's kind, size and life time, not its value."""
    with client() as nexo:
        facts = _facts(nexo.store, key)
    if facts is None:
        raise _absent(key)
    output.fields(facts)


def _facts(store: Store, key: str) -> dict[str, object] | None:
    info = store.inspect(key)
    if info is None:
        return None
    ttl_s = None if info.ttl_ms is None else info.ttl_ms / 1000
    return {
        "key": key, "kind": info.kind, "items": info.items, "bytes": info.size_bytes,
        "ttl_s": ttl_s,
    }  # fmt: skip


@command.command()
@click.argument("key")
@click.option("--by", type=float, default=1.0, help="How much to add; may be negative.")
@click.option("--ttl", type=_LIFE_TIME, help="Life time if the key is new.")
def incr(key: str, by: float, ttl: float | None) -> None:
    """Add to the number in KEY, from 0 if it is new."""
    with client() as nexo:
        total = nexo.store.incr(key, int(by) if by.is_integer() else by, ttl=ttl)
    output.done(str(total), key=key, value=total)


@command.command()
@click.argument("key")
def ttl(key: str) -> None:
    """Print the seconds KEY has left."""
    with client() as nexo:
        left_s = nexo.store.ttl(key)
    if left_s is None:
        raise _absent(key)
    if left_s == math.inf:
        output.done("never expires", key=key, ttl_s=None)
    else:
        output.done(f"{left_s:.3f}", key=key, ttl_s=left_s)


@command.command()
@click.argument("key")
@click.argument("after", type=_LIFE_TIME)
def expire(key: str, after: float) -> None:
    """Let KEY expire AFTER a time: 30 (seconds), 500ms, 10m, 7d."""
    with client() as nexo:
        if not nexo.store.expire(key, after):
            raise _absent(key)
    output.done(f"expires in {duration_text(after * 1000)}", key=key, ttl_s=after)


@command.command()
@click.argument("key")
def persist(key: str) -> None:
    """Remove the life time of KEY."""
    with client() as nexo:
        done = nexo.store.persist(key)
        if not done and not nexo.store.exists(key):
            raise _absent(key)
    output.done("never expires" if done else "had no life time", key=key, changed=done)


@command.command()
def info() -> None:
    """Show keys, memory, hits, evictions and saves."""
    with client() as nexo:
        output.fields(msgspec.to_builtins(nexo.store.info()))


@command.command()
@click.confirmation_option(prompt="Delete every key of the store?")
def clear() -> None:
    """Delete everything in the store."""
    with client() as nexo:
        count = nexo.store.clear()
    output.done(f"deleted {count}", deleted=count)


def _absent(key: str) -> NotFound:
    return NotFound(f"key {key!r} not found")
