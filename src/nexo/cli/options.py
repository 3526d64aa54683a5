"""Options of every command: the server, how long to wait, how to print; and how one fails."""

from __future__ import annotations

import contextlib
import importlib
import json
import re
import socket
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click
import msgspec
from click.core import ParameterSource
from msgspec import inspect

import nexo
from nexo.cli.cells import visible
from nexo.cli.times import seconds
from nexo.client.address import parse_url
from nexo.errors import ConnectionLost, NotFound
from nexo.options.described import described
from nexo.options.option import Described, Unfit

if TYPE_CHECKING:
    from nexo import Client
    from nexo.client.address import ConnectOptions

F = TypeVar("F", bound=Callable[..., Any])

_KEY = "nexo.common"
_NEGATIVE = re.compile(r"-\.?\d")


@dataclass
class CommonOptions:
    """The shared options as given to the command that runs."""

    url: str | None = None
    timeout_s: float | None = None
    as_json: bool = False

    def client_options(self) -> ConnectOptions:
        """The client's settings besides the address."""
        return {} if self.timeout_s is None else {"timeout": self.timeout_s}


class Failure(click.ClickException):
    """One line on standard error, ``error[CODE]: message``, and an exit code.

    It is JSON when the command's output is, which is known while the command runs.
    """

    def __init__(self, code: str, message: str, *, as_json: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self._as_json = as_json or common().as_json  # when it is shown, no context is left

    def show(self, file: IO[Any] | None = None) -> None:
        """Print it; as JSON when the command's output is JSON."""
        line = f"error[{self.code}]: {visible(self.message, chr(10))}"
        if self._as_json:
            line = json.dumps({"error": self.code, "message": self.message}, ensure_ascii=False)
        click.echo(line, file=file, err=True)


class UsageFailure(Failure):
    """Wrong usage, reported as JSON."""

    exit_code = click.UsageError.exit_code

    def __init__(self, message: str) -> None:
        super().__init__("USAGE", message, as_json=True)


def nothing_there(message: str) -> Failure:
    """The queue or stream exists, but not what was asked for in it."""
    return Failure(NotFound.code, message)


def act_on_each(names: Iterable[str], act: Callable[[str], int], absent: str) -> int:
    """Act on each of the things named; returns how many there were.

    ``absent`` begins the error that names the others.
    """
    done = {name: int(act(name)) for name in dict.fromkeys(names)}
    missing = [name for name, count in done.items() if not count]
    if missing:
        raise nothing_there(f"{absent}: {', '.join(missing)}")
    return sum(done.values())


def fail_unless(done: bool) -> None:
    """End with exit code 1 if nothing was done; for the end of a command."""
    if not done:
        click.get_current_context().exit(1)


def common() -> CommonOptions:
    """The shared options of the command that runs."""
    context = click.get_current_context(silent=True)
    if context is None:
        return CommonOptions()
    found = context.find_root().meta.setdefault(_KEY, CommonOptions())
    assert isinstance(found, CommonOptions)
    return found


def _keep(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    """The last flag counts; the environment only where no flag was given before."""
    assert param.name is not None
    known = getattr(common(), param.name) not in (None, False)
    from_environment = ctx.get_parameter_source(param.name) is ParameterSource.ENVIRONMENT
    if value not in (None, False) and not (known and from_environment):
        setattr(common(), param.name, value)


def shared_params() -> list[click.Parameter]:
    """``--url``, ``--timeout`` and ``--json``, to be read into `common`."""
    return [
        click.Option(
            ["--url", "url"], envvar="NEXO_URL", metavar="URL", expose_value=False, callback=_keep,
            help="The server, as nexo://host:port. Default: NEXO_URL, then nexo://127.0.0.1:7654.",
        ),
        click.Option(
            ["--timeout", "timeout_s"], type=seconds(least_ms=1),
            expose_value=False, callback=_keep,
            help="How long to wait for an answer: 5 (seconds), 500ms, 1m.",
        ),
        click.Option(
            ["--json", "as_json"], is_flag=True, expose_value=False, callback=_keep,
            help="Print JSON, one object per line.",
        ),
    ]  # fmt: skip


def add_shared(command: click.Command, *, local: bool = False) -> click.Command:
    """Give the shared options to ``command``, and to all commands below it if it is a group.

    A ``local`` one, which asks no server, gets only ``--json``. A command that takes an
    option of the same name keeps its own.
    """
    if isinstance(command, click.Group):
        for child in command.commands.values():
            add_shared(child, local=local)
    taken = {option for param in command.params for option in param.opts}
    offered = [param for param in shared_params() if not local or param.name == "as_json"]
    command.params += [param for param in offered if not taken & set(param.opts)]
    return command


class SignedCommand(click.Command):
    """Takes a word that begins like a negative number as a value, such as ``-5``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Click's own, with options first: after ``--`` it takes every word as a value."""
        with_value = {
            flag
            for param in self.params
            if isinstance(param, click.Option) and not param.is_flag
            for flag in param.opts
        }
        flags, values, words = list[str](), list[str](), iter(args)
        for word in words:
            if word == "--":
                values += words
            elif not word.startswith("-") or word == "-" or _NEGATIVE.match(word):
                values.append(word)
            else:
                flags += [word, *islice(words, word in with_value)]
        if any(map(_NEGATIVE.match, values)):
            args = [*flags, "--", *values]
        return super().parse_args(ctx, args)


class SignedGroup(click.Group):
    """A group of such commands."""

    command_class = SignedCommand
    group_class = type


@contextlib.contextmanager
def client() -> Iterator[Client]:
    """A sync client of the server that the command uses; fails at once if none is there."""
    given = common()
    check_reachable(given.url)
    with nexo.connect(given.url, **given.client_options()) as connection:
        yield connection


def check_reachable(url: str | None) -> None:
    """Raise `ConnectionLost` if nothing listens there; a URL that says to wait is not checked."""
    address = parse_url(url)
    if url is not None and "while_down=wait" in url:
        return
    try:
        socket.create_connection((address.host, address.port), address.connect_timeout_s).close()
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConnectionLost(
            f"no server answers at {address} ({reason}): start one with 'nexo serve', "
            "or say where it is with --url or NEXO_URL"
        ) from None


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
        shown = textwrap.shorten(raw.decode(errors="replace"), 60)
        raise click.BadParameter(f"{shown!r} is not JSON: {error}") from None


def load_name(text: str) -> object:
    """Import what ``module:name`` names, from the working folder first, as python -m does."""
    module, _, path = text.partition(":")
    if not (module and path):
        raise click.BadParameter(f"{text!r} is not module:name")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found: object = importlib.import_module(module)
    except ImportError as error:
        raise click.BadParameter(f"cannot import {module}: {error}") from None
    for name in path.split("."):
        found = getattr(found, name, None)
    if found is None:
        raise click.BadParameter(f"{module} has no function or class {path}")
    return found


def limit_option(default: int, most: int | None = None) -> Callable[[F], F]:
    """``--limit``: how many rows to show."""
    kind = click.IntRange(1, most)
    text = "Show at most this many."
    return click.option("--limit", type=kind, default=default, show_default=True, help=text)


def offset_option() -> Callable[[F], F]:
    """``--offset``: how many rows to skip."""
    return click.option("--offset", type=click.IntRange(min=0), default=0, help="Skip this many.")


def config_option(meaning: str, name: str = "file") -> Callable[[F], F]:
    """``--config``, or NEXO_CONFIG: the server's settings."""
    kind = click.Path(path_type=Path)
    return click.option("--config", name, envvar="NEXO_CONFIG", type=kind, help=meaning)


as_option = click.option(
    "--as",
    "kind",
    type=click.Choice(["text", "json", "bytes"]),
    default="text",
    show_default=True,
    help="How to read the value.",
)
"""``--as text|json|bytes`` for commands that take a value; see `read_value`."""


# -- flags of options, from their descriptions ---------------------------------------

_ALSO = {"log": ["--log-level"]}
_METAVARS: dict[type[inspect.Type], str] = {
    inspect.IntType: "NUMBER",
    inspect.FloatType: "NUMBER",
    inspect.StrType: "TEXT",
}


def option_flags(
    kind: type[msgspec.Struct], *, fixed: bool = True
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command a flag for each option, by its stored name; ``fixed`` ones too, or not."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        for one in reversed([*described(kind).values()]):
            if fixed or not one.fixed:
                function = _flag(one)(function)
        return function

    return decorate


def given(options: dict[str, Any]) -> dict[str, Any]:
    """The options that were given."""
    return {name: value for name, value in options.items() if value is not None}


def _flag(one: Described) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A setting's flag has the setting's name, and its text is read where all sources are."""
    word = (one.name if one.variable else one.keyword).replace("_", "-")
    if isinstance(one.type, inspect.BoolType):
        return click.option(f"--{word}/--no-{word}", one.name, default=None, help=_help(one))
    kind = click.Choice(one.choices) if one.choices else None if one.variable else _reader(one)
    flags = [f"--{word}", *_ALSO.get(word, ())]
    return click.option(*flags, one.name, type=kind, metavar=_metavar(one), help=_help(one))


def _help(one: Described) -> str:
    if not one.variable:
        return f"{one.title}: {one.meaning[:1].lower()}{one.meaning[1:]}"
    default = "" if isinstance(one.default, bool) else one.default_text
    shown = f"{one.variable}; default: {default}" if default else one.variable
    return f"{one.meaning}  [env var: {shown}]"


def _metavar(one: Described) -> str | None:
    if one.choices:
        return None
    if one.is_duration or one.unit == "bytes":
        return "DURATION" if one.is_duration else "SIZE"
    return _METAVARS.get(type(one.type), "PATH")


def _reader(one: Described) -> Callable[[str], Any]:
    """A click type."""

    def read(text: str) -> Any:
        try:
            return one.check(one.read(text, one.keyword, from_text=True))
        except Unfit as error:
            raise click.BadParameter(f"{text!r} {error}") from None

    return read
