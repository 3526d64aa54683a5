"""The users file as the dashboard reads it."""

from __future__ import annotations

import contextlib
import time

from nexo.access import secrets
from nexo.access.grants import Action, Extent
from nexo.access.users import User, UsersFile
from nexo.admin.http.accounts import Account, Credentials, May
from nexo.errors import ConfigError
from nexo.model import Broker

RECHECK_S = 1.0


class FileAccounts:
    """Reads the file again on use, at most once a second."""

    def __init__(self, file: UsersFile) -> None:
        self._file = file
        self._users: dict[str, User] = {}
        self._read_s = -RECHECK_S

    def who(self, credentials: Credentials) -> str | None:
        """The name of the user that these credentials belong to."""
        if credentials.token is None:
            return credentials.user
        hashed = secrets.hash_token(credentials.token)
        owners = (user.name for user in self._known().values() if hashed in user.tokens.values())
        return next(owners, None)

    def every(self) -> list[Account]:
        """Every user, by name."""
        return [_account(user) for _, user in sorted(self._known().items())]

    def may(self, user: str, broker: Broker, name: str) -> May:
        """What a user may do to ``name``, or to any name if it is empty."""
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
        if time.monotonic() - self._read_s >= RECHECK_S:
            with contextlib.suppress(ConfigError):  # the brokers log it, and keep their users
                self._users = self._file.load()
            self._read_s = time.monotonic()
        return self._users


def _account(user: User) -> Account:
    grants = [str(grant) for grant in user.grants]
    return Account(user.name, grants, sorted(user.tokens), user.password is not None)
