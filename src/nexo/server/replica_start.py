"""How a broker's process takes the lead of its log, before it opens its files."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import msgspec

from nexo.config import Settings
from nexo.model import Broker
from nexo.replication import frozen
from nexo.replication.cells import Cells
from nexo.replication.objects import ObjectsBelow, ObjectStore
from nexo.replication.replay import Mark
from nexo.replication.stores import open_store
from nexo.replication.taking import Taking
from nexo.server.clock import SteadyClock
from nexo.services.replicating import Replicating, ShippingTerms
from nexo.storage.disk.files import OsFiles, boot_id
from nexo.storage.disk.recording import RecordingFiles
from nexo.storage.sealed import write

FOLDER = "replica"
RETRY_S = 0.5
LOST = 75
"""Exit status of a broker's process that lost the lead."""
AGAIN = 76
"""Exit status of one that wants to be started again."""


def broker_store(store: ObjectStore, broker: Broker) -> ObjectStore:
    """Where a broker's log is."""
    return ObjectsBelow(store, f"{broker.label}/")


def lease_path(run: Path) -> Path:
    """The cells that say until when the lease lasts."""
    return run / "lease.cells"


def shown_path(run: Path, broker: Broker) -> Path:
    """The cells that say how far a broker's log is."""
    return run / f"{broker.label}.cells"


def term_path(run: Path) -> Path:
    """Says which server leads in which term."""
    return run / "term.json"


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
        """Names the line of files that this folder goes on with; a new one after a takeover."""
        return self._text("lineage", uuid4().hex[:12])

    @property
    def has_led(self) -> bool:
        """Whether the files were written here since they were last made from the store."""
        return (self._folder / "lineage").exists()

    def end_lineage(self) -> None:
        """The files come from the store."""
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
        """A broker's folder is what the log gives."""
        write(self._files, self._path(broker), msgspec.json.encode(mark))

    def remove(self, broker: Broker) -> None:
        """A broker's folder is about to change."""
        self._files.remove(self._path(broker))
        self._files.sync_names(self._folder)

    def _path(self, broker: Broker) -> Path:
        return self._folder / f"{broker.label}.mark"


def take_lead(broker: Broker, settings: Settings, run: Path) -> Callable[[], Replicating]:
    """Take the lead of a broker's log; raises `Superseded` if it is another's.

    May wait for the store, so it is called in a thread. What it returns is called in the loop.
    """
    term = json.loads(term_path(run).read_text())
    store = broker_store(open_store(settings.replicate), broker)
    root, marks, files = settings.folder(broker), Marks(settings), OsFiles(settings.max_open_files)
    files.make_folder(root)
    frozen.forget(root)
    clock = SteadyClock()
    writer = f"{term['server']}/{term['term']}/{uuid4().hex[:12]}"
    taking = Taking(store, files, root, writer, clock.now_ms, lambda: time.sleep(RETRY_S))
    shipper, base = taking.take(marks.get(broker))
    marks.remove(broker)
    recording = RecordingFiles(files, root)
    recording.lifetime = f"{boot_id()}/{term['lineage']}"
    terms = ShippingTerms(
        settings.replicate_ms, settings.replicate_wait_ms, settings.replicate_keep_ms
    )
    lease, shown = Cells(lease_path(run)), Cells(shown_path(run, broker))
    return lambda: Replicating(recording, root, shipper, store, terms, clock, lease, shown, base)
