"""At quiet points: the standby's folder and a replay of the bucket equal the leader's folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from nexo.errors import NexoError
from nexo.model import Broker
from nexo.replication.objects import ObjectsBelow
from nexo.replication.replay import LogReplay
from nexo.storage.disk.freezing import NOT_DATA
from tests.simulation.bucket import BucketStore
from tests.simulation.disk import Disk, SimFiles
from tests.simulation.world import Machine, S

if TYPE_CHECKING:
    from tests.simulation.replicated import ReplicaServer
    from tests.simulation.two import Two

IN_TIME_S = 60


def contents(disk: Disk, root: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    found = {}
    for path in disk.below(root)[1:]:
        inside, inode = path.relative_to(root), disk.names[path]
        if inode is not None and not inside.parts[0].startswith(NOT_DATA):
            found[inside.as_posix()] = bytes(inode.content)
    return found


def replayed(system: Two, broker: Broker) -> dict[str, bytes]:
    """What a restore from the bucket gives now."""
    disk = Disk(Machine(system.world, f"restored-{broker.label}"))
    root, files = Path("/restored"), SimFiles(disk)
    replay = LogReplay(ObjectsBelow(BucketStore(system.bucket), f"{broker.label}/"), files, root)
    replay.load()
    replay.to_end()
    return contents(disk, root)


def difference(one: dict[str, bytes], other: dict[str, bytes]) -> str:
    """How two folders differ; empty if they do not."""
    for name in sorted(one.keys() | other.keys()):
        if one.get(name) != other.get(name):
            sizes = [len(side[name]) if name in side else None for side in (one, other)]
            return f"{name} has {sizes[0]} and {sizes[1]} bytes"
    return ""


def check_copies(system: Two, leader: ReplicaServer, standby: ReplicaServer) -> None:
    """Wait until all are equal, and say what is not in the end."""
    world = system.world
    until_ns, found = world.now_ns + IN_TIME_S * S, ""
    while world.now_ns < until_ns:
        world.run(world.now_ns + 2 * S)
        found = _differs(system, leader, standby)
        if not found:
            return
    world.found("equal copies", found)


def _differs(system: Two, leader: ReplicaServer, standby: ReplicaServer) -> str:
    for broker in Broker:
        truth = contents(leader.disk, Path(f"/{leader.machine.name}/{broker.label}"))
        try:
            restored = replayed(system, broker)
        except (NexoError, OSError) as error:
            return f"{broker.label} cannot be restored: {error!r}"
        if found := difference(truth, restored):
            return f"{broker.label}, leader and bucket: {found}"
        copy = contents(standby.disk, Path(f"/{standby.machine.name}/{broker.label}"))
        if found := difference(truth, copy):
            return f"{broker.label}, leader and standby: {found}"
    return ""
