"""The framework guides: their files, in an empty folder, pass the guides' own tests.

A file is a block of Python after a line with its path: "`app.py`:" or "`settings.py`, at its end:".
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILE = re.compile(
    r"^`([\w/.]+)`(, at its end)?:\n\n```py(?:thon)?\n(.*?)^```$", re.MULTILINE | re.DOTALL
)


def unpack(page: str, folder: Path, section: str = "") -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    if section:
        text = text.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
        assert text
    for path, appended, content in FILE.findall(text):
        file = folder / path
        before = file.read_text() if appended else ""
        file.write_text(before + content)


def run(folder: Path, *command: str) -> None:
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{folder}"}
    for name in ("DJANGO_SETTINGS_MODULE", "NEXO_URL"):
        env.pop(name, None)
    ended = subprocess.run(
        [sys.executable, "-m", *command],
        check=False, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, timeout=110,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout


@pytest.mark.parametrize(
    ("page", "section"),
    [
        ("quickstart.md", ""),
        ("guide/celery.md", ""),
        ("guide/tracing.md", ""),
        ("guide/web.md", "FastAPI and Starlette"),
        ("guide/web.md", "Flask"),
    ],
)
def test_a_guide_ends_with_a_passing_test(page: str, section: str, tmp_path: Path) -> None:
    unpack(page, tmp_path, section)
    run(tmp_path, "pytest", "-q", "-p", "no:cacheprovider")


def test_the_guide_to_django_ends_with_a_passing_test(tmp_path: Path) -> None:
    run(tmp_path, "django", "startproject", "shop", ".")
    unpack("guide/django.md", tmp_path)
    run(tmp_path, "manage", "makemigrations", "--check", "--dry-run")
    run(tmp_path, "manage", "test", "-v0")
