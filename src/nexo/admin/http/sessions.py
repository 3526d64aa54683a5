"""Logins. Each user has a client of their own, so the brokers decide what each of them may do.

A browser has a cookie; a script sends a token as ``Authorization: Bearer``. While
authentication is off, everyone shares this process's own client.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from dataclasses import dataclass, field, replace

import msgspec
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from nexo import limits
from nexo.admin.context import ApiContext, Credentials, LoginSeen
from nexo.admin.http.replies import TOKEN, as_json
from nexo.client._async.client import AsyncClient
from nexo.errors import (
    ConnectionLost,
    Forbidden,
    InvalidInput,
    RequestTimeout,
    Unauthenticated,
    Unavailable,
)
from nexo.model import Broker
from nexo.protocol.ops import Op

COOKIE = "nexo"
IDLE_S = 12 * 3600
RECHECK_S = 5.0
PATIENCE_S = 2.0
_ID_CHARS = 16
"""The shown length of the hash of a login's secret."""


class Login(msgspec.Struct, forbid_unknown_fields=True):
    """A user and password, as ``nexo user`` keeps them."""

    user: str
    password: str


class SessionView(msgspec.Struct):
    """Who the caller is."""

    required: bool
    """Whether this server wants a login."""
    user: str | None


@dataclass(slots=True)
class _Session:
    who: Credentials
    client: AsyncClient
    user: str | None
    used_s: float
    since_ms: int
    watchable: frozenset[Broker] = frozenset()
    checked_s: float = -RECHECK_S
    over: bool = False
    _named: dict[Broker, tuple[float, frozenset[str]]] = field(default_factory=dict)

    async def watched(self) -> frozenset[Broker]:
        """The brokers whose status the user may read, as those say themselves."""
        if self.over:
            raise Unauthenticated("log in first")
        if time.monotonic() - self.checked_s >= RECHECK_S:
            answers = await asyncio.gather(*(self._may_watch(broker) for broker in Broker))
            self.watchable = frozenset(broker for broker in answers if broker is not None)
            self.checked_s = time.monotonic()
        return self.watchable

    async def names(self, broker: Broker) -> frozenset[str]:
        """The queues or streams that the user may see, as the broker says itself."""
        checked_s, found = self._named.get(broker, (-RECHECK_S, frozenset()))
        if time.monotonic() - checked_s >= RECHECK_S:
            try:
                found = frozenset(await self._list(broker))
            except Forbidden:
                found = frozenset()
            except (ConnectionLost, RequestTimeout, Unavailable):
                return found  # the broker does not answer now
            self._named[broker] = time.monotonic(), found
        return found

    async def _list(self, broker: Broker) -> list[str]:
        return await (self.client.queues() if broker is Broker.QUEUE else self.client.streams())

    async def end(self) -> None:
        """End it and the live views that use it."""
        self.over = True
        await self.client.close()

    async def _may_watch(self, broker: Broker) -> Broker | None:
        try:
            asked = bytes((broker,))
            await self.client.link(broker).call(Op.STATUS, asked, timeout_s=PATIENCE_S)
        except Forbidden:
            return None
        except (ConnectionLost, RequestTimeout, Unavailable):
            return broker if broker in self.watchable else None  # the broker does not answer now
        return broker


