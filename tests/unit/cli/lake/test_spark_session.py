"""What a command's Spark says and shows."""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import ExitStack

import pytest

from nexo.cli.lake.spark_session import quiet_start
from nexo.errors import ConfigError

# ruff: noqa: T201 - the channel under test


def talking(text: str) -> list[str]:
    return [sys.executable, "-c", f"import sys; sys.stderr.write({text!r})"]


def fail(text: str) -> None:
    with quiet_start(afterwards=True):
        subprocess.run(talking(text), check=True)
        raise RuntimeError("exited")


def test_what_a_started_process_says_is_held_back(capfd: pytest.CaptureFixture[str]) -> None:
    with quiet_start(afterwards=True):
        subprocess.run(talking("WARN chatter"), check=True)
    print("mine", file=sys.stderr)
    assert capfd.readouterr().err == "mine\n"


@pytest.mark.parametrize(("afterwards", "heard"), [(True, ""), (False, "ERROR later")])
def test_what_it_says_later_is_passed_on_or_not(
    capfd: pytest.CaptureFixture[str], afterwards: bool, heard: str
) -> None:
    late = "import sys; sys.stderr.write('WARN early'); sys.stderr.flush(); print('up', flush=True); sys.stdin.read(); sys.stderr.write('ERROR later')"  # noqa: E501
    with ExitStack() as stack:
        with quiet_start(afterwards=afterwards):
            running = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", late], stdin=subprocess.PIPE, stdout=subprocess.PIPE
                )
            )
            assert running.stdout is not None
            assert running.stdout.readline() == b"up\n"
        running.communicate(b"")
    said = ""
    for _ in range(1_000 if heard else 1):
        said = (said + capfd.readouterr().err).removeprefix("WARN early")  # if it was read late
        if said == heard:
            break
        threading.Event().wait(0.005)
    assert said == heard


def test_the_reason_it_gave_is_told_when_it_cannot_start() -> None:
    said = 'Exception in thread "main" org.x.SparkException: Master must be y'
    with pytest.raises(ConfigError, match=r"^Spark cannot be started: Master must be y$"):
        fail(f"WARN x\n{said}\n\tat org.x.Y(Y.scala:1)\n")


def test_all_it_said_is_shown_when_it_gave_no_reason(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError, match="exited"):
        fail("no such file\n")
    assert capfd.readouterr().err == "no such file\n"
