"""Objects encrypted with the user's own key, so that the store's operator cannot read them.

AES-256-GCM. An object is ``NEXOEN2\0``, a random nonce of 12 bytes, the sealed content, which is
bound to the object's key, and the second sum of both (`nexo.storage.mending`): no object can be put
in the place of another, and a flipped bit is put right. Those of earlier versions begin with
``NEXOENC\0`` and have no sum.
"""

from __future__ import annotations

import os
from base64 import b64decode
from binascii import Error
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from nexo.errors import ConfigError, Corrupt
from nexo.replication.objects import ObjectStore
from nexo.storage.mending import SUM_BYTES, mended, second_sum

MAGIC = b"NEXOEN2\0"
_UNSUMMED = b"NEXOENC\0"
KEY_BYTES = 32
_NONCE_BYTES = 12


def read_key(path: Path) -> bytes:
    """The key in a file: 32 bytes in base64."""
    try:
        key = b64decode(path.read_bytes().strip(), validate=True)
    except (OSError, Error) as error:
        raise ConfigError(f"replicate_key_file = {path}: {error}") from None
    if len(key) != KEY_BYTES:
        raise ConfigError(
            f"replicate_key_file = {path}: it has {len(key)} bytes; "
            f"make one with: openssl rand -base64 {KEY_BYTES}"
        )
    return key


class EncryptedObjects:
    """A store whose objects only those with the key can read. Their names are not hidden."""

    def __init__(self, store: ObjectStore, key: bytes) -> None:
        self._store = store
        self._cipher = AESGCM(key)
        self.list = store.list
        self.delete = store.delete

    def create(self, key: str, data: bytes) -> None:
        nonce = os.urandom(_NONCE_BYTES)
        body = nonce + self._cipher.encrypt(nonce, data, key.encode())
        self._store.create(key, MAGIC + body + second_sum(body))

    def get(self, key: str) -> bytes | None:
        """An object; `Corrupt` if it was not written with this key, or changed since."""
        data = self._store.get(key)
        if data is None:
            return None
        found, body, stored = data[: len(MAGIC)], data[len(MAGIC) :], b""
        if found != _UNSUMMED:
            if sum(a == b for a, b in zip(found, MAGIC, strict=False)) < len(MAGIC) - 1:
                raise Corrupt(f"{key} is not encrypted: was it written without replicate_key_file?")
            body, stored = body[:-SUM_BYTES], body[-SUM_BYTES:]
        content = self._opened(key, body)
        if content is None and stored:
            whole = mended(body, stored, lambda body: self._opened(key, body) is not None)
            content = None if whole is None else self._opened(key, whole)
        if content is None:
            raise Corrupt(f"{key} cannot be decrypted: it is damaged, or the key differs")
        return content

    def _opened(self, key: str, body: bytes) -> bytes | None:
        """The content; None if it was not written so, with this key."""
        try:
            return self._cipher.decrypt(body[:_NONCE_BYTES], body[_NONCE_BYTES:], key.encode())
        except (InvalidTag, ValueError):
            return None
