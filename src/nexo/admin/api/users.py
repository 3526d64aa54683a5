"""Users: who the caller is, what they may do, who is logged in here."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from nexo.admin.context import Account, ApiContext, LoginSeen, May
from nexo.admin.http.routes import ApiRoutes, ChangeCount, Nothing
from nexo.errors import Forbidden, NotFound
from nexo.model import Broker

routes = ApiRoutes("Users")


class MayAsk(msgspec.Struct, forbid_unknown_fields=True):
    """A thing of a broker."""

    broker: Literal["store", "pubsub", "queue", "stream"]
    name: Annotated[str, msgspec.Meta(max_length=65_536)] = ""
    """A key, queue, stream or topic; left out, any of the broker."""


class UserRow(msgspec.Struct):
    """A user, with the logins to this dashboard."""

    account: Account
    logins: list[LoginSeen]


class UserPage(msgspec.Struct):
    """The caller alone; everyone if the caller may administer everything."""

    required: bool
    """Whether this server wants logins at all."""
    me: str | None
    users: list[UserRow]


class EndAsk(msgspec.Struct, forbid_unknown_fields=True):
    """Which login to end."""

    user: Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
    login: Annotated[str, msgspec.Meta(max_length=64)] = ""
    """Its id; left out, all of the user."""


@routes.get("/may")
async def may(context: ApiContext, ask: MayAsk) -> May:
    """The caller's permissions on a thing; the brokers decide again about every request."""
    accounts = context.place.accounts
    if context.user is None or accounts is None:
        return May()
    return accounts.may(context.user, Broker[ask.broker.upper()], ask.name)


@routes.get("/users")
async def users(context: ApiContext, ask: Nothing) -> UserPage:
    """Users with their permissions, tokens and logins to the dashboard."""
    accounts = context.place.accounts
    logins = context.logins.seen() if context.logins else []
    rows = [
        UserRow(account, [login for login in logins if login.user == account.name])
        for account in (accounts.every() if accounts else ())
        if account.name == context.user or governs(context)
    ]
    return UserPage(context.place.settings.auth, context.user, rows)


@routes.post("/users/logout")
async def end_logins(context: ApiContext, ask: EndAsk) -> ChangeCount:
    """End logins to the dashboard: one's own, or anybody's with the permission *:admin:*."""
    if ask.user != context.user and not governs(context):
        raise Forbidden("ending another user's logins takes the permission *:admin:*")
    ended = await context.logins.end(ask.user, ask.login) if context.logins else 0
    if not ended:
        raise NotFound(f"user {ask.user!r} has no such login")
    return ChangeCount(ended)


def governs(context: ApiContext) -> bool:
    """Whether the caller may administer everything."""
    accounts = context.place.accounts
    if context.user is None or accounts is None:
        return not context.place.settings.auth
    mine = next((one for one in accounts.every() if one.name == context.user), None)
    return mine is not None and any(grant in ("*:*:*", "*:admin:*") for grant in mine.grants)
