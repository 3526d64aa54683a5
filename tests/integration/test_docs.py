"""Every Python snippet of the README and the docs runs, page by page, against a fresh server.

The blocks of a page run in order in one namespace, as if they were pasted into one file.
``NEXO_URL`` is the server's. A ``bash`` block of ``nexo`` commands runs too, if the line before the
block is ``<!-- runs -->``; one with ``curl`` runs as a script, against a server of real processes.
"""

import contextlib
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner

from nexo import cli, testing
from nexo.model import Broker
from tests.integration.admin_api import Api

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^(<!-- runs -->\n)?```(python|bash)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One fenced block of a page, and the line its text starts on."""

    language: str
    text: str
    line: int


def blocks(page: Path) -> Iterator[Block]:
    """The blocks of a page that run."""
    text = page.read_text(encoding="utf-8")
    for found in BLOCK.finditer(text):
        if found[2] == "python" or found[1]:
            yield Block(found[2], found[3], text.count("\n", 0, found.start(3)))


RUNNING = [page for page in PAGES if page.exists() and any(blocks(page))]
WITH_SPARK = [page for page in RUNNING if any("pyspark" in block.text for block in blocks(page))]
"""These run in the suite of Spark, tests/spark/test_docs.py."""


def named(page: Path) -> str:
    """A page's name in the list of tests."""
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", [page for page in RUNNING if page not in WITH_SPARK], ids=named)
def test_the_snippets_of_a_page_run(page: Path, tmp_path: Path) -> None:
    run(page, tmp_path)


def run(page: Path, folder: Path) -> None:
    """Run the blocks of a page in an empty folder."""
    if any("curl " in block.text for block in blocks(page) if block.language == "bash"):
        _run_scripts(page, folder)
        return
    with (
        contextlib.chdir(folder),
        testing.server(data_dir=folder / "data") as url,
        pytest.MonkeyPatch.context() as patched,
    ):
        patched.setenv("NEXO_URL", url)
        patched.setitem(sys.modules, "__docs__", ModuleType("__docs__"))  # some look for it
        _run(page, {"__name__": "__docs__"})


def _run_scripts(page: Path, folder: Path) -> None:
    """The scripts of a page about HTTP, which only real processes serve."""
    if shutil.which("curl") is None:
        pytest.skip("no curl: install the Debian package")
    with testing.process(folder / "data") as server:
        Api(server.http_url).wait_ready()
        for block in blocks(page):
            text = block.text.replace("http://127.0.0.1:8080", server.http_url)
            command = ["bash", "-eu", "-c", text]
            done = subprocess.run(command, check=False, capture_output=True, cwd=folder, timeout=30)
            assert done.returncode == 0, f"{page.name}:{block.line}\n{text}\n{done.stderr.decode()}"


def _run(page: Path, namespace: dict[str, Any]) -> None:
    for block in blocks(page):
        if block.language == "python":
            source = "\n" * block.line + block.text  # tracebacks name the page and its line
            exec(compile(source, str(page), "exec"), namespace)
        else:
            _commands(block)


def _commands(block: Block) -> None:
    for line in block.text.splitlines():
        if not line.startswith("nexo "):
            continue
        result = CliRunner().invoke(cli.main, shlex.split(line, comments=True)[1:])
        assert result.exit_code == 0, f"{line}\n{result.output}"


@pytest.mark.parametrize("broker", [broker.label for broker in Broker])
def test_the_readme_shows_every_broker(broker: str) -> None:
    shown = "".join(block.text for block in blocks(ROOT / "README.md"))
    assert f"client.{broker}" in shown


def test_links_between_pages_lead_somewhere() -> None:
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in PAGES
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8"))
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert broken == []


def test_texts_of_a_first_program_stand_in_the_source_as_the_page_shows_them() -> None:
    page = (ROOT / "docs" / "howto" / "troubleshooting.md").read_text(encoding="utf-8")
    rows = page.partition("## A first program\n")[2].partition("\n## ")[0].splitlines()[3:]
    shown = [text for row in rows for text in re.findall(r"`+ ?([^`]+)`", row.split("|")[1])]
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    assert len(shown) > 10
    assert [text for text in shown if text not in source] == []
