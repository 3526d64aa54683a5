"""franz-go's own tests of its client, from Go's module proxy."""

from __future__ import annotations

import os
import re
import subprocess

from compat.suite import WORK, Ending, Result, Results, Suite, call

VERSION = "1.22.2"
_PACKAGE = "github.com/twmb/franz-go/pkg/kgo"
_ENDED = re.compile(r"^ *--- (PASS|FAIL|SKIP): (\S+) ", re.MULTILINE)
_ENDINGS = {"PASS": Ending.PASSED, "FAIL": Ending.FAILED, "SKIP": Ending.SKIPPED}
_RECORDS = 20_000
_DEADLINE = "15m"


def run(port: int) -> Results:
    """Fewer records than by default, and one replica."""
    folder = WORK / f"franz-go-{VERSION}"
    program = folder / "kgo.test"
    if not program.exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "go.mod").write_text("module compat\n\ngo 1.24\n")
        for command in (["get", f"github.com/twmb/franz-go@v{VERSION}"], ["get", "-t", _PACKAGE]):
            call(["go", *command], "Go cannot get it", folder)
        call(["go", "test", "-c", "-o", str(program), _PACKAGE], "Go cannot compile it", folder)
    variables = {
        "KGO_SEEDS": f"127.0.0.1:{port}", "KGO_TEST_RF": "1", "KGO_TEST_RECORDS": str(_RECORDS),
    }  # fmt: skip
    sources = call(["go", "list", "-f", "{{.Dir}}", _PACKAGE], "Go has lost it", folder).strip()
    command = [str(program), "-test.v", f"-test.timeout={_DEADLINE}"]
    done = subprocess.run(
        command,
        cwd=sources,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    ended = _ENDED.findall(done.stdout)
    return {name: Result(_ENDINGS[how]) for how, name in ended if "/seed#" not in name}


SUITE = Suite("franz-go", VERSION, run)
