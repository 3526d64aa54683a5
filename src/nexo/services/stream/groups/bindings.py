"""Which connection each member of an ordered group joined on, and as which user."""

from __future__ import annotations

from nexo.access.login import Identity
from nexo.brokers.stream.groups.ordered_members import not_member
from nexo.errors import Forbidden
from nexo.services.connection import Connection

_ROAMING = -1
"""Stands for the connection of members that belong to none."""


class Bindings:
    """Members by their group and name, and by connection."""

    def __init__(self) -> None:
        self._members: dict[tuple[str, str], tuple[int, Identity | None]] = {}
        self._by_connection: dict[int, set[tuple[str, str]]] = {}

    def bind(self, connection: Connection, group: str, member: str) -> None:
        """The member belongs to this connection."""
        self._put(connection.id, connection.identity, group, member)

    def roam(self, connection: Connection, group: str, member: str) -> None:
        """The member belongs to the connection's user, on any connection."""
        self._put(_ROAMING, connection.identity, group, member)

    def _put(self, number: int, identity: Identity | None, group: str, member: str) -> None:
        self._members[group, member] = number, identity
        self._by_connection.setdefault(number, set()).add((group, member))

    def unbind(self, group: str, member: str) -> bool:
        """Forget a member; False if it was not known."""
        bound = self._members.pop((group, member), None)
        if bound is None:
            return False
        mine = self._by_connection[bound[0]]
        mine.discard((group, member))
        if not mine:
            del self._by_connection[bound[0]]
        return True

    def of(self, connection: Connection) -> list[tuple[str, str]]:
        """The group and name of each member of a connection."""
        return list(self._by_connection.get(connection.id, ()))

    def joined_on(self, connection: Connection, group: str, member: str) -> bool:
        """Whether the member joined on just this connection."""
        bound = self._members.get((group, member))
        return bound is not None and bound[0] == connection.id

    def is_own(self, connection: Connection, group: str, member: str) -> bool:
        """Whether the member joined on this connection, or on another of the same user."""
        bound = self._members.get((group, member))
        return bound is not None and (
            bound[0] == connection.id or _is_same_user(bound[1], connection)
        )

    def check(self, connection: Connection, group: str, member: str) -> None:
        """Raise `NotMember` unless the member may use this connection."""
        bound = self._members.get((group, member))
        if bound is None or bound[0] not in (connection.id, _ROAMING):
            raise not_member(member)

    def takes_over(self, connection: Connection, group: str, member: str) -> bool:
        """Whether a name is in use on another connection; `Forbidden` if by another user."""
        bound = self._members.get((group, member))
        if bound is None or bound[0] == connection.id:
            return False
        if not _is_same_user(bound[1], connection):
            raise Forbidden(f"member {member!r} of group {group!r} belongs to another user")
        return True


def _is_same_user(identity: Identity | None, connection: Connection) -> bool:
    """Whether a connection belongs to this user; without authentication both are None."""
    now = connection.identity
    return identity is None or (now is not None and now.user.name == identity.user.name)
