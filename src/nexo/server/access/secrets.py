"""Passwords and tokens: made, hashed and compared; never stored or logged in the clear."""

from __future__ import annotations

import hashlib
import hmac
import secrets

_SCRYPT_N, _SCRYPT_R, _SCRYPT_P = 2**14, 8, 1
_SCHEME = "scrypt"
TOKEN_PREFIX = "nexo_"


def hash_password(password: str) -> str:
    """A salted scrypt hash, with its salt, as one printable text."""
    salt = secrets.token_bytes(16)
    return f"{_SCHEME}${salt.hex()}${_scrypt(password, salt).hex()}"


def password_matches(password: str, stored: str) -> bool:
    """Whether ``password`` is the one that ``stored`` was made of."""
    scheme, salt, digest = stored.split("$")
    if scheme != _SCHEME:
        return False
    return hmac.compare_digest(_scrypt(password, bytes.fromhex(salt)).hex(), digest)


def _scrypt(password: str, salt: bytes) -> bytes:
    return hashlib.scrypt(
        password.encode(), salt=salt, n=_SCRYPT_N, r=_SCRYPT_R, p=_SCRYPT_P, dklen=32
    )


def new_token() -> str:
    """A token with more entropy than anyone can guess, so a plain hash of it is safe."""
    return TOKEN_PREFIX + secrets.token_urlsafe(32)


def hash_token(token: str) -> str:
    """What is stored of a token."""
    return hashlib.sha256(token.encode()).hexdigest()
