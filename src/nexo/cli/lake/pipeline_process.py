"""``nexo serve --pipeline``: the pipeline in a process of its own beside the brokers."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import click

from nexo.config import Settings

RESTART_S = 10.0
_STOP_S = 4.0


class PipelineProcess:
    """Runs ``nexo pipeline run`` and starts it again when it ends; ``with`` stops it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._stop = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> PipelineProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._process is not None:
            self._process.terminate()
        if self._thread is not None:
            self._thread.join(_STOP_S)
        if self._process is not None and self._process.poll() is None:
            self._process.kill()

    def start(self, url: str) -> None:
        """Run it for the server at ``url``; ``NEXO_URL`` goes before it, for credentials."""
        command = self._command(os.environ.get("NEXO_URL") or url)
        self._thread = threading.Thread(target=self._watch, args=(command,), daemon=True)
        self._thread.start()

    def _command(self, url: str) -> list[str]:
        settings = self._settings
        lake = ["--lake", str(settings.lake_folder)]
        if settings.lake_catalog:
            lake += ["--catalog", settings.lake_catalog]
        return [sys.executable, "-m", "nexo", "pipeline", "run", "--attached", "--url", url, *lake]

    def _watch(self, command: list[str]) -> None:
        while not self._stop.is_set():
            self._process = subprocess.Popen(command, start_new_session=True)
            code = self._process.wait()
            if not self._stop.wait(RESTART_S):
                click.echo(f"warning: the pipeline ended with {code}; starting it again", err=True)
