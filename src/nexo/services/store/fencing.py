"""Keeps on disk until when fencing numbers may have been issued.

A number is the time, so one that was issued before a restart could come again after it if the
clock was set back meanwhile. The mark is the name of a snapshot file (`<ms>.snap`): a damaged
one still says it.
"""

from __future__ import annotations

from pathlib import Path

from nexo.brokers.store.coordination import FencingNumbers
from nexo.storage.ports import Files
from nexo.storage.snapshot import Snapshots

FOLDER = "fencing"


def numbers(files: Files, folder: Path, after_ms: int) -> FencingNumbers:
    """Numbers after ``after_ms`` and after all that a server on this folder has issued."""
    marks = Snapshots(files, folder / FOLDER)
    after_ms = max(after_ms, *marks.offsets(), 0)
    return FencingNumbers(after_ms, lambda until_ms: marks.save(until_ms, b""))
