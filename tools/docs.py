"""Writes the reference pages from the code: ``python tools/docs.py [--check]``.

Settings come from `nexo.config`, limits from `nexo.limits`, Kafka's APIs from its dialect, opcodes
and structs from the source of `nexo.protocol`, commands from click. Speed comes from the last
complete benchmark run and is left as it is where there was none. ``--check`` writes nothing and
fails if a page is stale; it does not look at speed, which no file of the repository says.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from nexo import cli, config  # noqa: E402
from nexo.client import address  # noqa: E402
from nexo.options.option import Described  # noqa: E402
from tools import (  # noqa: E402
    diagrams,
    docs_http,
    docs_kafka,
    docs_limits,
    docs_protocol,
    docs_speed,
)
from tools.docs_text import between, table  # noqa: E402

NOTICE = "<!-- Written by tools/docs.py; change the code it describes, then run `make docs`. -->\n"
OPTIONS = "<!-- options: written by tools/docs.py from nexo.client.address -->"


def main() -> int:
    """Write or check every generated page."""
    check = "--check" in sys.argv[1:]
    written = pages() if check else chain(pages(), docs_speed.pages(ROOT))
    stale = [path for path, text in written if not _settle(path, text, check)]
    for path in stale:
        print(f"{path.relative_to(ROOT)} is stale: run `make docs`", file=sys.stderr)
    return 1 if stale else 0


def _settle(path: Path, text: str, check: bool) -> bool:
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return True
    if not check:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path.relative_to(ROOT)}")
    return not check


def pages() -> Iterator[tuple[Path, str]]:
    """Every page that is generated from the source, with its text."""
    reference: dict[str, Callable[[], str]] = {
        "configuration.md": configuration,
        "kafka-apis.md": docs_kafka.page,
        "limits.md": docs_limits.page,
        "protocol.md": docs_protocol.page,
        "http-api.md": docs_http.page,
        "cli.md": commands,
    }
    for name, write in reference.items():
        yield ROOT / "docs" / "reference" / name, NOTICE + write()
    guide = ROOT / "docs" / "guide" / "client.md"
    yield guide, between(guide.read_text(encoding="utf-8"), OPTIONS, "options", client_options())
    yield from diagrams.pages(ROOT)


# -- settings -------------------------------------------------------------------


def configuration() -> str:
    """The page of all settings."""
    rows = [
        (*map(_in_code, (name, each.variable, each.default_text)), each.meaning + _limits(each))
        for name, each in config.SETTINGS.items()
    ]
    return f"""# Configuration

`nexo serve` needs no configuration. What is given is taken from, each going before the one
above it:

1. the defaults below,
2. a TOML file: `nexo serve --config nexo.toml` or `NEXO_CONFIG=nexo.toml`,
3. environment variables,
4. flags: `--data-dir /var/lib/nexo` sets `data_dir` (see the [commands](cli.md#nexo-serve)).

An unknown key, an unknown variable that begins with `NEXO_`, or a bad value stops the start
with a message that names it. Sizes may end in `KiB`, `MiB` or `GiB`, times in `ms`, `s`, `m`,
`h` or `d`; a plain number is bytes or milliseconds.

```toml
host = "127.0.0.1"
data_dir = "/var/lib/nexo"
max_payload_bytes = "16 MiB"
flush_ms = "20ms"
```

{table(("setting", "variable", "default", "meaning"), rows)}
`PUBSUB_DEFAULT_RETAINED_TTL_SECS` sets `retained_ttl_ms` in seconds.

Clients and commands read `NEXO_URL` (`nexo://127.0.0.1:7654`) and, where the address has no
login, `NEXO_TOKEN`, or `NEXO_USER` and `NEXO_PASSWORD`.
"""


def _limits(one: Described) -> str:
    if one.choices:
        return " One of " + ", ".join(f"`{choice}`" for choice in one.choices) + "."
    return ""


def _in_code(text: str) -> str:
    return f"`{text}`" if text else ""


def client_options() -> str:
    """The table of what a client can be told, in the URL or as keywords."""
    rows = [
        (_in_code(name), _in_code(each.default_text), each.meaning + _limits(each))
        for name, each in address.IN_URL.items()
    ]
    return table(("option", "default", "meaning"), rows)


# -- commands -------------------------------------------------------------------


_ABOUT_COMMANDS = """# Commands

Commands that talk to a server find it at `--url`, or `NEXO_URL`, or `nexo://127.0.0.1:7654`.
`--url`, `--timeout` and `--json` may stand at any level: `nexo --url X store get a` is
`nexo store get a --url X`.

* A *duration* is a number of seconds, or one with a unit: `30`, `1.5`, `500ms`, `10m`, `2h`, `7d`.
* A *size* is a number of bytes, or one with a unit: `1000`, `512KiB`, `1GiB`.
* A *value* is `-` for standard input, `@name` for a file, and text as it is otherwise; `--as json`
  and `--as bytes` read it as such. Negative numbers are values; before anything else that begins
  with `-`, write `--`.

Results go to standard output, everything else to standard error. On a terminal, lists are tables;
in a pipe they are lines with tabs between the fields, no head, and bare numbers, so that
`nexo store keys | head -1` and `nexo queue list | cut -f1 | xargs …` work. With `--json` every
command prints one JSON object per line, with all fields.

| exit code | meaning |
| --- | --- |
| 0 | done; a list may be empty |
| 1 | refused, or not there |
| 2 | wrong usage; nothing was asked of a server |
| 3 | `nexo lag --over`: a group is that far behind |
| 130 | stopped by Ctrl-C |

What ends with 1 says why on standard error, as `error[CODE]: message`, or with `--json` as
`{"error": CODE, "message": …}`. Not there is also: a queue without a job to `pop`, a key without
a record. Two results end with 1 too, and are printed as results are: a condition of `store set`
that does not hold, and a count of 0 where the store was to delete something. Wrong usage is an
unknown command or option, or a text that is no number, duration, JSON or place; with `--json` its
code is `USAGE`.
"""


def commands() -> str:
    """The page of all commands."""
    context = click.Context(cli.main, info_name="nexo")
    parts = [_ABOUT_COMMANDS]
    for name in cli.main.list_commands(context):
        command = cli.main.get_command(context, name)
        assert command is not None
        parts += _command(command, click.Context(command, context, name), depth=2)
    return "\n".join(parts)


def _command(command: click.Command, context: click.Context, depth: int) -> Iterator[str]:
    yield f"{'#' * depth} {context.command_path}\n"
    yield _help(command) + "\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from _command(child, click.Context(child, context, name), depth + 1)
        return
    yield f"```\n{command.get_usage(context).removeprefix('Usage: ')}\n```\n"
    if rows := list(_options(command, context)):
        yield table(("option", "meaning"), rows)


def _help(command: click.Command) -> str:
    return inspect.cleandoc(command.help or "").replace("\b\n", "")


def _options(command: click.Command, context: click.Context) -> Iterator[tuple[str, str]]:
    for param in command.params:
        record = param.get_help_record(context)
        if record is not None:
            yield f"`{record[0].replace('|', ' or ')}`", " ".join(record[1].split())


if __name__ == "__main__":
    sys.exit(main())
