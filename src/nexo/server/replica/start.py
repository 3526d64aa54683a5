"""How a broker's process takes the lead of its log, before it opens its files."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from uuid import uuid4

from nexo.config import Settings
from nexo.model import Broker
from nexo.replication.log_objects import Mark
from nexo.replication.objects import BASE, ObjectStore, StoreFailed, next_number
from nexo.replication.state import now_s
from nexo.replication.taking import Taking
from nexo.server.clock import SteadyClock
from nexo.server.replica.marks import (
    Marks,
    RunNotes,
    broker_store,
    lease_path,
    shown_path,
)
from nexo.server.replica.surroundings import Surroundings
from nexo.services.replicating import Replicating
from nexo.storage.disk.files import OsFiles
from nexo.storage.disk.recording import RecordingFiles

RETRY_S = 0.5


def take_lead(
    broker: Broker, settings: Settings, run: Path, around: Surroundings | None = None
) -> Callable[[], Replicating]:
    """Take the lead of a broker's log; raises `Superseded` if it is another's.

    May wait for the store, so it is called in a thread. What it returns is called in the loop.
    """
    around = around or Surroundings(partial(OsFiles, settings.max_open_files))
    notes = RunNotes(run, around.make_files)
    term, handed = notes.term(), notes.handed_mark(broker)
    store = broker_store(around.open_store(settings), broker)
    root, marks = settings.folder(broker), Marks(settings, around.make_files)
    files = around.make_files()
    files.make_folder(root)
    clock = SteadyClock()
    writer = f"{term.server}/{term.term}/{uuid4().hex[:12]}"
    lease = around.open_cells(lease_path(run))
    taking = Taking(
        store,
        files,
        root,
        writer,
        clock.now_ms,
        lambda: time.sleep(RETRY_S),
        lambda: now_s() <= lease.get()[0],
    )
    shipper, base = taking.take(
        handed or marks.get(broker),
        is_sure=handed is not None,
        is_half=marks.is_half(broker),
        claimed=marks.claimed(broker),
    )
    marks.serve(broker, Mark(shipper.number, shipper.epoch, shipper.writer))
    recording = RecordingFiles(files, root)
    recording.boot_id = f"{files.boot_id}/{term.lineage}"
    shown = around.open_cells(shown_path(run, broker))
    since = shipper.number - _newest_base(store)

    def replicating() -> Replicating:
        made = Replicating(
            recording,
            root,
            shipper,
            store,
            settings,
            clock,
            lease,
            shown,
            around.make_files,
            base,
            since,
        )
        made.numbers_after_ms = term.after_ms
        made.bucket.note = partial(marks.serve, broker)
        made.uploaded_again = taking.found_loss
        return made

    return replicating


def _newest_base(store: ObjectStore) -> int:
    """Its number; 0 if the store does not answer, so that a base is made: it does no harm."""
    try:
        return max(0, next_number(store, BASE) - 1)
    except StoreFailed:
        return 0
