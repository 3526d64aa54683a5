"""``nexo user``: the users file of a server, on the server's machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nexo import config
from nexo.cli import output
from nexo.cli.options import common, config_option
from nexo.errors import InvalidInput

if TYPE_CHECKING:
    from nexo.access.grants import Grant
    from nexo.access.users import UsersFile

# ruff: noqa: PLC0415 - ``nexo user --help`` need not import the server

_WHERE = [
    config_option("The server's TOML file."),
    click.option("--data-dir", metavar="PATH", help="The server's data folder.  [default: data]"),
    click.option("--users-file", metavar="PATH", help="The file, if not users.json in there."),
]  # fmt: skip


def _grant(text: str) -> Grant:
    from nexo.access.grants import parse_grant

    try:
        return parse_grant(text)
    except InvalidInput as error:
        raise click.BadParameter(error.message) from None


_grants = click.option(
    "--grant",
    "grants",
    multiple=True,
    metavar="BROKER:ACTION:PATTERN",
    type=_grant,
    help="A permission, as queue:write:jobs.* or *:read:*; may be repeated.",
)
_password_stdin = click.option(
    "--password-stdin", is_flag=True, help="Read the password from standard input, no prompt."
)


def _with_file(function: Callable[..., None]) -> Callable[..., None]:
    """Gives the command the users file that a server with the same options would read."""

    @wraps(function)
    def run(file: Path | None, data_dir: str | None, users_file: str | None, **rest: Any) -> None:
        from nexo.access.users import UsersFile

        flags = {"data_dir": data_dir, "users_file": users_file}
        settings = config.load(file, os.environ, flags)
        if settings.users_file is None:
            _warn_of_wrong_folder(settings)
        function(UsersFile(settings.users_path), **rest)

    for option in reversed(_WHERE):
        run = option(run)
    return run


def _warn_of_wrong_folder(settings: config.Settings) -> None:
    from nexo.server.processes.folders import holds_data

    if not holds_data(settings):
        folder = settings.data_dir.absolute()
        output.note(f"warning: no server has run with {folder} yet; name its folder by --data-dir")


@click.group()
def command() -> None:
    """Users, passwords, tokens and permissions, in a file on the server's machine.

    They apply while the server runs with --auth; changes take effect within a second.
    """


@command.command()
@click.argument("name")
@_grants
@_password_stdin
@click.option("--no-password", is_flag=True, help="The user will log in with tokens only.")
@_with_file
def add(
    users: UsersFile, name: str, grants: tuple[Grant, ...], password_stdin: bool, no_password: bool
) -> None:
    """Create the user NAME; without --grant it may do nothing."""
    users.add(name, None if no_password else _password(password_stdin), grants)
    output.done(f"user {name} added to {users.path}", user=name, file=str(users.path))


@command.command()
@click.argument("name")
@_with_file
def remove(users: UsersFile, name: str) -> None:
    """Delete the user NAME; its connections are closed."""
    users.remove(name)
    output.done(f"user {name} removed from {users.path}", user=name, file=str(users.path))


@command.command()
@click.argument("name")
@_password_stdin
@_with_file
def passwd(users: UsersFile, name: str, password_stdin: bool) -> None:
    """Give the user NAME another password."""
    users.set_password(name, _password(password_stdin))
    output.done(f"the password of {name} was changed", user=name)


@command.command()
@click.argument("name")
@click.argument("grants", nargs=-1, type=_grant, metavar="[BROKER:ACTION:PATTERN]...")
@_with_file
def grant(users: UsersFile, name: str, grants: tuple[Grant, ...]) -> None:
    """Set the permissions of the user NAME to exactly these."""
    users.set_grants(name, grants)
    output.done(f"{name} has {len(grants)} permissions", user=name, grants=list(map(str, grants)))


@command.command()
@click.argument("name")
@click.argument("label", default="default")
@_with_file
def token(users: UsersFile, name: str, label: str) -> None:
    """Make a token for the user NAME and print it; it cannot be shown again."""
    made = users.add_token(name, label)
    if common().as_json:
        output.done(made, user=name, label=label, token=made)
    else:
        click.echo(made)


@command.command()
@click.argument("name")
@click.argument("label", default="default")
@_with_file
def revoke(users: UsersFile, name: str, label: str) -> None:
    """Revoke the token LABEL of the user NAME."""
    users.revoke_token(name, label)
    output.done(f"token {label} of {name} revoked", user=name, label=label)


@command.command("list")
@_with_file
def list_(users: UsersFile) -> None:
    """Every user with its tokens' labels and permissions; no secrets."""
    rows = [
        {
            "name": user.name,
            "password": user.password is not None,
            "tokens": list(user.tokens),
            "grants": list(map(str, user.grants)),
        }
        for user in users.load().values()
    ]
    output.rows(rows, ("name", "password", "tokens", "grants"), f"{users.path} has no users")


def _password(from_stdin: bool) -> str:
    if from_stdin:
        given = sys.stdin.readline().rstrip("\n")
        if not given:
            raise click.UsageError("standard input has no password; --no-password needs none")
        return given
    typed: str = click.prompt("Password", hide_input=True, confirmation_prompt=True)
    return typed
