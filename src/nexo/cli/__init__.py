"""The ``nexo`` command: one module per subcommand, imported when it is called.

A module offers a click command or group named ``command``. It asks for nothing it
shares with the others: ``--url``, ``--timeout`` and ``--json`` are added here to
every command that talks to a server, and errors of the package are printed here.
"""

from __future__ import annotations

import importlib
import importlib.util
from difflib import get_close_matches
from typing import Any

import click

from nexo import __version__
from nexo.cli.options import Failure, add_shared
from nexo.errors import NexoError, NotFound

COMMANDS = {
    "serve": "Run the server.",
    "store": "Keys, counters, maps, lists and sets.",
    "pubsub": "Publish and subscribe.",
    "queue": "Jobs: create, push, pop, inspect.",
    "dlq": "Dead-letter queues: look, replay, delete.",
    "worker": "Run a handler on a queue's jobs.",
    "stream": "Streams: create, publish, read, describe.",
    "tail": "Follow a stream as it grows.",
    "lag": "How far groups are behind.",
    "seek": "Move a group to another position.",
    "top": "Live figures of all brokers.",
    "pipeline": "Move streams into the lake with Spark.",
    "sql": "Query streams and their history.",
    "bench": "Measure this server.",
    "doctor": "Check a data folder, and repair it.",
    "backup": "Copy the data of a running server.",
    "restore": "Put a backup into an empty data folder.",
    "user": "Users, passwords, tokens and permissions.",
    "completion": "Print the completion script of a shell.",
}
"""Every subcommand and its line in ``nexo --help``; those without a module are not shown."""

# ruff: noqa: PLC0415 - what only errors need is imported then

_SERVERLESS = {"serve", "completion"}
_LOCAL = {"doctor", "restore"}
"""Work on files, so they take --json but no address."""


class Commands(click.Group):
    """Finds subcommands by name, so that ``nexo --help`` imports none of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands this installation has."""
        return [name for name in COMMANDS if importlib.util.find_spec(f"{__name__}.{name}")]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command; None lets click say that there is none of that name."""
        if cmd_name not in self.list_commands(ctx):
            return None
        module = importlib.import_module(f"{__name__}.{cmd_name}")
        command: click.Command = module.command
        if cmd_name in _SERVERLESS:
            return command
        return add_shared(command, local=cmd_name in _LOCAL)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The table's own lines instead of the modules' docstrings."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name]) for name in self.list_commands(ctx)])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the subcommand; for one that does not exist, tell those like it."""
        if self.get_command(ctx, args[0]) is None and not ctx.resilient_parsing:
            close = get_close_matches(args[0], self.list_commands(ctx), n=3)
            hint = f" Did you mean {' or '.join(close)}?" if close else ""
            raise click.UsageError(f"No such command {args[0]!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the subcommand; an error of ours becomes one line and exit code 1."""
        try:
            return super().invoke(ctx)
        except NotFound as error:
            from nexo.cli.suggest import names_like

            hint = names_like(error.message, ctx.invoked_subcommand or "")
            raise Failure(error.code, error.message + hint) from error
        except NexoError as error:
            raise Failure(error.code, error.message) from error
        except KeyboardInterrupt:
            ctx.exit(130)


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="nexo")
def main() -> None:
    """Store, Pub/Sub, Queue and Stream in one service.

    Commands reach the server at --url, or NEXO_URL, or nexo://127.0.0.1:7654.
    """
