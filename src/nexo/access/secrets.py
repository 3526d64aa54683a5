"""Passwords and tokens: generated, hashed and compared; never stored or logged in clear."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets

from nexo.errors import InvalidInput

_SCRYPT_N, _SCRYPT_R, _SCRYPT_P = 2**14, 8, 1
_SALT_BYTES, _HASH_BYTES = 16, 32
_STORED = re.compile(rf"scrypt\$([0-9a-f]{{{2 * _SALT_BYTES}}})\$([0-9a-f]{{{2 * _HASH_BYTES}}})")
TOKEN_PREFIX = "nexo_"
SHORTEST_PASSWORD = 8


def hash_password(password: str) -> str:
    """A salted scrypt hash, with its salt, as one printable text."""
    if len(password) < SHORTEST_PASSWORD:
        raise InvalidInput(f"a password has at least {SHORTEST_PASSWORD} characters")
    salt = secrets.token_bytes(_SALT_BYTES)
    return f"scrypt${salt.hex()}${_scrypt(password, salt).hex()}"


def check_stored(stored: str) -> None:
    """Reject anything that `hash_password` cannot have made."""
    if not _STORED.fullmatch(stored):
        raise InvalidInput("a stored password is not a hash: set it with `nexo user passwd`")


def password_matches(password: str, stored: str) -> bool:
    """Whether ``password`` matches ``stored``. Slow on purpose."""
    found = _STORED.fullmatch(stored)
    if found is None:
        return False
    salt, digest = found.groups()
    return hmac.compare_digest(_scrypt(password, bytes.fromhex(salt)).hex(), digest)


NOBODYS = f"scrypt${'0' * 2 * _SALT_BYTES}${'0' * 2 * _HASH_BYTES}"
"""Compared when the user is unknown, so that timing reveals nothing."""


def _scrypt(password: str, salt: bytes) -> bytes:
    raw = password.encode("utf-8", "surrogatepass")
    return hashlib.scrypt(raw, salt=salt, n=_SCRYPT_N, r=_SCRYPT_R, p=_SCRYPT_P, dklen=_HASH_BYTES)


def new_token() -> str:
    """A token with enough entropy that a plain hash of it is safe."""
    return TOKEN_PREFIX + secrets.token_urlsafe(32)


def hash_token(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