class Sessions:
    """Everyone who is logged in, by the hash of their secret."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._open: dict[str, _Session] = {}

    @property
    def required(self) -> bool:
        """Whether callers must log in."""
        return self._context.place.settings.auth

    async def context(self, request: HTTPConnection, *, live: bool = False) -> ApiContext:
        """The context as the caller may use it; `Unauthenticated` if they must log in first.

        ``live``: the browser can send no header, so a token may be a parameter.
        """
        if not self.required:
            return self._context
        given = request.query_params.get(TOKEN) if live else None
        session = await self._by_token(request, given) or self._found(request)
        if session is None:
            raise Unauthenticated("log in first")
        session.used_s = time.monotonic()
        return replace(
            self._context,
            client=session.client,
            who=session.who,
            user=session.user,
            logins=self,
            watchable=session.watched,
            names=session.names,
        )

    def view(self, request: HTTPConnection) -> SessionView:
        """Who the caller is."""
        session = self._found(request) if self.required else None
        return SessionView(self.required, session.user if session else None)

    def seen(self) -> list[LoginSeen]:
        """Every login, the newest first."""
        now_s, now_ms = time.monotonic(), int(time.time() * 1_000)
        rows = [
            LoginSeen(
                key[:_ID_CHARS], one.user or "", "token" if one.who.token else "password",
                one.who.caller, one.since_ms, now_ms - int((now_s - one.used_s) * 1_000),
            )
            for key, one in self._open.items()
        ]  # fmt: skip
        return sorted(rows, key=lambda row: -row.since_ms)

    async def end(self, user: str, login: str) -> int:
        """End one login of a user, or all without its id; says how many."""
        ending = [
            key for key, one in self._open.items() if one.user == user and key.startswith(login)
        ]
        for key in ending:
            await self._open.pop(key).end()
        return len(ending)

    def _found(self, request: HTTPConnection) -> _Session | None:
        cookie = request.cookies.get(COOKIE)
        return self._open.get(_hash(cookie)) if cookie else None

    async def _by_token(self, request: HTTPConnection, given: str | None) -> _Session | None:
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not token:
            token = given or ""
        if not token:
            return None
        known = self._open.get(_hash(token))
        return known or await self._enter(request, Credentials(token=token), token)

    async def _enter(self, request: HTTPConnection, who: Credentials, secret: str) -> _Session:
        who = replace(who, caller=request.client.host if request.client else None)
        await self._forget_idle(who)
        client = self._context.place.client(who)
        try:
            await client.link(Broker.STORE).call(Op.ECHO, b"")
        except BaseException:
            await client.close()
            raise
        accounts, now_ms = self._context.place.accounts, int(time.time() * 1_000)
        user = accounts.who(who) if accounts else None
        session = _Session(who, client, user, time.monotonic(), now_ms)
        self._open[_hash(secret)] = session
        return session

    async def _forget_idle(self, who: Credentials) -> None:
        """End idle logins; make room for ``who``, by ending their own oldest ones first."""
        by_age = sorted(self._open.items(), key=lambda item: item[1].used_s)
        idle_s = time.monotonic() - IDLE_S
        ending = [key for key, session in by_age if session.used_s < idle_s]
        of_user = [key for key, one in by_age if who.user and one.user == who.user]
        ending += of_user[: max(0, len(of_user) - limits.HTTP_LOGINS_PER_USER + 1)]
        ending += [key for key, _ in by_age][: max(0, len(by_age) - limits.HTTP_LOGINS + 1)]
        for key in dict.fromkeys(ending):
            await self._open.pop(key).end()

    async def log_in(self, request: Request, body: bytes) -> Response:
        """Check a password and give the browser a cookie."""
        try:
            given = msgspec.json.decode(body, type=Login)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidInput(str(error)) from None
        secret = secrets.token_urlsafe(32)
        who = Credentials(given.user, given.password)
        session = await self._enter(request, who, secret)
        reply = as_json(SessionView(self.required, session.user))
        reply.set_cookie(COOKIE, secret, httponly=True, samesite="strict", secure=_secure(request))
        return reply

    async def log_out(self, request: Request) -> Response:
        """End the login of the browser."""
        session = self._open.pop(_hash(request.cookies.get(COOKIE, "")), None)
        if session is not None:
            await session.end()
        reply = as_json(SessionView(self.required, None))
        reply.delete_cookie(COOKIE, httponly=True, samesite="strict")
        return reply

    async def close(self) -> None:
        """Log everyone out."""
        for session in self._open.values():
            await session.end()
        self._open.clear()


def _secure(request: Request) -> bool:
    """Whether the browser speaks TLS, to us or to a proxy before us."""
    return "https" in (request.url.scheme, request.headers.get("x-forwarded-proto"))


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()
