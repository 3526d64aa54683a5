"""``nexo stream groups``, ``members`` and ``parked``: groups, who reads, what they set aside."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click
import msgspec

from nexo.cli import output
from nexo.cli.brokers.lag import ordered_groups, shared_row
from nexo.cli.brokers.tail import as_row
from nexo.cli.options import act_on_each, client, common, limit_option, offset_option
from nexo.client.stream_records import Published
from nexo.errors import NotFound
from nexo.model.names import name_of, text_of
from nexo.model.stream import shared_kind

if TYPE_CHECKING:
    from collections.abc import Callable

    from nexo import Client
    from nexo.client.stream_records import ParkedRecord
    from nexo.protocol.stream import GroupInfo
    from nexo.protocol.stream_ordered import KafkaMember, OrderedInfo

_GROUP = ("name", "kind", "consumers", "lag", "in_flight", "to_redeliver", "parked", "generation")
_MEMBER = ("member", "client_id", "host", "instance", "partitions", "lag")
_PLACE = re.compile(r"\d+:\d+", re.ASCII)
_PARKED = ("partition", "offset", "key", "value", "attempts", "reason", "parked_ms")


@click.command("groups")
@click.argument("stream")
def groups(stream: str) -> None:
    """The groups that read STREAM: shared, ordered, or of nexo.xstreams."""
    with client() as nexo:
        shared = nexo.stream(stream).groups()
        ordered = ordered_groups(nexo, stream)
    found = [*map(_row, shared), *map(_ordered, ordered)]
    output.rows(found, _GROUP, f"{stream} has no groups")


def _row(group: GroupInfo) -> dict[str, object]:
    if common().as_json:
        return {"kind": shared_kind(group.options), **msgspec.to_builtins(group)}
    return shared_row(group) | {
        "name": group.name,
        "to_redeliver": sum(each.to_redeliver for each in group.partitions),
        "generation": group.generation,
    }


def _ordered(group: OrderedInfo) -> dict[str, object]:
    if common().as_json:
        return {"kind": "ordered", **msgspec.to_builtins(group)}
    return {
        "name": text_of(group.name),
        "kind": "kafka" if group.kafka else "ordered",
        "consumers": len(group.members),
        "lag": group.lag,
        "generation": group.generation,
    }


@click.command("members")
@click.argument("stream")
@click.argument("group")
def members(stream: str, group: str) -> None:
    """The members of an ordered GROUP that reads STREAM, and what each is assigned of it.

    Kafka clients are shown with their client id and address.
    """
    with client() as nexo:
        info = _found(nexo, stream, group)
        parts = nexo.stream(stream).info().partitions
    done = {row.partition: row.offset + 1 for row in info.offsets if row.topic == stream}
    clients = {each.id: each for each in info.kafka.members} if info.kafka else {}
    rows = []
    for name in info.members:
        owned = [index for topic, index, who in info.owners if (topic, who) == (stream, name)]
        lag = sum(
            max(0, parts[index].stable_offset - max(done.get(index, 0), parts[index].start_offset))
            for index in owned
        )
        rows.append(_member(name, clients.get(name), owned, lag))
    if info.kafka and not common().as_json:
        output.note(f"{info.kafka.state}, assignor {info.kafka.assignor or 'none'}")
    output.rows(rows, _MEMBER, f"{group} has no members")


def _found(nexo: Client, stream: str, group: str) -> OrderedInfo:
    """By its name, or by the text that a Kafka client gave."""
    try:
        return ordered_groups(nexo, stream, group)[0]
    except NotFound:
        return ordered_groups(nexo, stream, name_of(group))[0]


def _member(
    name: str, client_: KafkaMember | None, owned: list[int], lag: int
) -> dict[str, object]:
    return {
        "member": name,
        "client_id": client_.client_id if client_ else None,
        "host": client_.host if client_ else None,
        "instance": client_.instance if client_ else None,
        "partitions": owned if common().as_json else ", ".join(map(str, owned)),
        "lag": lag,
    }


@click.command("delete-group")
@click.argument("stream")
@click.argument("group")
@click.confirmation_option(prompt="Delete the group and its position?")
def delete_group(stream: str, group: str) -> None:
    """Delete a group of STREAM and its position."""
    with client() as nexo:
        if not nexo.stream(stream).group(group).delete():
            raise NotFound(f"group {group!r} of stream {stream!r} not found")
    output.done(f"{group} deleted", group=group, deleted=True)


@click.group("parked")
def parked() -> None:
    """Records set aside after too many failures: list, replay, delete, purge."""


@parked.command("list")
@click.argument("stream")
@click.argument("group")
@limit_option(20, 10_000)
@offset_option()
def list_parked(stream: str, group: str, limit: int, offset: int) -> None:
    """What GROUP of STREAM has set aside, newest first."""
    with client() as nexo:
        found = nexo.stream(stream).group(group).parked.peek(limit, offset)
    output.rows(map(_parked_row, found), _PARKED, "nothing is parked")


def _parked_row(record: ParkedRecord[Any]) -> dict[str, object]:
    return as_row(record) | {
        "attempts": record.attempts,
        "reason": record.reason,
        "parked_ms": record.parked_ms,
    }


@parked.command()
@click.argument("stream")
@click.argument("group")
@click.argument("places", nargs=-1, metavar="[PARTITION:OFFSET]...")
@click.option("--all", "everything", is_flag=True, help="Every parked record of the group.")
def replay(stream: str, group: str, places: tuple[str, ...], everything: bool) -> None:
    """Deliver parked records of GROUP again."""
    if bool(places) == everything:
        raise click.UsageError("name records as PARTITION:OFFSET, or say --all")
    with client() as nexo:
        aside = nexo.stream(stream).group(group).parked
        count = aside.replay() if everything else _each(places, aside.replay)
    output.done(f"{count:,} records will be delivered again", replayed=count)


@parked.command()
@click.argument("stream")
@click.argument("group")
@click.argument("places", nargs=-1, required=True, metavar="PARTITION:OFFSET...")
def delete(stream: str, group: str, places: tuple[str, ...]) -> None:
    """Delete parked records of GROUP, which never gets them again; they stay in the stream."""
    with client() as nexo:
        count = _each(places, nexo.stream(stream).group(group).parked.delete)
    output.done(f"{count:,} parked records deleted", deleted=count)


@parked.command()
@click.argument("stream")
@click.argument("group")
@click.confirmation_option(prompt="Delete all parked records for good?")
def purge(stream: str, group: str) -> None:
    """Delete all parked records of GROUP; they stay in the stream."""
    with client() as nexo:
        count = nexo.stream(stream).group(group).parked.purge()
    output.done(f"{count:,} parked records deleted", deleted=count)


def _each(places: tuple[str, ...], act: Callable[[Published], int]) -> int:
    for text in places:
        if not _PLACE.fullmatch(text):
            raise click.BadParameter(f"{text!r} is not PARTITION:OFFSET, such as 0:17")
    return act_on_each(
        places, lambda text: act(Published(*map(int, text.split(":")))), "not parked"
    )
