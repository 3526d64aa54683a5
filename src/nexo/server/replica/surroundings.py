"""A replica's calls to the world around it, so that a simulator can give another one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from nexo.client._async.link.link import Link
from nexo.client.address import parse_url
from nexo.config import Settings
from nexo.errors import Forbidden, NexoError, NotLeader, Unauthenticated
from nexo.model import Broker
from nexo.protocol.ops import Op
from nexo.replication.objects import ObjectStore
from nexo.replication.state import Cells, FileCells
from nexo.replication.stores import open_store
from nexo.storage.disk.files import OsFiles
from nexo.storage.ports import Files


def settings_store(settings: Settings) -> ObjectStore:
    """The store that the settings name."""
    return open_store(settings.replicate, settings.replicate_key_file)


async def answers(address: str) -> bool:
    """Whether a leader that knows of no standby can be reached: then it still serves clients."""
    url = address if "://" in address else f"nexo://{address}"
    link = Link(parse_url(f"{url}?while_down=fail&timeout=2&verify=false"), Broker.QUEUE)
    try:
        await link.call(Op.ECHO, b"")
    except NotLeader:
        return False
    except NexoError as error:
        return isinstance(error, Unauthenticated | Forbidden)
    finally:
        await link.close()
    return True


@dataclass(frozen=True)
class Surroundings:
    """Disk, object store, shared memory and network. Each process of a server has its own."""

    make_files: Callable[[], Files] = OsFiles
    open_store: Callable[[Settings], ObjectStore] = settings_store
    open_cells: Callable[[Path], Cells] = FileCells
    answers: Callable[[str], Awaitable[bool]] = answers
