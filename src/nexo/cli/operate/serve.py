"""``nexo serve``: settings from every source, then the server until a signal ends it.

With ``--pipeline``, the pipeline runs in a process of its own beside the brokers.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nexo import config, extras
from nexo.cli.options import config_option, option_flags
from nexo.config import Settings, is_loopback
from nexo.config import names as setting_names
from nexo.model import Broker
from nexo.version import __version__

if TYPE_CHECKING:
    from nexo.server.processes.addresses import Addresses
    from nexo.server.processes.folders import FolderLock

# ruff: noqa: PLC0415 - ``nexo serve --help`` need not import the server

RESTART_S = 10.0
_STOP_S = 4.0


class _Command(click.Command):
    """Suggests which option an unknown one stands for."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Click's own, which would compare letters only."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            option = error.option_name
            close = setting_names.did_you_mean(option, self._known(), "--help names all of them")
            raise click.NoSuchOption(option, f"No such option {option!r}{close}", ctx=ctx) from None

    def _known(self) -> dict[str, tuple[str, str]]:
        options = (param for param in self.params if isinstance(param, click.Option))
        return {
            flag: (option.name or "", option.help or "")
            for option in options
            for flag in (*option.opts, *option.secondary_opts)
        }


@click.command(cls=_Command)
@config_option("A TOML file with settings; the environment and flags override it.")
@click.option("--embedded", is_flag=True, help="All brokers in one process: small, not isolated.")
@click.option("--pipeline", is_flag=True, help="Take streams with tiering on into the lake too.")
@option_flags(Settings)
def command(file: Path | None, embedded: bool, pipeline: bool, **flags: object) -> None:
    """Run the server until SIGTERM or Ctrl-C.

    Every option is also a setting of the TOML file and an environment variable.
    """
    extras.require("server")
    if pipeline:
        extras.require("spark")
    settings = config.load(file, os.environ, flags)
    for text in (*config.doubtful_variables(os.environ), *exposure_warnings(settings)):
        _say(settings, "warning", text, f"warning: {text}")
    if embedded and pipeline:
        raise click.UsageError("--pipeline needs processes of its own: leave out --embedded")
    if embedded and settings.replicate:
        raise click.UsageError("--replicate needs processes of its own: leave out --embedded")
    if embedded:
        _run_embedded(settings)
    else:
        _run(settings, pipeline)


def exposure_warnings(settings: Settings) -> list[str]:
    """Warnings about an address that others can reach (SPEC A10)."""
    guards = {
        "encryption (tls_cert, tls_key)": settings.tls_cert is not None,
        "users (auth)": settings.auth,
    }
    missing = [what for what, there in guards.items() if not there]
    if is_loopback(settings.host) or not missing:
        return []
    without = " and ".join(missing)
    return [f"listening on {settings.host}, which other machines may reach, without {without}"]


def _run(settings: Settings, pipeline: bool) -> None:
    from nexo.server.processes import supervisor

    with PipelineProcess(settings) as beside:

        def ready(addresses: Addresses) -> None:
            _greet(settings, addresses)
            if pipeline:
                beside.start(addresses.near_url)

        supervisor.run(settings, ready)


class PipelineProcess:
    """Runs ``nexo pipeline run`` and starts it again when it ends; ``with`` stops it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._stop = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> PipelineProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._process is not None:
            self._process.terminate()
        if self._thread is not None:
            self._thread.join(_STOP_S)
        if self._process is not None and self._process.poll() is None:
            self._process.kill()

    def start(self, url: str) -> None:
        """Run it for the server at ``url``; ``NEXO_URL`` overrides it, for credentials."""
        command = self._command(os.environ.get("NEXO_URL") or url)
        self._thread = threading.Thread(target=self._watch, args=(command,), daemon=True)
        self._thread.start()

    def _command(self, url: str) -> list[str]:
        settings = self._settings
        lake = ["--lake", str(settings.lake_folder)]
        if settings.lake_catalog:
            lake += ["--catalog", settings.lake_catalog]
        return [sys.executable, "-m", "nexo", "pipeline", "run", "--attached", "--url", url, *lake]

    def _watch(self, command: list[str]) -> None:
        while not self._stop.is_set():
            self._process = subprocess.Popen(command, start_new_session=True)
            code = self._process.wait()
            if not self._stop.wait(RESTART_S):
                click.echo(f"warning: the pipeline ended with {code}; starting it again", err=True)


def _greet(settings: Settings, addresses: Addresses) -> None:
    text = banner(settings, addresses)
    first, *rows = (" ".join(line.split()) for line in text.splitlines())
    _say(settings, "info", f"{first}: {'; '.join(rows)}", text)


def _say(settings: Settings, level: str, message: str, text: str) -> None:
    """Say ``text`` to people, or ``message`` as one more line of a log that machines read."""
    if settings.log_format != "json":
        click.echo(text, err=True)
        return
    from nexo.server.processes import logs

    click.echo(logs.json_line("supervisor", level, message), err=True)


def banner(settings: Settings, addresses: Addresses) -> str:
    """Print a started server's addresses, access rules and data folder."""
    rows = {"clients": addresses.url}
    if addresses.http_port is not None:
        rows["dashboard"] = f"{addresses.http_url} (in a moment)"
    if addresses.health_port is not None:
        rows["health"] = f"{addresses.health_url}/health, /ready"
    rows["access"] = f"auth {_on(settings.auth)}, TLS {_on(addresses.tls)}"
    rows["data"] = str(settings.data_dir.absolute())
    rows["brokers"] = ", ".join(broker.label for broker in Broker)
    lines = (f"  {name:<9}  {text}" for name, text in rows.items())
    return "\n".join([f"Nexo {__version__} is ready", *lines])


def _on(switch: bool) -> str:
    return "on" if switch else "off"


def _run_embedded(settings: Settings) -> None:
    from nexo.server.loop import run_loop
    from nexo.server.processes import logs
    from nexo.server.processes.folders import FolderLock, make_folders, stamp_format

    logs.configure(settings, "server")
    make_folders(settings)
    with closing(FolderLock(settings)) as lock:
        stamp_format(settings)
        run_loop(_serve_embedded(settings, lock))


async def _serve_embedded(settings: Settings, lock: FolderLock) -> None:
    import asyncio
    import signal

    from nexo.server.embedded import EmbeddedServer
    from nexo.server.processes.addresses import Addresses

    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    server = EmbeddedServer(settings)
    await server.open()
    addresses = Addresses(settings.host, server.port, None, settings.tls_cert is not None)
    lock.write(pid=os.getpid(), **asdict(addresses))
    _greet(settings, addresses)
    await stop.wait()
    await server.close()
