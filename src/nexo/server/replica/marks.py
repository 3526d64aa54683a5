"""What a data folder and a run of the server remember of replication."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import msgspec

from nexo.config import Settings
from nexo.lake.settings import LakeSettings
from nexo.model import Broker
from nexo.replication.log_objects import Mark
from nexo.replication.objects import ObjectsBelow, ObjectStore
from nexo.server.processes import folder_format
from nexo.storage.disk.files import OsFiles
from nexo.storage.sealed import write

FOLDER = "replica"


def broker_store(store: ObjectStore, broker: Broker) -> ObjectStore:
    """Where a broker's log is."""
    return ObjectsBelow(store, f"{broker.label}/")


def small_paths(settings: Settings) -> dict[str, Path]:
    """Files that are shipped whole: users, the lake's catalog, and the folder's format."""
    paths = {
        "users": settings.users_path,
        "format": settings.data_dir.absolute() / folder_format.FILE,
    }
    catalog = LakeSettings(settings.lake_folder, settings.lake_catalog).catalog_file()
    if catalog is not None:
        paths["catalog"] = catalog
    return paths


def lease_path(run: Path) -> Path:
    """The cells that say until when the lease lasts."""
    return run / "lease.cells"


def shown_path(run: Path, broker: Broker) -> Path:
    """The cells that say how far a broker's log is."""
    return run / f"{broker.label}.cells"


def term_path(run: Path) -> Path:
    """Says which server leads in which term."""
    return run / "term.json"


def hand_mark(run: Path, broker: Broker, mark: Mark) -> None:
    """Give a broker's process the mark of its folder, once and for this run of the server only."""
    _handed_path(run, broker).write_bytes(msgspec.json.encode(mark))


def handed_mark(run: Path, broker: Broker) -> Mark | None:
    """The mark from `hand_mark`, which is then removed."""
    path = _handed_path(run, broker)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    path.unlink()
    return msgspec.json.decode(data, type=Mark)


def _handed_path(run: Path, broker: Broker) -> Path:
    return run / f"{broker.label}.mark"


class Marks:
    """What a data folder remembers of replication."""

    def __init__(self, settings: Settings) -> None:
        self._folder = settings.data_dir.absolute() / FOLDER
        self._files = OsFiles()
        self._files.make_folder(self._folder)

    def server(self) -> str:
        """Names this data folder; made once."""
        return self._text("server", uuid4().hex[:12])

    def lineage(self) -> str:
        """Names the history of these files; new after a takeover."""
        return self._text("lineage", uuid4().hex[:12])

    @property
    def has_led(self) -> bool:
        """Whether a broker wrote to the files since they were last loaded from the store."""
        return (self._folder / "lineage").exists()

    def end_lineage(self) -> None:
        """Note that the files were loaded from the store."""
        self._files.remove(self._folder / "lineage")

    def _text(self, name: str, new: str) -> str:
        path = self._folder / name
        if not path.exists():
            write(self._files, path, new.encode())
        return path.read_text()

    def get(self, broker: Broker) -> Mark | None:
        """Where in the log a broker's folder is, if that is known."""
        try:
            return msgspec.json.decode(self._path(broker).read_bytes(), type=Mark)
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def put(self, broker: Broker, mark: Mark) -> None:
        """Note that a broker's folder equals the log up to a mark."""
        write(self._files, self._path(broker), msgspec.json.encode(mark))

    def remove(self, broker: Broker) -> None:
        """Forget the mark: call before a broker's folder changes."""
        self._files.remove(self._path(broker))
        self._files.sync_names(self._folder)

    def _path(self, broker: Broker) -> Path:
        return self._folder / f"{broker.label}.mark"
