"""Why a connection cannot be opened, what to do about it, and whether to try again."""

from __future__ import annotations

from random import SystemRandom
from typing import TYPE_CHECKING, TypeGuard

from nexo.client.address import Address
from nexo.errors import (
    ConnectionLost,
    InvalidInput,
    LockedOut,
    NexoError,
    ProtocolError,
    Unauthenticated,
)

if TYPE_CHECKING:
    import ssl

_NOT_TLS = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"})


class Reached:
    """Whether a client has ever reached its server, by any of its connections."""

    __slots__ = ("yes",)

    def __init__(self) -> None:
        self.yes = False


def reason(error: Exception) -> str:
    """The reason of a failed connection; for mistakes about TLS, also what to do."""
    import ssl  # noqa: PLC0415 - slow to import, and most connections do without

    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the server's certificate is not trusted ({error.verify_message}){_hint(error)}"
    if isinstance(error, ssl.SSLError) and error.reason in _NOT_TLS:
        return "the answer is not TLS: if the server does not speak it, write nexo://"
    return str(error) or "no answer in time"


def is_final(error: Exception | None, *, was_up: bool) -> TypeGuard[NexoError]:
    """Whether trying again is useless.

    A client that ``was_up`` and is now locked out, by failed logins of others at its address,
    only has to wait; so has one whose server's port another program has meanwhile.
    """
    if isinstance(error, LockedOut | ProtocolError) and was_up:
        return False
    return isinstance(error, Unauthenticated | InvalidInput | ProtocolError)


def _hint(error: ssl.SSLCertVerificationError) -> str:
    named = "mismatch" in error.verify_message  # host name or address
    return "" if named else ": name the file of its CA with ca_file="


def no_welcome(address: Address, error: ConnectionLost) -> ConnectionLost:
    """The error for a connection that was lost before HELLO was answered."""
    wanted = "a certificate of yours (cert_file=)" if address.tls else "TLS (nexos://)"
    return ConnectionLost(
        f"{error.message}; if that does not pass, check that {address.port} is the TCP port "
        f"(7654 by default), not the dashboard's, and that the server does not want {wanted}"
    )


_FIRST_S, _LONGEST_S, _LONGEST_OF_SEVERAL_S = 0.05, 2.0, 0.5

RESTART_S = 0.05
"""The pause before a request that a stopping server refused or lost is sent again."""

LATE_S = 30.0
"""How much longer than a long poll waits its reply may take."""

QUICK_S = 0.25
"""Who needs longer for a batch asks for the next one when it is done: others may have it meanwhile,
and asking takes a thousandth of that time.
"""

_jitter = SystemRandom()
"""A generator of our own, because programs seed the module's generator for themselves."""


def pause_s(failures: int, places: int = 1) -> float:
    """Seconds: doubling, and spread at random so that many clients do not return together.

    Of several servers one may soon lead, so pauses are shorter.
    """
    most_s = _LONGEST_S if places == 1 else _LONGEST_OF_SEVERAL_S
    longest_s = min(most_s, _FIRST_S * 2.0 ** min(failures, 10))
    return longest_s * _jitter.uniform(0.5, 1.0)
