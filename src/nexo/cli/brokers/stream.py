"""``nexo stream``: create streams and look at them; other modules add commands."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import click
import msgspec

from nexo.cli import output
from nexo.cli.brokers import lag, seek, stream_groups, stream_publish, tail
from nexo.cli.options import client, common, given, nothing_there, option_flags
from nexo.errors import NotFound
from nexo.options.stream import StreamOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nexo.protocol.stream import StreamInfo
    from nexo.protocol.stream_ordered import OrderedInfo

_PARTITION = ("partition", "start_offset", "next_offset", "size_bytes", "tiered_offset", "last_ms")
_LISTED = ("name", "partitions", "offsets", "size_bytes", "groups")


@click.group()
def command() -> None:
    """Streams: create, publish, read, show."""


@command.command()
@click.argument("name")
@click.option("--update", is_flag=True, help="Change an existing stream to these options.")
@option_flags(StreamOptions)
def create(name: str, update: bool, **options: Any) -> None:
    """Create the stream NAME, or find it if it has the options given."""
    with client() as nexo:
        _show_briefly(nexo.stream(name).create(update=update, **given(options)).info())


@command.command()
@click.argument("name")
@option_flags(StreamOptions, fixed=False)
def update(name: str, **options: Any) -> None:
    """Change options of the stream NAME while it runs."""
    with client() as nexo:
        _show_briefly(nexo.stream(name).update(**given(options)))


@command.command("list")
@click.argument("prefix", default="")
@click.option("--names", is_flag=True, help="Only names, which is quick for thousands.")
def list_(prefix: str, names: bool) -> None:
    """All streams, or those whose names begin with PREFIX.

    Offsets are those from the first to the next of each partition: as many as there are
    records, and more once compaction, an aborted transaction or the lake has left gaps.
    """
    with client() as nexo:
        found = nexo.streams(prefix)
        if names:
            output.rows(({"name": name} for name in found), ("name",))
        else:
            ordered = Counter(
                topic for group in lag.shown_ordered_groups(nexo) for topic in group.lags
            )
            shown = (_summary(nexo.stream(name).info(), ordered[name]) for name in found)
            output.rows(shown, _LISTED, "there are no streams")


def _summary(info: StreamInfo, ordered: int) -> dict[str, object]:
    return {
        "name": info.name,
        "partitions": len(info.partitions),
        "offsets": sum(part.next_offset - part.start_offset for part in info.partitions),
        "size_bytes": sum(part.size_bytes for part in info.partitions),
        "groups": len(info.groups) + ordered,
    }


@command.command()
@click.argument("name")
def info(name: str) -> None:
    """Options, partitions and groups of the stream NAME."""
    with client() as nexo:
        _show(nexo.stream(name).info(), lag.ordered_groups(nexo, name))


def _show_briefly(info: StreamInfo) -> None:
    """What matters first; `nexo stream info` has the rest."""
    if common().as_json:
        _show(info)
        return
    keys = ("partitions", "persistence", "retention_ms", "retention_bytes", "cleanup", "tiering")
    output.fields({"name": info.name} | {key: info.options[key] for key in keys})


def _show(info: StreamInfo, ordered: Sequence[OrderedInfo] = ()) -> None:
    parts = [msgspec.structs.asdict(part) for part in info.partitions]  # zeros too
    names = [group.name for group in ordered]
    if common().as_json:
        shown = msgspec.to_builtins(info) | {"partitions": parts, "ordered_groups": names}
        output.line(shown)
        return
    groups = [*info.groups, *(f"{name} (ordered)" for name in names)]
    output.fields({"name": info.name, **info.options, "groups": ", ".join(groups) or "none"})
    output.rows(({"partition": number} | part for number, part in enumerate(parts)), _PARTITION)


@command.command()
@click.argument("name")
@click.confirmation_option(prompt="Remove all but the newest record of each key, for good?")
def compact(name: str) -> None:
    """Keep only the newest record of each key of the stream NAME, now.

    Its clean-up must include compact.
    """
    with client() as nexo:
        freed = nexo.stream(name).compact()
    output.done(f"{freed:,} bytes freed", freed_bytes=freed)


@command.command()
@click.argument("name")
def retain(name: str) -> None:
    """Apply the age and size limits of the stream NAME now."""
    with client() as nexo:
        freed = nexo.stream(name).apply_retention()
    output.done(f"{freed:,} bytes freed", freed_bytes=freed)


@command.command()
@click.argument("name")
@click.confirmation_option(prompt="Delete the stream with all its records and groups?")
def delete(name: str) -> None:
    """Delete the stream NAME."""
    with client() as nexo:
        if not nexo.stream(name).delete():
            raise NotFound(f"stream {name!r} not found")
    output.done(f"{name} deleted", name=name, deleted=True)


@command.command()
@click.argument("name")
@click.argument("key")
def get(name: str, key: str) -> None:
    """The newest record of KEY in the stream NAME."""
    with client() as nexo:
        found = nexo.stream(name).get(key)
    if found is None:
        raise nothing_there(f"no record of stream {name!r} has the key {key!r}")
    tail.show(found)


for part in (
    stream_publish.command,
    tail.command,
    tail.read,
    stream_groups.groups,
    stream_groups.members,
    stream_groups.delete_group,
    stream_groups.parked,
    lag.command,
    seek.command,
):
    command.add_command(part)
