"""SASL with our users: PLAIN, also with tokens, and SCRAM."""

from __future__ import annotations

from nexo.access.login import ClientCredentials
from nexo.access.scram import HASHES
from nexo.dialects.kafka.format.errors import Error
from nexo.dialects.kafka.request import Request
from nexo.errors import InvalidInput, NexoError

PLAIN = "PLAIN"
MECHANISMS = [PLAIN, *HASHES]
TOKEN_USER = "token"
"""A client that logs in as this user sends a token as its password."""


def handshake(request: Request) -> None:
    asked: str | None = request["mechanism"]
    known = asked in MECHANISMS
    if known:
        request.session.mechanism = asked
        request.session.exchange = None
    error = Error.NONE if known else Error.UNSUPPORTED_SASL_MECHANISM
    request.answer({"error": error, "mechanisms": MECHANISMS})


def authenticate(request: Request) -> None:
    """Log in; a client that fails gets the error and is disconnected."""
    mechanism = request.session.mechanism
    if mechanism is None:
        _fail(request, Error.ILLEGAL_SASL_STATE, "agree on a mechanism first: SaslHandshake")
    elif mechanism == PLAIN:
        _plain(request)
    else:
        _scram(request, mechanism)


def _fail(request: Request, error: Error, message: str) -> None:
    request.answer({"error": error, "message": message})
    request.session.finish()


def _plain(request: Request) -> None:
    def done(error: NexoError | None) -> None:
        if error is None:
            request.answer({})
        else:
            _fail(request, Error.SASL_AUTHENTICATION_FAILED, error.message)

    try:
        _, user, password = bytes(request["auth"] or b"").decode().split("\0")
    except ValueError:
        _fail(request, Error.ILLEGAL_SASL_STATE, "not a PLAIN message")
        return
    by_token = user == TOKEN_USER
    given = ClientCredentials(token=password) if by_token else ClientCredentials(user, password)
    request.session.log_in(given, done)


def _scram(request: Request, mechanism: str) -> None:
    """The first message begins an exchange, the second ends it."""
    said, session = bytes(request["auth"] or b""), request.session
    guard = session.state.host.guard
    try:
        if guard is None:
            raise InvalidInput("this server has no users: use PLAIN or no login")
        if session.exchange is None:
            session.exchange, answer = guard.scram_begin(session, mechanism, said)
        else:
            exchange, session.exchange = session.exchange, None
            answer = guard.scram_end(session, exchange, said)
    except NexoError as error:
        _fail(request, Error.SASL_AUTHENTICATION_FAILED, error.message)
    else:
        request.answer({"auth": answer})
