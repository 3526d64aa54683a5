"""The text of `Forbidden` errors: what was attempted, and the permission it needs."""

from __future__ import annotations

from collections.abc import Sequence

from nexo.access.grants import EVERYTHING, Action, Extent, Grant
from nexo.errors import Forbidden
from nexo.model import Broker

_THINGS = {
    Broker.STORE: "store key",
    Broker.PUBSUB: "pub/sub topic",
    Broker.QUEUE: "queue",
    Broker.STREAM: "stream",
}
_VERBS = {Action.READ: "read", Action.WRITE: "write", Action.ADMIN: "administer"}
_SHOWN = 64
"""Characters shown of a name; a key may be long."""


def forbidden(
    user: str, broker: Broker, actions: Sequence[Action], extent: Extent, name: str
) -> Forbidden:
    """The error for a user who has none of ``actions`` on ``name``."""
    if not actions:
        return Forbidden(f"user {user!r} may not do this: no permission allows it")
    verbs = " or ".join(_VERBS[action] for action in actions)
    extent = extent if name else Extent.PREFIX
    wanted = Grant(broker.label, actions[0], _pattern(broker, extent, name))
    return Forbidden(
        f"user {user!r} may not {verbs} {_subject(broker, extent, name[:_SHOWN])}: "
        f"it needs a permission such as {wanted}"
    )


def _subject(broker: Broker, extent: Extent, name: str) -> str:
    if extent is Extent.PREFIX:
        things = f"{_THINGS[broker]}s that begin with {name!r}"
        return things if name else f"everything of the {broker.label} broker"
    if extent is Extent.GROUP:
        return f"the {broker.label} group {name!r}"
    thing, at, group = name.partition("@") if broker is Broker.STREAM else (name, "", "")
    return f"{_THINGS[broker]} {thing!r}" + (f" as group {group!r}" if at else "")


def _pattern(broker: Broker, extent: Extent, name: str) -> str:
    """The pattern that a grant would need."""
    match extent:
        case Extent.PREFIX:
            return f"{name[:_SHOWN]}{EVERYTHING}"
        case Extent.GROUP:
            return f"{EVERYTHING}@{name}"
    return name[:_SHOWN]
