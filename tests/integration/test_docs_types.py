"""mypy strict and pyright accept the Python of the docs and the examples (finding U4)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools import doc_types

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(not os.environ.get("SOAK"), reason="takes 20 s: make soak")
@pytest.mark.timeout(400)
def test_pyright_accepts_the_docs() -> None:
    if shutil.which("node") is None or not (doc_types.NODE / "pyright").exists():
        pytest.skip("no pyright: make setup installs it")
    command = [sys.executable, "tools/doc_types.py", "pyright"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_every_page_with_python_is_checked() -> None:
    """``make check`` runs mypy over them, and over a program with a misspelt name (SPEC K1)."""
    names = {path.stem for path in doc_types.extract()}
    assert {"readme", "docs_quickstart", "docs_guide_stream", "fastapi_models"} <= names
    assert "user_program" in names
