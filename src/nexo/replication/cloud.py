"""Object stores by URL: S3, GCS, Azure, a folder or memory, through ``obstore``.

Credentials come from each cloud's usual variables. A put asks the store to create only if absent;
S3, GCS and Azure all do.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import ObjectStore, from_url

from nexo.replication.objects import AlreadyThere, StoreFailed

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

_DELETED_AT_ONCE = 1_000
_ERRORS = (BaseError, OSError)
_RETRIES: RetryConfig = {"max_retries": 2, "retry_timeout": timedelta(seconds=10)}
"""Few: callers try again themselves, and have to report the failure meanwhile."""


def open_store(url: str) -> CloudObjects:
    """The store at a URL, whose path is the prefix of all keys."""
    options: ClientConfig = {"timeout": "10s", "connect_timeout": "3s"}
    if urlsplit(url).scheme == "s3" and os.environ.get("AWS_ENDPOINT_URL", "").startswith("http:"):
        options["allow_http"] = True  # the user's own store, which that variable names
    return CloudObjects(from_url(url, client_options=options, retry_config=_RETRIES))


class CloudObjects:
    """A `nexo.replication.objects.ObjectStore` in a cloud."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def create(self, key: str, data: bytes) -> None:
        try:
            obstore.put(self._store, key, data, mode="create", use_multipart=False)
        except AlreadyExistsError as error:
            # S3 also refuses a put that meets another one, and that one may fail.
            if not self._has(key):
                raise StoreFailed(f"{key}: refused, but nothing is there: {error}") from error
            raise AlreadyThere(key) from None
        except _ERRORS as error:
            raise StoreFailed(f"{key}: {error}") from error

    def _has(self, key: str) -> bool:
        try:
            obstore.head(self._store, key)
        except FileNotFoundError:
            return False
        except _ERRORS as error:
            raise StoreFailed(f"{key}: {error}") from error
        return True

    def get(self, key: str) -> bytes | None:
        try:
            return bytes(obstore.get(self._store, key).bytes())
        except FileNotFoundError:
            return None
        except _ERRORS as error:
            raise StoreFailed(f"{key}: {error}") from error

    def list(self, prefix: str, after: str = "") -> list[str]:
        try:
            pages = obstore.list(self._store, prefix.rstrip("/"), offset=after or None)
            keys = [found["path"] for page in pages for found in page]
        except _ERRORS as error:
            raise StoreFailed(f"{prefix}: {error}") from error
        return sorted(key for key in keys if key.startswith(prefix) and key > after)

    def delete(self, keys: Iterable[str]) -> None:
        """Remove objects, many in one request where the store can."""
        asked = list(keys)
        for at in range(0, len(asked), _DELETED_AT_ONCE):
            some = asked[at : at + _DELETED_AT_ONCE]
            if not self._deleted(some):
                for key in some:
                    self._deleted([key])

    def _deleted(self, keys: Sequence[str]) -> bool:
        """Whether all of them are gone; False if one was absent, which some stores report."""
        try:
            obstore.delete(self._store, keys)
        except FileNotFoundError:
            return False
        except _ERRORS as error:
            raise StoreFailed(f"{keys[0]}: {error}") from error
        return True
