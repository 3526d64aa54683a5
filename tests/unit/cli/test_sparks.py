"""What a command's Spark says and shows."""

from __future__ import annotations

import subprocess
import sys

import pytest

from nexo.cli.sparks import quiet_start

TALK = [sys.executable, "-c", "import sys; print('WARN chatter', file=sys.stderr)"]


def test_what_a_started_process_says_is_held_back(capfd: pytest.CaptureFixture[str]) -> None:
    with quiet_start():
        subprocess.run(TALK, check=True)
    print("mine", file=sys.stderr)  # noqa: T201 - the channel under test
    assert capfd.readouterr().err == "mine\n"


def test_what_it_said_is_shown_when_it_cannot_start(capfd: pytest.CaptureFixture[str]) -> None:
    def start() -> None:
        with quiet_start():
            subprocess.run(TALK, check=True)
            raise RuntimeError("no Java")

    with pytest.raises(RuntimeError, match="no Java"):
        start()
    assert capfd.readouterr().err == "WARN chatter\n"
