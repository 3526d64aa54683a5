"""Permission checks: every use case of a service calls `permit`, once per name.

`Forbidden` errors say what was attempted, and which permission it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nexo.access.grants import EVERYTHING, Action, Extent, Grant
from nexo.access.login import Identity
from nexo.errors import Forbidden
from nexo.model import Broker

READ, WRITE, ADMIN = (Action.READ,), (Action.WRITE,), (Action.ADMIN,)
ANY = tuple(Action)

_THINGS = {
    Broker.STORE: "store key",
    Broker.PUBSUB: "pub/sub topic",
    Broker.QUEUE: "queue",
    Broker.STREAM: "stream",
}
_VERBS = {Action.READ: "read", Action.WRITE: "write", Action.ADMIN: "administer"}
_SHOWN = 64
"""Characters shown of a name; a key may be long."""


def permit(
    identity: Identity | None,
    broker: Broker,
    actions: Sequence[Action],
    name: str,
    extent: Extent = Extent.NAME,
) -> None:
    """Raise `Forbidden` unless one of ``actions`` is allowed on ``name``."""
    if identity is None or may(identity, broker, actions, name, extent):
        return
    raise forbidden(identity.user.name, broker, actions, extent, name)


def may(
    identity: Identity | None,
    broker: Broker,
    actions: Sequence[Action],
    name: str,
    extent: Extent = Extent.NAME,
) -> bool:
    """Whether one of ``actions`` is allowed on ``name``; without authentication, always."""
    return identity is None or any(
        identity.allows(broker, action, extent, name) for action in actions
    )


def visible(
    identity: Identity | None, broker: Broker, actions: Sequence[Action], extent: Extent
) -> Callable[[str], bool]:
    """Which rows of a listing to show to a user who may see only some."""
    if identity is None:
        return bool
    user = identity.user  # not the identity, which would cache every name
    return lambda name: any(user.allows(broker, action, extent, name) for action in actions)


def visible_rows(
    identity: Identity | None, broker: Broker, actions: Sequence[Action], extent: Extent
) -> Callable[[str], bool] | None:
    """Which rows of a listing of everything to show: None for all.

    `Forbidden` for a user who may see none.
    """
    if identity is None or may(identity, broker, actions, "", Extent.PREFIX):
        return None
    if not identity.user.may_some(broker, actions):
        raise forbidden(identity.user.name, broker, actions, Extent.PREFIX, "")
    return visible(identity, broker, actions, extent)


def forbidden(
    user: str, broker: Broker, actions: Sequence[Action], extent: Extent, name: str
) -> Forbidden:
    """The error for a user who has none of ``actions`` on ``name``."""
    if not actions:
        return Forbidden(f"user {user!r} may not do this: no permission allows it")
    verbs = " or ".join(_VERBS[action] for action in actions)
    extent = extent if name else Extent.PREFIX
    wanted = Grant(broker.label, actions[0], _pattern(extent, name))
    return Forbidden(
        f"user {user!r} may not {verbs} {_subject(broker, extent, name[:_SHOWN])}: "
        f"it needs a permission such as {wanted}"
    )


def _subject(broker: Broker, extent: Extent, name: str) -> str:
    if extent is Extent.PREFIX:
        things = f"{_THINGS[broker]}s that begin with {name!r}"
        return things if name else f"everything of the {broker.label} broker"
    if extent in (Extent.GROUP, Extent.OWNED):
        owned = " of another user" if extent is Extent.OWNED else ""
        return f"the {broker.label} group {name!r}{owned}"
    thing, at, group = name.partition("@") if broker is Broker.STREAM else (name, "", "")
    return f"{_THINGS[broker]} {thing!r}" + (f" as group {group!r}" if at else "")


def _pattern(extent: Extent, name: str) -> str:
    """The pattern that a grant would need."""
    match extent:
        case Extent.PREFIX:
            return f"{name[:_SHOWN]}{EVERYTHING}"
        case Extent.GROUP | Extent.OWNED:
            return f"{EVERYTHING}@{name}"
    return name[:_SHOWN]
