"""What starts with the server imports no more than it needs: start is a matter of a second."""

from __future__ import annotations

import subprocess
import sys

import pytest

NEEDLESS = {
    "nexo.server.processes.supervisor": ["nexo.services.stream", "nexo.dialects.kafka.session"],
    "nexo.server.processes.worker": ["nexo.services.stream", "nexo.dialects.kafka.session"],
    "nexo": ["nexo.brokers", "nexo.storage", "nexo.server"],
}


@pytest.mark.parametrize("module", NEEDLESS)
def test_only_what_is_needed_is_imported(module: str) -> None:
    """SPEC A1: ready within a second; a broker's process has its own broker only."""
    code = f"import {module}, sys; print(*(name for name in sys.modules if name[:4] == 'nexo'))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = found.stdout.split()
    assert module in loaded
    needless = [name for name in loaded for one in NEEDLESS[module] if name.startswith(one)]
    assert not needless
