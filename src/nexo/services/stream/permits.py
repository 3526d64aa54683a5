"""Permissions on groups: ``orders@billing`` is a stream as one group reads it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nexo.access.grants import Action, Extent
from nexo.access.permit import READ, WRITE, permit
from nexo.brokers.stream.groups.ordered import OrderedGroup
from nexo.model import Broker
from nexo.services.connection import Connection


def in_group(stream: str, group: str | None) -> str:
    """The permission name of a stream in one group, or in every group for None."""
    return stream if group is None else f"{stream}@{group}"


def permit_group(
    connection: Connection, stream: str, group: str | None, actions: Sequence[Action] = READ
) -> None:
    """Raise `Forbidden` unless the client may use a group of a stream."""
    if connection.identity is not None:
        permit(connection.identity, Broker.STREAM, actions, in_group(stream, group))


def permit_ordered(
    connection: Connection, name: str, group: OrderedGroup | None = None, topics: Iterable[str] = ()
) -> None:
    """Raise `Forbidden` unless the client may read ``topics`` and all that the group reads.

    One member's requests affect the others, so a grant on one of a group's streams is not
    enough. If there are no topics at all, a grant on a group of this name is needed.
    """
    if connection.identity is None:
        return
    asked = {*topics, *(group.topics if group is not None else ())}
    for topic in sorted(asked):
        permit(connection.identity, Broker.STREAM, READ, in_group(topic, name))
    if not asked:
        permit(connection.identity, Broker.STREAM, READ, name, Extent.GROUP)


def permit_producer(connection: Connection, name: str, owner: str) -> None:
    """Raise `Forbidden` unless the client may be the producer of a name.

    A name is that of the user who was the first to start it; another user needs a grant that names
    it, such as ``*@name``, or one for every stream.
    """
    identity = connection.identity
    if identity is not None:
        permit(identity, Broker.STREAM, WRITE, name, Extent.GROUP)
        if owner not in ("", identity.user.name):
            permit(identity, Broker.STREAM, WRITE, name, Extent.OWNED)


def permit_everything(connection: Connection, actions: Sequence[Action]) -> None:
    """Raise `Forbidden` unless the client may do this to every stream."""
    permit(connection.identity, Broker.STREAM, actions, "", Extent.PREFIX)
