"""SCRAM beyond what real clients send; those are in tests/kafka/test_security.py (SPEC L2)."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest

from nexo.access.scram import Exchange, check_stored, make_keys, parse_keys
from nexo.access.users import parse_users
from nexo.errors import InvalidInput, Unauthenticated

MECHANISM, HASH = "SCRAM-SHA-256", "sha256"
KEPT = make_keys("correct-horse")[MECHANISM]
PEPPER = bytes(32)


def final(challenge: bytes, password: str, bare: str, binding: str = "n,,") -> bytes:
    """What an honest client sends last."""
    fields = dict(part.split("=", 1) for part in challenge.decode().split(","))
    salted = hashlib.pbkdf2_hmac(
        HASH, password.encode(), base64.b64decode(fields["s"]), int(fields["i"])
    )
    client = hmac.digest(salted, b"Client Key", HASH)
    without = f"c={base64.b64encode(binding.encode()).decode()},r={fields['r']}"
    said = f"{bare},{challenge.decode()},{without}".encode()
    signature = hmac.digest(hashlib.new(HASH, client).digest(), said, HASH)
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(client, signature, strict=True)))
    return f"{without},p={proof.decode()}".encode()


def begun(first: str, kept: str | None = KEPT) -> tuple[Exchange, bytes]:
    exchange = Exchange(MECHANISM, first.encode())
    return exchange, exchange.challenge(kept, PEPPER)


@pytest.mark.parametrize(
    ("first", "bare", "binding"),
    [
        ("n,,n=ana,r=abc", "n=ana,r=abc", "n,,"),
        ("y,a=other,n=a=2Cb=3Dc,r=abc,x=1", "n=a=2Cb=3Dc,r=abc,x=1", "y,a=other,"),
    ],
)
def test_the_right_password_is_proved(first: str, bare: str, binding: str) -> None:
    exchange, challenge = begun(first)
    assert exchange.user in ("ana", "a,b=c")
    server = parse_keys(KEPT).server
    answer = exchange.verify(final(challenge, "correct-horse", bare, binding))
    assert answer.startswith(b"v=")
    assert len(base64.b64decode(answer[2:])) == len(server)


@pytest.mark.parametrize("kept", [KEPT, None])
@pytest.mark.parametrize(
    "last", ["", "c=biws,r=é,p=AA==", "c=biws,r=abc,p=!!", "c=biws,r=x,p=" + "A" * 44]
)
def test_anything_else_is_refused(kept: str | None, last: str) -> None:
    with pytest.raises(Unauthenticated):
        begun("n,,n=ana,r=abc", kept)[0].verify(last.encode())
    exchange, challenge = begun("n,,n=ana,r=abc", kept)
    with pytest.raises(Unauthenticated):
        exchange.verify(final(challenge, "wrong-horse", "n=ana,r=abc"))


def test_an_unknown_user_always_gets_the_same_salt() -> None:
    salts = {begun("n,,n=nobody,r=abc", None)[1].split(b",s=")[1] for _ in range(3)}
    assert len(salts) == 1


@pytest.mark.parametrize(
    "first", [b"", b"n,,", b"p=tls,,n=a,r=b", b"n,,n=a", b"\xff", b"x" * 9_000]
)
def test_malformed_first_messages_are_refused(first: bytes) -> None:
    with pytest.raises(Unauthenticated):
        Exchange(MECHANISM, first)


@pytest.mark.parametrize("kept", [{"MD5": KEPT}, {MECHANISM: "4096$x"}, {MECHANISM: "x$YQ==$YQ=="}])
def test_stored_keys_are_checked(kept: dict[str, str]) -> None:
    with pytest.raises(InvalidInput):
        check_stored(kept)


def test_users_from_before_have_no_keys() -> None:
    assert parse_users(b'[{"name": "ana"}]')["ana"].scram == {}
