"""The ``nexo`` command: one module per subcommand, imported when it is called.

A module offers a click command or group named ``command``. Code that all commands share is not
declared there: ``--url``, ``--timeout`` and ``--json`` are added here to
every command that talks to a server, and errors of the package are printed here.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import click
from click.core import ParameterSource

from nexo.cli.options import Failure, UsageFailure, add_shared, common, shared_params
from nexo.errors import NexoError, NotFound
from nexo.extras import missing
from nexo.version import __version__

COMMANDS = {
    "serve": ("operate.serve", "Run the server."),
    "store": ("brokers.store", "Keys, counters, maps, lists and sets."),
    "pubsub": ("brokers.pubsub", "Publish and subscribe."),
    "queue": ("brokers.queue", "Jobs: create, push, pop, inspect."),
    "dlq": ("brokers.dlq", "Dead-letter queues: look, replay, delete."),
    "worker": ("brokers.worker", "Run a handler on a queue's jobs."),
    "stream": ("brokers.stream", "Streams: create, publish, read, show."),
    "tail": ("brokers.tail", "Follow a stream as it grows."),
    "lag": ("brokers.lag", "How far groups are behind."),
    "seek": ("brokers.seek", "Move a group to another position."),
    "top": ("operate.top", "Live figures of all brokers."),
    "pipeline": ("lake.pipeline", "Move streams into the lake with Spark."),
    "sql": ("lake.sql", "Query streams and their history."),
    "bench": ("operate.bench", "Measure this server."),
    "doctor": ("operate.doctor", "Check a data folder, and repair it."),
    "backup": ("operate.backup", "Copy the data of a running server."),
    "restore": ("operate.restore", "Put a backup, or what was replicated, into an empty folder."),
    "replica": ("operate.replica", "Servers that replicate: who leads, moving the lead."),
    "user": ("operate.user", "Users, passwords, tokens and permissions."),
    "completion": ("completion", "Print the completion script of a shell."),
}
"""Every subcommand: its module and its line in ``nexo --help``."""

# ruff: noqa: PLC0415 - what only errors need is imported then

_SERVERLESS = {"serve", "completion"}
_GIVEN = "nexo.given"
"""The words of the command line, in the context."""
_LOCAL = {"doctor", "replica", "restore", "user"}
"""Work on files or an object store, so they take --json but no address."""


class Commands(click.Group):
    """Finds subcommands by name, so that ``nexo --help`` imports none of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Every command."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command; None lets click say that there is none of that name."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"{__name__}.{COMMANDS[cmd_name][0]}")
        command: click.Command = module.command
        if cmd_name in _SERVERLESS:
            return command
        if ctx.resilient_parsing:
            from nexo.cli.suggest import complete_names

            complete_names(command, cmd_name)
        return add_shared(command, local=cmd_name in _LOCAL)

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:  # fmt: skip
        """Read the options before the subcommand; the rest is kept to see ``--json`` in time."""
        given = list(args)
        with _usage_errors(given):
            context = super().make_context(info_name, args, parent, **extra)
        context.meta[_GIVEN] = given
        return context

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The table's own lines instead of the modules' docstrings."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the subcommand; for an unknown one, suggest names like it."""
        if self.get_command(ctx, args[0]) is None and not ctx.resilient_parsing:
            from difflib import get_close_matches

            close = get_close_matches(args[0], self.list_commands(ctx), n=3)
            hint = f" Did you mean {' or '.join(close)}?" if close else ""
            raise click.UsageError(f"No such command {args[0]!r}.{hint}", ctx)
        if args[0] in _SERVERLESS | _LOCAL:
            _refuse_address(ctx, args[0])
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the subcommand; an error of ours becomes one line and exit code 1."""
        try:
            with _usage_errors(ctx.meta[_GIVEN]):
                return super().invoke(ctx)
        except NotFound as error:
            from nexo.cli.suggest import names_like

            hint = names_like(error.message, ctx.invoked_subcommand or "")
            raise Failure(error.code, error.message + hint) from error
        except NexoError as error:
            raise Failure(error.code, error.message) from error
        except ModuleNotFoundError as error:
            lacking = missing(error)
            if lacking is None:
                raise
            raise Failure(lacking.code, lacking.message) from error
        except BrokenPipeError:
            _leave_closed_pipe()
            ctx.exit(0)
        except KeyboardInterrupt:
            ctx.exit(130)


def _leave_closed_pipe() -> None:
    """The reader of our output, such as ``head``, has left; drop the rest."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _refuse_address(ctx: click.Context, name: str) -> None:
    for option in ("url", "timeout_s"):
        if ctx.get_parameter_source(option) is ParameterSource.COMMANDLINE:
            flag = f"--{option.removesuffix('_s')}"
            raise click.UsageError(f"{name} asks no server: leave out {flag}", ctx)


@contextlib.contextmanager
def _usage_errors(given: Sequence[str]) -> Iterator[None]:
    """Report wrong usage as JSON if JSON was asked for, even if --json was not parsed yet."""
    try:
        yield
    except (click.UsageError, OverflowError) as error:
        usage = error
        if not isinstance(usage, click.UsageError):
            usage = click.UsageError("a number is too large: the most is 2^63 - 1")
        if not (common().as_json or "--json" in given):
            raise usage from None
        raise UsageFailure(usage.format_message()) from None


@click.command(
    cls=Commands,
    params=shared_params(),
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="nexo")
def main() -> None:
    """Store, Pub/Sub, Queue and Stream in one service.

    Commands reach the server at --url, or NEXO_URL, or nexo://127.0.0.1:7654. --url, --timeout
    and --json may stand here or after the command.

    \b
    Exit codes: 0 done, 1 refused or not there, 2 wrong usage.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal may not know every character
            stream.reconfigure(errors="backslashreplace")
