"""What starts with the server imports no more than it needs: start is a matter of a second."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

NEEDLESS = {
    "nexo.server.processes.supervisor": ["nexo.server.replica"],
    "nexo.server.processes.worker": [
        "nexo.services.stream",
        "nexo.dialects.kafka.session",
        "nexo.replication",
    ],
    "nexo.server.processes.admin_worker": ["pyarrow", "pyiceberg", "fastavro"],
    "nexo": ["nexo.brokers", "nexo.storage", "nexo.server"],
}


@pytest.mark.parametrize("module", NEEDLESS)
def test_only_what_is_needed_is_imported(module: str) -> None:
    """SPEC A1: ready within a second; a broker's process has its own broker only."""
    code = f"import {module}, sys; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = found.stdout.split()
    assert module in loaded
    needless = [name for name in loaded for one in NEEDLESS[module] if name.startswith(one)]
    assert not needless


WAITING = """
import asyncio, socket, sys
from pathlib import Path
from nexo.config import Settings
from nexo.model import Broker
from nexo.server.processes import worker

async def main(folder):
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    settings = Settings(data_dir=folder, replicate=f"file://{folder}/store")
    serving = asyncio.create_task(worker.serve(Broker.STREAM, settings, theirs, folder))
    assert await asyncio.get_running_loop().sock_recv(ours, 100) == worker.WAITING
    print(*sys.modules)
    serving.cancel()

asyncio.run(main(Path(sys.argv[1])))
"""


def test_a_process_that_waits_to_lead_has_loaded_its_broker(tmp_path: Path) -> None:
    """SPEC N1: a takeover does not wait for imports."""
    command = [sys.executable, "-c", WAITING, str(tmp_path)]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    needed = {
        "nexo.services.stream.service",
        "nexo.dialects.nexo.session",
        "nexo.dialects.nexo.stream.requests",
        "nexo.dialects.kafka.session",
    }
    assert needed <= set(found.stdout.split())
