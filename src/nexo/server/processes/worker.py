"""The process of one broker, as the supervisor starts it: ``python -m`` this module."""

from __future__ import annotations

import asyncio
import gc
import json
import signal
import socket
import sys
from dataclasses import fields
from functools import partial
from pathlib import Path

from nexo import config
from nexo.client.address import door_path
from nexo.config import Settings
from nexo.dialects.dialect import Origin
from nexo.dialects.nexo.dialect import NexoDialect
from nexo.model import Broker
from nexo.server import loops
from nexo.server.entrance import handover
from nexo.server.entrance.gate import Arrival
from nexo.server.entrance.tls import server_context
from nexo.server.host import Host
from nexo.server.processes import descriptors, logs
from nexo.server.services import factory
from nexo.storage.disk.files import OsFiles

READY = b"ready"


def command(broker: Broker, settings: Settings, channel: socket.socket, run: Path) -> list[str]:
    """The command line that starts this process."""
    arguments = [broker.label, str(channel.fileno()), str(run), settings_text(settings)]
    return [sys.executable, "-m", "nexo.server.processes.worker", *arguments]


def settings_text(settings: Settings) -> str:
    """Settings as a command line carries them: those that are not the default."""
    values = ((spec, getattr(settings, spec.name)) for spec in fields(settings))
    changed = {spec.name: value for spec, value in values if value != spec.default}
    return json.dumps(changed, default=str)


def progress_path(run: Path, broker: Broker) -> Path:
    """A file that is touched whenever a stopping process has written some more."""
    return run / f"{broker.label}.progress"


async def serve(broker: Broker, settings: Settings, channel: socket.socket, run: Path) -> bool:
    """Serve until told to stop or until the supervisor is gone; False if anything was lost."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    files, services = partial(OsFiles, settings.max_open_files), {broker: factory(broker)}
    host = Host(settings, files, services, run, settings.busy_poll_us)
    host.open()
    path = Path(host.link_path(broker))
    path.unlink(missing_ok=True)
    speaker = host.speakers[NexoDialect.name]
    links = await loop.create_unix_server(partial(speaker.session, Origin.LINK), str(path))
    door = Path(door_path(str(run), broker))
    door.unlink(missing_ok=True)
    dashboard = await loop.create_unix_server(partial(speaker.session, Origin.ADMIN), str(door))
    tls = server_context(settings)

    def adopt(arrival: Arrival) -> None:
        host.adopt(arrival.sock, arrival.dialect, tls if arrival.tls else None)

    handover.listen(channel, adopt, stop.set)
    channel.send(READY)
    _settle_memory()
    await stop.wait()
    links.close()
    dashboard.close()
    return await host.close(progress_path(run, broker).touch)


def _settle_memory() -> None:
    """Keep what start-up made out of every later collection, and collect less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def main(arguments: list[str]) -> None:
    """Entry point."""
    label, descriptor, run, text = arguments  # ``ps`` shows which broker it is
    broker = Broker[label.upper()]
    settings = config.load(flags=json.loads(text))
    logs.configure(settings, broker.label)
    descriptors.raise_limit()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the supervisor decides when to stop
    clean = loops.run(serve(broker, settings, socket.socket(fileno=int(descriptor)), Path(run)))
    sys.exit(0 if clean else 1)


if __name__ == "__main__":
    main(sys.argv[1:])
