"""What every command shares: where the server is, how long to wait, how to print."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

import nexo
from nexo.cli import reach

if TYPE_CHECKING:
    from nexo import Client

_KEY = "nexo.terms"


@dataclass
class Terms:
    """The shared options as given to the command that runs."""

    url: str | None = None
    timeout_s: float | None = None
    as_json: bool = False


class Failure(click.ClickException):
    """One line on standard error, ``error[CODE]: message``, and exit code 1."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self._as_json = terms().as_json  # no context is left when click shows the error

    def show(self, file: IO[Any] | None = None) -> None:
        """Print it; as JSON when the command's output is JSON."""
        line = f"error[{self.code}]: {self.message}"
        if self._as_json:
            line = json.dumps({"error": self.code, "message": self.message}, ensure_ascii=False)
        click.echo(line, file=file, err=True)


def terms() -> Terms:
    """The shared options of the command that runs."""
    context = click.get_current_context(silent=True)
    if context is None:
        return Terms()
    found = context.find_root().meta.setdefault(_KEY, Terms())
    assert isinstance(found, Terms)
    return found


def _keep(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    assert param.name is not None
    if value not in (None, False):
        setattr(terms(), param.name, value)


def _shared_params() -> list[click.Parameter]:
    return [
        click.Option(
            ["--url", "url"], envvar="NEXO_URL", metavar="URL", expose_value=False, callback=_keep,
            help="The server, as nexo://host:port. Default: NEXO_URL, then nexo://127.0.0.1:7654.",
        ),
        click.Option(
            ["--timeout", "timeout_s"], type=click.FloatRange(min=0, min_open=True),
            metavar="SECONDS", expose_value=False, callback=_keep,
            help="How long to wait for an answer.",
        ),
        click.Option(
            ["--json", "as_json"], is_flag=True, expose_value=False, callback=_keep,
            help="Print JSON, one object per line.",
        ),
    ]  # fmt: skip


def add_shared(command: click.Command, *, local: bool = False) -> click.Command:
    """Give the shared options to ``command``, or to all commands below it if it is a group.

    A ``local`` one, which asks no server, gets only ``--json``. A command that takes an
    option of the same name keeps its own.
    """
    if isinstance(command, click.Group):
        for child in command.commands.values():
            add_shared(child, local=local)
        return command
    taken = {option for param in command.params for option in param.opts}
    offered = [param for param in _shared_params() if not local or param.name == "as_json"]
    command.params += [param for param in offered if not taken & set(param.opts)]
    return command


@contextlib.contextmanager
def client(*, patient: bool = False) -> Iterator[Client]:
    """A sync client of the server the command was told to use.

    Unless it is ``patient``, a server that is not there is told at once.
    """
    given = terms()
    if not patient:
        reach.check(given.url)
    options = {} if given.timeout_s is None else {"timeout_s": given.timeout_s}
    with nexo.connect(given.url, **options) as connection:
        yield connection


def read_value(text: str, kind: str = "text") -> object:
    """A value as typed on the command line: ``-`` is standard input, ``@name`` a file.

    ``kind`` is ``text``, ``json`` or ``bytes``.
    """
    raw = _raw(text)
    match kind:
        case "bytes":
            return raw
        case "json":
            return _json(raw)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise click.BadParameter("not UTF-8 text; say --as bytes") from None


def _raw(text: str) -> bytes:
    if text == "-":
        return sys.stdin.buffer.read()
    if not text.startswith("@"):
        return text.encode()
    try:
        return Path(text[1:]).read_bytes()
    except OSError as error:
        raise click.BadParameter(f"cannot read {text[1:]}: {error.strerror}") from None


def _json(raw: bytes) -> object:
    try:
        return json.loads(raw)
    except ValueError as error:
        raise click.BadParameter(f"not JSON: {error}") from None


as_option = click.option(
    "--as",
    "kind",
    type=click.Choice(["text", "json", "bytes"]),
    default="text",
    show_default=True,
    help="How to read the value.",
)
"""``--as text|json|bytes`` for commands that take a value; see `read_value`."""
