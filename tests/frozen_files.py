"""Freezing for the `Files` of tests: by copies, over the calls of the port alone."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from nexo.replication.bases import walk
from nexo.storage.disk.freezing import PREFIX
from nexo.storage.ports import Files, Frozen


def freeze(files: Files, folder: Path) -> Frozen:
    """Copies of the files below a folder."""
    links = folder / f"{PREFIX}{sum(name.startswith(PREFIX) for name in files.list(folder))}"
    frozen = Frozen([], [], links, lambda: files.remove(links))
    found = list(walk(files, folder))
    files.make_folder(links)
    for name, path in found:
        if path is None:
            frozen.folders.append(name)
            continue
        with closing(files.open(path)) as file:
            data = file.read_at(0, file.size())
        with closing(files.open(frozen.link(len(frozen.files)), create=True)) as copy:
            copy.write_at(0, [data])
        frozen.files.append((name, len(data)))
    return frozen
