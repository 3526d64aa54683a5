"""SASL PLAIN with our users and tokens."""

from __future__ import annotations

from nexo.dialects.kafka.errors import Error
from nexo.dialects.kafka.request import Request
from nexo.errors import NexoError
from nexo.protocol.hello import Hello

MECHANISMS = ["PLAIN"]
TOKEN_USER = "token"
"""A client that logs in as this user sends a token as its password."""


def handshake(request: Request) -> None:
    """Agree on a mechanism."""
    known = request["mechanism"] in MECHANISMS
    error = Error.NONE if known else Error.UNSUPPORTED_SASL_MECHANISM
    request.answer({"error": error, "mechanisms": MECHANISMS})


def authenticate(request: Request) -> None:
    """Log in; a client that fails is told so and has its connection closed."""
    guard, session = request.session.shared.host.guard, request.session

    def done(error: NexoError | None) -> None:
        if error is None:
            request.answer({})
        else:
            failed = Error.SASL_AUTHENTICATION_FAILED
            request.answer({"error": failed, "message": error.message})
            session.finish()

    if guard is None:
        done(None)
        return
    try:
        _, user, password = bytes(request["auth"] or b"").decode().split("\0")
    except ValueError:
        request.answer({"error": Error.ILLEGAL_SASL_STATE, "message": "not a PLAIN message"})
        session.finish()
        return
    if user == TOKEN_USER:
        guard.login(session, Hello(token=password), done)
    else:
        guard.login(session, Hello(user=user, password=password), done)
