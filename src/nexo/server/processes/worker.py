"""The process of one broker, as the supervisor starts it: ``python -m`` this module."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Coroutine
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from nexo import config, limits
from nexo.client.address import door_path
from nexo.config import SETTINGS, Settings
from nexo.dialects.dialect import Origin
from nexo.dialects.nexo.dialect import NexoDialect
from nexo.dialects.nexo.moving import Moves
from nexo.model import Broker
from nexo.server.dialects import DIALECTS
from nexo.server.entrance import handover
from nexo.server.entrance.gate import Arrival
from nexo.server.entrance.tls import server_context
from nexo.server.host import Host
from nexo.server.loop import run_loop
from nexo.server.processes import logs
from nexo.server.processes.system import name_process, raise_descriptor_limit
from nexo.server.runtime import service_class
from nexo.storage.disk.files import OsFiles

if TYPE_CHECKING:
    from nexo.dialects.nexo.session import NexoSession
    from nexo.dialects.nexo.state import NexoState
    from nexo.dialects.session import SessionSpeaker
    from nexo.services.replicating import Replicating

# ruff: noqa: PLC0415 - few servers replicate

T = TypeVar("T")

log = logging.getLogger("nexo.replica")

LOST = 75
"""Exit status of a process that lost the lead."""
AGAIN = 76
"""Exit status of one that asks for a restart."""
READY = b"ready"
WAITING = b"waits"
"""Says that a process has loaded everything and waits for `LEAD`."""
SETTLED = b"settled"
"""Says of a stopping process that its clients have finished what they held."""
END = b"end"
"""Tells a stopping process that all have settled: until then clients may need each of them."""
LEAD = b"lead"
"""Tells a waiting process that this server leads."""


def arguments(broker: Broker, settings: Settings, channel: socket.socket, run: Path) -> list[str]:
    """The arguments of `main`."""
    return [broker.label, str(channel.fileno()), str(run), settings_text(settings)]


def settings_text(settings: Settings) -> str:
    """Settings as a command line carries them: those that are not the default."""
    values = {name: getattr(settings, name) for name in SETTINGS}
    changed = {name: value for name, value in values.items() if value != SETTINGS[name].default}
    return json.dumps(changed, default=str)


def progress_path(run: Path, broker: Broker) -> Path:
    """A file that is touched whenever a stopping process has written some more."""
    return run / f"{broker.label}.progress"


async def serve(broker: Broker, settings: Settings, channel: socket.socket, run: Path) -> int:
    """Serve until asked to stop or until the supervisor is gone; returns the exit status."""
    loop = asyncio.get_running_loop()
    stop, end = asyncio.Event(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    replicating = None
    if settings.replicate:
        from nexo.replication.stores import open_store

        load(broker, settings)
        open_store(settings.replicate, settings.replicate_key_file)
        channel.send(WAITING)
        if await _unless(stop, loop.sock_recv(channel, len(LEAD))) != LEAD:
            return 0
        replicating = await _take_lead(broker, settings, run, stop)
    files = partial(OsFiles, settings.max_open_files)
    host = Host(settings, files, [broker], run, settings.busy_poll_us, replicating=replicating)
    host.open()
    if replicating is not None:
        await replicating.began()
    speaker = cast("SessionSpeaker[NexoState, NexoSession]", host.speakers[NexoDialect.name])
    session = speaker.session
    link, door = host.link_path(broker), door_path(str(run), broker)
    links = await loop.create_unix_server(partial(session, Origin.LINK), link)
    dashboard = await loop.create_unix_server(partial(session, Origin.ADMIN), door)
    moves = Moves(link, speaker.state.linked.get)
    tls = server_context(settings)

    def adopt(arrival: Arrival) -> None:
        host.adopt(arrival.sock, arrival.dialect, tls if arrival.tls else None)

    def told(said: bytes) -> None:
        end.set()
        if not said:  # the supervisor is gone: the next one waits for this process to end
            stop.set()

    handover.listen(channel, adopt, told)
    channel.send(READY)
    _settle_memory()
    await stop.wait()
    if not end.is_set() and (replicating is None or replicating.refusal() is None):
        await _settle(host, channel, end)
    moves.close()
    links.close()
    dashboard.close()
    clean = await host.close(progress_path(run, broker).touch)
    if replicating is not None and replicating.mark is not None:
        from nexo.server.replica.marks import Marks

        Marks(settings, OsFiles).put(broker, replicating.mark)
    if replicating is not None and replicating.restart_wanted:
        return AGAIN
    return 0 if clean else 1


async def _settle(host: Host, channel: socket.socket, end: asyncio.Event) -> None:
    """Let clients finish what they hold here, and what they hold in other processes."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limits.SETTLING_S):
            await host.settle()
            with contextlib.suppress(OSError):
                channel.send(SETTLED)
            await end.wait()


def load(broker: Broker, settings: Settings) -> None:
    """Import what serving needs: a warm parent shares it, and a takeover does not wait for it."""
    service_class(broker)
    stream = broker is Broker.STREAM
    import_module(f"nexo.dialects.nexo.{'stream.requests' if stream else broker.label}")
    for dialect in DIALECTS:
        if dialect.serves([broker]):
            import_module(f"nexo.dialects.{dialect.name}.session")
    if settings.replicate:
        import_module("nexo.server.replica.start")


async def _unless(stop: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """The result of ``work``; None if the process is asked to stop before."""
    working, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if working.done():
        return working.result()
    working.cancel()
    return None


async def _take_lead(
    broker: Broker, settings: Settings, run: Path, stop: asyncio.Event
) -> Replicating:
    """Take the lead of the broker's log, or end the process."""
    from nexo.replication.taking import Superseded
    from nexo.server.replica import start as replica_start

    taking = asyncio.to_thread(replica_start.take_lead, broker, settings, run)
    try:
        taken = await _unless(stop, taking)
    except Superseded as error:
        log.warning("the %s broker's files are not the newest: %s", broker.label, error)
        os._exit(LOST)
    if taken is None:
        os._exit(0)  # the thread may wait for the object store for ever
    replicating = taken()

    def end(lost: bool) -> None:
        if lost:  # end soon: nothing is acknowledged any more
            asyncio.get_running_loop().call_later(0.05, os._exit, LOST)
        else:
            stop.set()

    replicating.on_end = end
    return replicating


def _settle_memory() -> None:
    """Exclude what start-up allocated from garbage collection, and collect less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def main(given: list[str]) -> None:
    label, descriptor, run, text = given
    name_process(f"nexo: {label}")
    broker = Broker[label.upper()]
    settings = config.load(flags=json.loads(text))
    logs.configure(settings, broker.label)
    raise_descriptor_limit()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the supervisor decides when to stop
    sys.exit(run_loop(serve(broker, settings, socket.socket(fileno=int(descriptor)), Path(run))))


if __name__ == "__main__":
    main(sys.argv[1:])
