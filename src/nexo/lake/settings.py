"""Where the lake is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

NAMESPACE = "nexo"
CATALOG = "catalog.db"
"""The catalog of a lake in a folder."""


@dataclass(frozen=True, slots=True)
class LakeSettings:
    """A catalog and its warehouse.

    Without ``catalog``, both are in ``folder``: a SQLite catalog and plain files. With it,
    they are what PyIceberg's own configuration (``~/.pyiceberg.yaml`` or
    ``PYICEBERG_CATALOG__…``) says about the catalog of that name.
    """

    folder: Path = Path("data/lake")
    catalog: str = ""
    namespace: str = NAMESPACE

    @property
    def there(self) -> bool:
        """Whether there is a catalog; one that PyIceberg knows is taken to be."""
        return bool(self.catalog) or (self.folder / CATALOG).exists()
