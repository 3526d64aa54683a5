"""Permission checks: every use case of a service calls `permit`, once per name."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nexo.access.forbidden import forbidden
from nexo.access.grants import Action, Extent
from nexo.access.login import Identity
from nexo.model import Broker

READ, WRITE, ADMIN = (Action.READ,), (Action.WRITE,), (Action.ADMIN,)
ANY = tuple(Action)


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
