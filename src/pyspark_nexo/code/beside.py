"""Runs users' code beside ingest: starts its process, and starts it again if it ends."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING

import msgspec

from pyspark_nexo.code.child import CodePlan
from pyspark_nexo.code.definitions import CodeError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RESTART_S = 2.0
LONGEST_PAUSE_S = 60.0
END_S = 30.0
"""How long the process may take to end its queries."""


def shared(plan: CodePlan, spark: SparkSession) -> CodePlan:
    """A plan that uses the JVM of a session."""
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    found = gateway.gateway_parameters
    return msgspec.structs.replace(
        plan, gateway_port=int(found.port), gateway_secret=str(found.auth_token)
    )


@dataclass(slots=True)
class UserCode:
    """Runs the process of a plan during a ``with`` block, again and again if it ends."""

    plan: CodePlan
    note: Callable[[str], None]
    rows: int = 0
    error: str = ""
    """Why the last process failed."""
    _stop: threading.Event = field(default_factory=threading.Event)
    _process: subprocess.Popen[str] | None = None
    _thread: threading.Thread | None = None

    def __enter__(self) -> UserCode:
        self._thread = threading.Thread(target=self._watch, name="nexo-code", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._end()
        if self._thread is not None:
            self._thread.join(END_S)

    def _end(self) -> None:
        """Have the process end, at last by force."""
        process = self._process
        if process is None or process.stdin is None:
            return
        process.stdin.close()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()

    def once(self) -> int:
        """Run the process once; returns the rows that it wrote. Raises what it says."""
        code = self._run()
        if code or self.error:
            raise CodeError(self.error or f"the process of users' code ended with {code}")
        return self.rows

    def _watch(self) -> None:
        failures = 0
        while not self._stop.is_set():
            known = self.error
            self.error = ""
            code = self._run()
            if self._stop.is_set():
                return
            failures += 1
            reason = self.error or f"its process ended with {code}"
            if reason != known:
                self.note(f"users' code will be started again: {reason}")
            self.error = reason
            self._stop.wait(min(RESTART_S * 2.0 ** (failures - 1), LONGEST_PAUSE_S))

    def _run(self) -> int:
        command = [sys.executable, "-m", "pyspark_nexo.code.child"]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            self._process = process
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                process.stdin.write(msgspec.json.encode(self.plan).decode() + "\n")
                process.stdin.flush()
                self._listen(process.stdout)
            except (BrokenPipeError, ValueError):  # it ended, or is to end
                pass
            return process.wait()

    def _listen(self, lines: IO[str]) -> None:
        for line in lines:
            said = json.loads(line)
            if "note" in said:
                self.note(said["note"])
            elif "refreshed" in said:  # a process that is started again goes on with the others
                left = tuple(name for name in self.plan.full if name != said["refreshed"])
                self.plan = msgspec.structs.replace(self.plan, full=left)
                kept = f"; the old one is {said['aside']} for a week" if said["aside"] else ""
                self.note(f"{said['refreshed']} was made anew{kept}")
            elif "rows" in said:
                self.rows = said["rows"]
            elif "error" in said:
                self.error = said["error"]
