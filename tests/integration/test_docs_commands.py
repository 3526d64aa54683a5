"""Every ``nexo`` command that the docs name exists, with every option that they give it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click

from nexo.cli import main

ROOT = Path(__file__).parents[2]
GENERATED = {"cli.md", "http-api.md"}
PLANNED = {"spec.md", "replication.md"}
"""They also name commands that are not there yet, and say so."""
PAGES = [
    page
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if page.name not in GENERATED | PLANNED
]
INLINE = re.compile(r"`nexo ([^`\n]+)`")
LINE = re.compile(r"^(?:\S*/)?nexo ([^\n]+)$", re.MULTILINE)


def named() -> list[tuple[str, str]]:
    """Each page with each command that it names."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        blocks = "\n".join(re.findall(r"```(?:bash|text|sh)\n(.*?)```", text, re.DOTALL))
        for words in [*INLINE.findall(text), *LINE.findall(blocks)]:
            found.append((str(page.relative_to(ROOT)), words))
    return found


def wrong(words: str) -> str:
    """What does not exist in a command line; empty if all of it does."""
    context = click.Context(main)
    command: click.Command = main
    params = list(main.params)
    is_value = False
    for part in shlex.split(words.partition(" #")[0].replace("…", "")):
        if part in ("|", ">", "&&", ";", "||"):
            break
        if is_value:
            is_value = False
        elif part.startswith("--"):
            flag, equals, _ = part.partition("=")
            option = next((one for one in params if flag in (*one.opts, *one.secondary_opts)), None)
            if option is None and flag not in ("--help", "--version"):
                return flag
            is_value = isinstance(option, click.Option) and not (option.is_flag or equals)
        elif isinstance(command, click.Group) and part[0].isalpha() and not part.isupper():
            below = command.get_command(context, part)
            if below is None:
                return part
            command = below
            params += command.params
    return ""


def test_commands_in_the_docs_exist() -> None:
    lines = named()
    assert len(lines) > 100
    missing = [f"{page}: nexo {words}: {bad}" for page, words in lines if (bad := wrong(words))]
    assert missing == []
