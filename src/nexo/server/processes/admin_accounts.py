"""The users file as the dashboard reads it."""

from __future__ import annotations

from pathlib import Path

from nexo.access.grants import Action, Extent
from nexo.access.login import Logins
from nexo.access.users import User
from nexo.admin.context import Account, Credentials, May
from nexo.errors import Unauthenticated
from nexo.model import Broker


class FileAccounts:
    """Reads the file again on use, if it has changed."""

    def __init__(self, path: Path) -> None:
        self._logins = Logins(path)

    def who(self, credentials: Credentials) -> str | None:
        if credentials.token is None:
            return credentials.user
        self._logins.refresh()
        try:
            return self._logins.by_token(credentials.token).user.name
        except Unauthenticated:
            return None

    def every(self) -> list[Account]:
        return [_account(user) for _, user in sorted(self._known().items())]

    def may(self, user: str, broker: Broker, name: str) -> May:
        found = self._known().get(user)
        if found is None:
            return May(read=False, write=False, admin=False)
        extent = Extent.TOPICS if broker is Broker.PUBSUB else Extent.NAME
        allowed = {
            action.value: found.allows(broker, action, extent, name)
            if name
            else found.may_some(broker, (action,))
            for action in Action
        }
        return May(**allowed)

    def _known(self) -> dict[str, User]:
        self._logins.refresh()
        return self._logins.users


def _account(user: User) -> Account:
    grants = [str(grant) for grant in user.grants]
    return Account(user.name, grants, sorted(user.tokens), user.password is not None)
