"""Status and connections are for those who may see all of a broker."""

from __future__ import annotations

from typing import Any

import pytest

from nexo.access.grants import parse_grant
from nexo.access.login import Identity
from nexo.access.users import User
from nexo.errors import Forbidden
from nexo.model import Broker
from nexo.services import connection
from nexo.services.connection import HostOverview


class UserConnection:
    """A connection of a user with one permission."""

    name = "test"
    closed = False
    congested = False
    resends = False

    def __init__(self, number: int, grant: str = "queue:read:*") -> None:
        self.id = number
        self.identity: Identity | None = Identity(User("ana", grants=(parse_grant(grant),)), None)

    def kick(self, reason: str) -> None: ...

    def status(self) -> dict[str, Any]:
        return {"id": self.id}


OPEN = [UserConnection(number) for number in (3, 1, 2)]


@pytest.fixture
def shown() -> HostOverview:
    return HostOverview(lambda broker: {"broker": broker.label}, OPEN)


@pytest.mark.parametrize("grant", ["queue:read:*", "queue:admin:*"])
def test_a_user_of_the_broker_sees_both(
    shown: HostOverview, grant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = UserConnection(9, grant)
    assert shown.status(user, Broker.QUEUE) == {"broker": "queue"}
    assert [one["id"] for one in shown.connections(user, Broker.QUEUE)] == [3, 2, 1]
    monkeypatch.setattr(connection, "SHOWN", 2)
    assert [one["id"] for one in shown.connections(user, Broker.QUEUE)] == [3, 2]


@pytest.mark.parametrize("grant", ["queue:write:*", "queue:read:mine-*", "store:admin:*"])
def test_others_see_neither(shown: HostOverview, grant: str) -> None:
    user = UserConnection(9, grant)
    with pytest.raises(Forbidden):
        shown.status(user, Broker.QUEUE)
    with pytest.raises(Forbidden):
        shown.connections(user, Broker.QUEUE)
