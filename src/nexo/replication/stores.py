"""Object stores by URL."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from nexo.errors import ConfigError
from nexo.replication.folder import FolderObjects
from nexo.replication.objects import ObjectStore

SCHEMES = ("s3", "gs", "az", "file")


def open_store(url: str, key_file: Path | None = None) -> ObjectStore:
    """The store at a URL, encrypted if there is a key; `ConfigError` says what is wrong with it."""
    store = _open_plain(url)
    if key_file is None:
        return store
    try:
        from nexo.replication import encrypted  # noqa: PLC0415 - only with a key
    except ImportError:
        raise ConfigError(
            f"replicate_key_file = {key_file}: install cryptography: "
            "pip install 'nexo-broker[replication]'"
        ) from None
    return encrypted.EncryptedObjects(store, encrypted.read_key(key_file))


def _open_plain(url: str) -> ObjectStore:
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        raise ConfigError(f"replicate = {url!r}: write {'://, '.join(SCHEMES)}://")
    if parts.scheme == "file":
        if parts.netloc or not parts.path.startswith("/"):
            raise ConfigError(f"replicate = {url!r}: write file:///folder")
        return FolderObjects(Path(unquote(parts.path)))
    try:
        from nexo.replication import cloud  # noqa: PLC0415 - only clouds need it
    except ImportError:
        raise ConfigError(
            f"replicate = {url!r}: install obstore: pip install 'nexo-broker[replication]'"
        ) from None
    return cloud.open_store(url)
