"""The documentation site builds without a warning, and no link on it is dead (SPEC O7)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote

import pytest
import yaml

from tools.site_hooks import complete, listed, resolved

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
COMPOSE = ROOT / "ops" / "compose.yaml"
NAV = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
needs_mkdocs = pytest.mark.skipif(find_spec("mkdocs") is None, reason="needs mkdocs")


def test_the_navigation_lists_pages_that_exist_each_once() -> None:
    pages = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    pages |= {"changelog.md"}
    named = listed(NAV)
    assert len(named) == len(set(named))
    assert set(named) <= pages


def test_a_page_that_is_not_listed_stands_at_the_end_of_its_section(tmp_path: Path) -> None:
    for name in ("index.md", "guide/a.md", "guide/b.md", "other.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("# Page")
    nav = [{"Home": "index.md"}, {"Guides": ["guide/b.md"]}]
    complete(nav, tmp_path)
    expected = [
        {"Home": "index.md"},
        {"Guides": ["guide/b.md", "guide/a.md"]},
        {"More": ["other.md"]},
    ]
    assert nav == expected


@pytest.mark.parametrize(
    ("page", "link", "leads_to"),
    [
        ("howto/deploy.md", "../guide/queue.md", "../guide/queue.md"),
        ("howto/deploy.md", "../../ops/Dockerfile", "../files/ops/Dockerfile"),
        ("howto/backup.md", "../../CHANGELOG.md", "../changelog.md"),
        ("index.md", "../CHANGELOG.md", "changelog.md"),
        ("design/performance.md", "../../README.md", "../index.md"),
    ],
)
def test_links_out_of_the_docs_lead_to_copies_on_the_site(
    page: str, link: str, leads_to: str
) -> None:
    assert resolved(page, link) == leads_to


@needs_mkdocs
@pytest.mark.timeout(300)
def test_the_site_builds_without_warnings_and_fetches_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    environ = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=ROOT, env=environ
    )
    assert built.returncode == 0, built.stdout + built.stderr
    home = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert re.findall(r'<(?:script|img)[^>]+src="(https?:[^"]+)', home) == []
    assert re.findall(r'<link[^>]+rel="stylesheet"[^>]+href="(https?:[^"]+)', home) == []
    assert "ExecStart" in (tmp_path / "howto" / "deploy" / "index.html").read_text()
    assert (tmp_path / "files" / "ops" / "compose.yaml").read_bytes() == COMPOSE.read_bytes()
    assert dead_links(tmp_path) == []
    brokers = (tmp_path / "api" / "client" / "index.html").read_text(encoding="utf-8")
    for method in ("queue.queue.Queue.push", "stream.stream.Stream.publish"):
        assert f'id="nexo.client._sync.{method}"' in brokers
    assert "guarantees" in (tmp_path / "search" / "search_index.json").read_text(encoding="utf-8")


def dead_links(site: Path) -> list[str]:
    """Links and images of all pages that lead to no file of the site, or out of our hands."""
    dead = []
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        for target in re.findall(r'(?:href|src)="([^"#?]+)', text):
            if target.startswith(("http:", "https:", "data:", "mailto:")):
                continue
            path = site / target.lstrip("/") if target[0] == "/" else page.parent / unquote(target)
            if not (path / "index.html" if path.is_dir() else path).exists():
                dead.append(f"{page.relative_to(site)}: {target}")
    return dead
