"""A catalog that fails before or after it has committed, in every way that a real one does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import BaseModel
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    ServerError,
    ServiceUnavailableError,
)
from requests.exceptions import ConnectionError as Refused
from requests.exceptions import ReadTimeout

from nexo.lake.catalog import Lake
from nexo.lake.folder.catalog import FolderCatalog


class _Reply(BaseModel):
    metadata_location: str


def unparsable() -> Exception:
    """What PyIceberg raises for a reply that is not what it should be."""
    try:
        _Reply.model_validate_json("<html>502 Bad Gateway</html>")
    except ValueError as error:
        return error
    raise AssertionError("it is no reply")


FAULTS: dict[str, Callable[[], Exception]] = {
    "500": lambda: CommitStateUnknownException("500 Internal Server Error"),
    "503": lambda: ServiceUnavailableError("503 Service Unavailable"),
    "5xx": lambda: ServerError("599 something"),
    "timeout": lambda: ReadTimeout("read timed out"),
    "reset": lambda: Refused("connection reset"),
    "unparsable": unparsable,
}
"""Answers that leave open whether the commit happened."""


def conflict() -> Exception:
    """Another commit was first: the one answer that means that nothing happened."""
    return CommitFailedException("another was first")


class MisbehavingCatalog(FolderCatalog):
    """Fails as the plan says: per commit an error, and whether it comes after the commit."""

    plan: list[tuple[Callable[[], Exception], bool]]
    loads: list[Callable[[], Exception]]

    def commit_tables(self, changes: Any) -> Any:
        if not self.plan:
            return super().commit_tables(changes)
        fault, after = self.plan.pop(0)
        if after:
            super().commit_tables(changes)
        raise fault()

    def load_table(self, identifier: Any) -> Any:
        if self.loads:
            raise self.loads.pop(0)()
        return super().load_table(identifier)


class MisbehavingLake(Lake):
    """A lake in a folder with such a catalog."""

    kind: type[MisbehavingCatalog] = MisbehavingCatalog

    def _local(self) -> Any:
        plain = super()._local()
        self.misbehaving = self.kind(plain.name, **plain.properties)
        self.misbehaving.plan, self.misbehaving.loads = [], []
        return self.misbehaving
