"""SCRAM (RFC 5802, 7677): a login that proves a password without sending it.

The users file keeps per mechanism what the server needs: the count of iterations, a salt and two
keys, from which the password cannot be read. ``4096$salt$stored key$server key``, in base64.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Mapping
from typing import NamedTuple

from nexo.errors import InvalidInput, Unauthenticated

HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
"""Mechanisms, and the hash of each."""
ITERATIONS = 10_000
_SALT_BYTES = 16
_NONCE_BYTES = 18
_FIRST = re.compile(
    r"(?P<binding>[ny],(?:a=[^,]*)?,)"
    r"(?P<bare>n=(?P<user>[^,]*),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)(?:,.*)?)"
)
_FINAL = re.compile(r"(c=([^,]*),r=([^,]*)(?:,.*)?),p=([^,]*)")
_MAX_CHARS = 4_096


class ScramKeys(NamedTuple):
    """The keys that the server keeps of a password."""

    iterations: int
    salt: bytes
    stored: bytes
    server: bytes

    def __str__(self) -> str:
        parts = (self.salt, self.stored, self.server)
        return "$".join([str(self.iterations), *(b64encode(part).decode() for part in parts)])


def make_keys(password: str) -> dict[str, str]:
    """Derive the keys to keep of a password, for each mechanism."""
    return {
        mechanism: str(_keys(name, password, secrets.token_bytes(_SALT_BYTES)))
        for mechanism, name in HASHES.items()
    }


def _keys(name: str, password: str, salt: bytes) -> ScramKeys:
    raw = password.encode("utf-8", "surrogatepass")
    salted = hashlib.pbkdf2_hmac(name, raw, salt, ITERATIONS)
    client = hmac.digest(salted, b"Client Key", name)
    stored = hashlib.new(name, client).digest()
    return ScramKeys(ITERATIONS, salt, stored, hmac.digest(salted, b"Server Key", name))


def parse_keys(text: str) -> ScramKeys:
    """Stored keys; `InvalidInput` if malformed."""
    try:
        iterations, *parts = text.split("$")
        salt, stored, server = (b64decode(part, validate=True) for part in parts)
        return ScramKeys(int(iterations), salt, stored, server)
    except (ValueError, Base64Error):
        raise InvalidInput("stored SCRAM keys are malformed: set the password again") from None


def check_stored(kept: Mapping[str, str]) -> None:
    """Reject anything that `make_keys` cannot have made."""
    for mechanism, text in kept.items():
        if mechanism not in HASHES:
            raise InvalidInput(f"SCRAM mechanism {mechanism!r} is not known")
        parse_keys(text)


class Exchange:
    """One login: two messages of the client, each with its answer."""

    def __init__(self, mechanism: str, first: bytes) -> None:
        """``first`` is the client's first message; `Unauthenticated` if it is malformed."""
        found = _FIRST.fullmatch(_text(first))
        if found is None:
            raise Unauthenticated("malformed SCRAM message")
        self.user = found["user"].replace("=2C", ",").replace("=3D", "=")
        self._hash = HASHES[mechanism]
        self._binding = b64encode(found["binding"].encode()).decode()
        self._said = found["bare"]
        self._nonce = found["nonce"] + secrets.token_urlsafe(_NONCE_BYTES)
        self._keys: ScramKeys | None = None

    def challenge(self, kept: str | None, pepper: bytes) -> bytes:
        """The server's first message. An unknown user gets one too, always with the same salt."""
        self._keys = parse_keys(kept) if kept is not None else None
        unknown = hmac.digest(pepper, self.user.encode("utf-8", "surrogatepass"), "sha256")
        salt = self._keys.salt if self._keys else unknown[:_SALT_BYTES]
        count = self._keys.iterations if self._keys else ITERATIONS
        challenge = f"r={self._nonce},s={b64encode(salt).decode()},i={count}"
        self._said += f",{challenge}"
        return challenge.encode()

    def verify(self, final: bytes) -> bytes:
        """The server's last message, if the client knows the password; else `Unauthenticated`."""
        found = _FINAL.fullmatch(_text(final))
        if found is None or self._keys is None:
            raise Unauthenticated("the user or password is wrong")
        said = f"{self._said},{found[1]}".encode()
        sound = (found[2], found[3]) == (self._binding, self._nonce)
        if not (sound and self._proves(found[4], said)):
            raise Unauthenticated("the user or password is wrong")
        return b"v=" + b64encode(hmac.digest(self._keys.server, said, self._hash))

    def _proves(self, proof: str, said: bytes) -> bool:
        assert self._keys is not None
        try:
            given = b64decode(proof, validate=True)
        except ValueError:
            return False
        signature = hmac.digest(self._keys.stored, said, self._hash)
        if len(given) != len(signature):
            return False
        client = bytes(a ^ b for a, b in zip(given, signature, strict=True))
        return hmac.compare_digest(hashlib.new(self._hash, client).digest(), self._keys.stored)


def _text(raw: bytes) -> str:
    if len(raw) > _MAX_CHARS:
        raise Unauthenticated("a SCRAM message is too long")
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise Unauthenticated("malformed SCRAM message") from None
