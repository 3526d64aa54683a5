"""Objects encrypted with the user's own key, so that the store's operator cannot read them.

AES-256-GCM. An object is ``NEXOENC\\0``, a random nonce of 12 bytes, and the sealed content, which
is bound to the object's key: one object cannot be put in the place of another.
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

MAGIC = b"NEXOENC\0"
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
        self._store.create(key, MAGIC + nonce + self._cipher.encrypt(nonce, data, key.encode()))

    def get(self, key: str) -> bytes | None:
        """An object; `Corrupt` if it was not written with this key, or changed since."""
        data = self._store.get(key)
        if data is None:
            return None
        if not data.startswith(MAGIC):
            raise Corrupt(f"{key} is not encrypted: was it written without replicate_key_file?")
        body = data[len(MAGIC) :]
        try:
            return self._cipher.decrypt(body[:_NONCE_BYTES], body[_NONCE_BYTES:], key.encode())
        except (InvalidTag, ValueError):
            raise Corrupt(f"{key} cannot be decrypted: it is damaged, or the key differs") from None
