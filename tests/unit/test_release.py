"""What stands in the way of a release (docs/design/releasing.md)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import nexo
from tools import release


def test_the_version_and_the_changelog_agree() -> None:  # SPEC O7
    assert release.version() == nexo.__version__
    text = (release.ROOT / "CHANGELOG.md").read_text()
    newest = re.search(r"^## (\S+)", text, re.MULTILINE)
    assert newest is not None
    assert newest[1] == release.version()


def test_what_stands_in_the_way_of_a_release_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told = {"status": " M README.md\n", "tag": "v0.1.0\nv9.9.9\n"}
    monkeypatch.setattr(release, "_git", lambda *arguments: told[arguments[0]])
    monkeypatch.setattr(release, "ROOT", tmp_path)
    (tmp_path / "CHANGELOG.md").write_text("## 9.9.9 (unreleased)\n")
    assert [reason.split(":")[0] for reason in release.problems("9.9.9")] == [
        "there are changes that are not committed",
        "v9.9.9 is tagged already",
        "CHANGELOG.md has no section `## 9.9.9 (YYYY-MM-DD)`",
    ]
    told.update(status="", tag="v0.1.0\n")
    (tmp_path / "CHANGELOG.md").write_text("## 9.9.9 (2026-11-19)\n")
    assert release.problems("9.9.9") == []


def test_only_extras_that_there_are_have_a_program() -> None:
    extras = {extra for extra in release.PROGRAMS if extra}
    text = (release.ROOT / "pyproject.toml").read_text()
    assert [extra for extra in extras if not re.search(rf"^{extra} = \[", text, re.MULTILINE)] == []
