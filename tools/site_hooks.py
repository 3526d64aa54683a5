"""Hooks of the documentation site (mkdocs.yml): navigation, links out of ``docs/``, changelog.

A page that mkdocs.yml does not list stands at the end of its folder's section.

In the repository a page may link to any file beside it. On the site, the changelog is a page,
the README is the first page, and every other file outside of ``docs/`` that a page links to
is below ``files/``, so that the site needs nothing from elsewhere. A line
``<!-- file: ops/nexo.service -->`` shows a file.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
CHANGELOG = "changelog.md"
HOME = "index.md"
FILES = "files"
_SHOWN = re.compile(r"^<!-- file: (\S+) -->$", re.MULTILINE)
_LINK = re.compile(r"(\]\()([^)#\s:]+)(#[^)\s]*)?(\))")

_SECOND = re.compile(r"\(#([a-z-]+)-(\d)\)")
"""A link to the second heading of a name, as code hosts number them; MkDocs has ``_1``."""

_SECTIONS = {"guide": "Guides", "howto": "How to", "reference": "Reference", "design": "Design"}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add pages that the navigation does not list."""
    complete(config.nav or [], Path(config.docs_dir))
    return config


def complete(nav: list[Any], docs: Path) -> None:
    """Put what ``nav`` does not list at the end of the section of its folder."""
    pages = {page.relative_to(docs).as_posix() for page in docs.rglob("*.md")}
    for page in sorted(pages.difference(listed(nav))):
        title = _SECTIONS.get(page.partition("/")[0], "More")
        section = next((entry[title] for entry in nav if title in entry), None)
        if section is None:
            nav.append({title: (section := [])})
        section.append(page)


def listed(entry: object) -> list[str]:
    """The pages of a part of the navigation."""
    match entry:
        case str():
            return [entry]
        case list():
            return [page for inner in entry for page in listed(inner)]
        case dict():
            return [page for inner in entry.values() for page in listed(inner)]
    return []


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages and files outside of ``docs/`` that pages link to."""
    from mkdocs.structure.files import File  # noqa: PLC0415 - tests need only `resolved`

    files.append(File.generated(config, CHANGELOG, content=_top("CHANGELOG.md")))
    for path in linked(Path(config.docs_dir)):
        source = str(ROOT / path)
        files.append(File.generated(config, f"{FILES}/{path}", abs_src_path=source))
    return files


def _top(name: str) -> str:
    """A page beside ``docs/``, as it would be written inside."""
    return (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")


def linked(docs: Path) -> list[str]:
    """The files outside of ``docs/``, but those that are pages, that its pages link to."""
    found = set()
    for page in docs.rglob("*.md"):
        folder = posixpath.join("docs", page.relative_to(docs).parent.as_posix())
        for _, target, _, _ in _LINK.findall(page.read_text(encoding="utf-8")):
            found.add(posixpath.normpath(posixpath.join(folder, target)))
    outside = {path for path in found if not path.startswith("docs/")}
    return sorted(outside - {"CHANGELOG.md", "README.md"})


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links out of ``docs/`` to the site's copies, and show files."""
    source = page.file.src_uri
    markdown = _SECOND.sub(r"(#\1_\2)", markdown)
    markdown = _LINK.sub(lambda link: _moved(link, source), markdown)
    return _SHOWN.sub(lambda found: shown(found[1]), markdown)


def shown(path: str) -> str:
    """A file of the repository as a block of code."""
    language = {".yaml": "yaml", ".service": "ini"}.get(posixpath.splitext(path)[1], "text")
    content = (ROOT / path).read_text(encoding="utf-8").rstrip()
    return f'```{language} title="{path}"\n{content}\n```'


def _moved(link: re.Match[str], source: str) -> str:
    before, target, anchor, after = link[1], link[2], link[3] or "", link[4]
    return f"{before}{resolved(source, target)}{anchor}{after}"


def resolved(source: str, target: str) -> str:
    """Where a link of the page ``source``, below ``docs/``, leads on the site."""
    folder = posixpath.dirname(source)
    path = posixpath.normpath(posixpath.join("docs", folder, target))
    if path in {"CHANGELOG.md", "README.md"}:
        return posixpath.relpath(CHANGELOG if path[0] == "C" else HOME, folder or ".")
    if path.startswith("docs/"):
        return target
    return posixpath.relpath(f"{FILES}/{path}", folder or ".")
