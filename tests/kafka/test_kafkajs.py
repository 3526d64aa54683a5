"""kafkajs against the stream broker (SPEC L2): one script that does it all and says what it saw."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.kafka.ledger import node_modules, program, shows

SCRIPT = Path(__file__).parent / "kafkajs.js"


@shows("kafkajs", "produce (gzip, keys, headers, null), groups, transactions, time, administration")
def test_kafkajs_does_what_it_does_with_kafka(bootstrap: str, topic: str) -> None:
    node, modules = program("node"), node_modules("kafkajs")
    found = subprocess.run(
        [node, str(SCRIPT), bootstrap, topic],
        capture_output=True, text=True, timeout=90, check=False, env={"NODE_PATH": str(modules)},
    )  # fmt: skip
    assert found.returncode == 0, found.stderr[-3000:]
    seen = json.loads(found.stdout.splitlines()[-1])
    assert seen["created"] is True
    assert seen["values"] == ["v1", None, "kept"]
    assert seen["headers"] == {"a": "1"}
    assert seen["bounds"] == {"partition": 0, "offset": "4", "high": "4", "low": "0"}
    assert seen["byTime"] == "0"
    assert seen["committed"] == "4"
    assert seen["groups"] is True
