"""The files in ``ops/`` name settings and commands that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

import click
import pytest

from nexo import cli, config

OPS = Path(__file__).parents[2] / "ops"
FOREIGN = {"PATH", "PYTHONUNBUFFERED"}


def variables() -> list[tuple[str, str, str]]:
    """File, name and value of every environment variable that is set."""
    patterns = {
        "Dockerfile": r"^(?:ENV|   ) ([A-Z_]+)=(\S+)",
        "compose.yaml": r"^      ([A-Z_]+): \"?([^\"\n]+)",
        "nexo.service": r"^Environment=([A-Z_]+)=(\S+)",
    }
    return [
        (file, name, value)
        for file, pattern in patterns.items()
        for name, value in re.findall(pattern, (OPS / file).read_text(), re.MULTILINE)
        if name not in FOREIGN
    ]


def test_every_file_sets_something() -> None:
    assert {file for file, _, _ in variables()} == {"Dockerfile", "compose.yaml", "nexo.service"}


@pytest.mark.parametrize(("file", "name", "value"), variables())
def test_every_variable_is_a_setting(file: str, name: str, value: str) -> None:
    known = {each.variable for each in config.SETTINGS.values()}
    assert name in known
    config.load(environ={name: value})


def test_the_commands_exist() -> None:
    (entry,) = re.findall(r"^ENTRYPOINT (.*)$", (OPS / "Dockerfile").read_text(), re.MULTILINE)
    (command,) = re.findall(r"^CMD (.*)$", (OPS / "Dockerfile").read_text(), re.MULTILINE)
    (started,) = re.findall(r"^ExecStart=\S+/(.*)$", (OPS / "nexo.service").read_text(), re.M)
    words = [*json.loads(entry), *json.loads(command)]
    assert words == started.split() == ["nexo", "serve"]
    assert cli.main.get_command(click.Context(cli.main), words[1]) is not None


def test_the_image_and_the_ports_agree_with_the_defaults() -> None:
    settings = config.Settings()
    text = (OPS / "Dockerfile").read_text()
    assert f"EXPOSE {settings.port} {settings.http_port} {settings.health_port}" in text
    assert f"http://127.0.0.1:{settings.health_port}/health" in text
    published = re.findall(r"\"127\.0\.0\.1:(\d+):\1\"", (OPS / "compose.yaml").read_text())
    assert published == [str(settings.port), str(settings.http_port)]
