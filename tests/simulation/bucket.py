"""An object store that all machines share, and that fails in the ways of such stores.

A call takes time on its way there and on its way back, and gives control back in both: a pause,
a kill or another process' call lands between. What is created counts once it is there, also if
nobody hears of it.
"""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nexo.replication.objects import AlreadyThere, StoreFailed
from tests.simulation.world import US, S

if TYPE_CHECKING:
    from tests.simulation.network import Network
    from tests.simulation.world import Process, World

MACHINE = "store"
"""Its name in the network, for silence in either direction."""
BEFORE, AFTER, LOST, LATE, CONFLICT = "5xx before", "5xx after", "reply lost", "late", "409"
WAYS = (BEFORE, AFTER, LOST, LATE, CONFLICT)
"""How one call fails: undone; done; done, and nobody answers; done later; refused for nothing."""
_TIMEOUT_S = 8.0
"""How long a caller waits for a store that does not answer."""
_AT_ONCE = 50
"""Deletes between which nothing else happens."""


@dataclass(frozen=True)
class Put:
    """An object that was created."""

    key: str
    data: bytes
    process: Process | None
    asked_ns: int
    """When its process first tried."""


class Bucket:
    """The objects, and what goes wrong with calls."""

    def __init__(self, world: World, network: Network) -> None:
        self.world = world
        self.chance = world.random("bucket")
        self.objects: dict[str, bytes] = {}
        self.lag_us = (500, 20_000)
        self.page = 1000
        """Keys that one request of a list gives."""
        self.on_put: Callable[[Put], None] = lambda put: None
        self.failing: dict[str, deque[str]] = {}
        """By machine: how its next calls fail."""
        self.down: set[str] = set()
        """Machines for which it answers 5xx."""
        self._network = network
        self._asked: dict[tuple[str, Process | None], int] = {}
        self._keys: list[str] = []

    # -- what is there ----------------------------------------------------------------

    def create(self, key: str, data: bytes, process: Process | None, asked_ns: int) -> None:
        if key in self.objects:
            raise AlreadyThere(key)
        self.objects[key] = data
        bisect.insort(self._keys, key)
        self.world.note(f"bucket gets {key}")
        self.on_put(Put(key, data, process, asked_ns))

    def remove(self, key: str) -> None:
        if self.objects.pop(key, None) is not None:
            del self._keys[bisect.bisect_left(self._keys, key)]
            self.world.note(f"bucket drops {key}")

    def keys(self, prefix: str, after: str, most: int) -> list[str]:
        """The next keys, in order."""
        at = max(bisect.bisect_left(self._keys, prefix), bisect.bisect_right(self._keys, after))
        found: list[str] = []
        while len(found) < most and at < len(self._keys) and self._keys[at].startswith(prefix):
            found.append(self._keys[at])
            at += 1
        return found

    # -- damage --------------------------------------------------------------------------

    def wipe(self) -> None:
        self.objects.clear()
        self._keys.clear()

    def lose_one(self, number: int, prefix: str = "") -> str:
        """Delete one object; returns its key."""
        keys = [key for key in self._keys if prefix in key]
        if keys:
            self.remove(keys[number % len(keys)])
            return keys[number % len(keys)]
        return ""

    def damage_one(self, number: int) -> str:
        """Flip a bit of one object; returns its key."""
        if not self._keys:
            return ""
        key = self._keys[number % len(self._keys)]
        data = bytearray(self.objects[key])
        if data:
            data[(number >> 8) % len(data)] ^= 1 << number % 8
        self.objects[key] = bytes(data)
        return key

    # -- calls -----------------------------------------------------------------------------

    def asked(self, key: str, process: Process | None) -> int:
        """When a process first asked for an object to be created."""
        return self._asked.setdefault((key, process), self.world.now_ns)

    def begin(self, what: str, kind: str) -> str:
        """A call is on its way; returns how it fails, or nothing. May raise `StoreFailed`."""
        world = self.world
        world.happened(f"{what} {kind}")
        process = world.current
        assert process is not None
        us = process.machine.name
        failing = self.failing.get(us)
        way = failing.popleft() if failing else ""
        self.travel()
        if (us, MACHINE) in self._network.silent:
            self.never(what)
        if us in self.down:
            raise StoreFailed(f"{what}: 503 slow down")
        if way == CONFLICT and what != "put":
            way = BEFORE
        if way:
            world.story(f"{process.name} {what} {kind} fails: {way}")
        if way == BEFORE:
            raise StoreFailed(f"{what}: 500")
        return way

    def end(self, what: str, kind: str, way: str) -> None:
        """The answer is on its way back."""
        process = self.world.current
        assert process is not None
        self.world.happened(f"did {what} {kind}")
        if way == LOST or (MACHINE, process.machine.name) in self._network.silent:
            self.never(what)
        self.travel()
        if way == AFTER:
            raise StoreFailed(f"{what}: 500")

    def travel(self) -> None:
        self.world.block(self.chance.randint(*self.lag_us) * US // 2)

    def never(self, what: str) -> None:
        """Nobody answers."""
        self.world.block(int(self.chance.uniform(0.2, 1) * _TIMEOUT_S * S))
        raise StoreFailed(f"{what}: timed out")


KINDS = ("log", "lease", "base", "file", "reset", "standby", "handover", "server")
"""Of objects: a word of their keys."""


def _kind(key: str) -> str:
    return next((part for part in key.split("/") if part in KINDS), "all")


class BucketStore:
    """A `nexo.replication.objects.ObjectStore`, as the processes of a server use it."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def create(self, key: str, data: bytes) -> None:
        bucket, world = self._bucket, self._bucket.world
        process = world.current
        if process is None:
            bucket.create(key, data, None, world.now_ns)
            return
        asked_ns = bucket.asked(key, process)
        way = bucket.begin("put", _kind(key))
        if way == LATE:
            late_ns = int(bucket.chance.uniform(0.1, 3 * _TIMEOUT_S) * S)
            world.after(late_ns, self._create_late, key, data, process, asked_ns)
            bucket.never("put")
        if way == CONFLICT:
            raise AlreadyThere(key)
        try:
            bucket.create(key, data, process, asked_ns)
        except AlreadyThere:
            bucket.end("put", _kind(key), way)
            raise
        bucket.end("put", _kind(key), way)

    def _create_late(self, key: str, data: bytes, process: Process, asked_ns: int) -> None:
        if key not in self._bucket.objects:
            self._bucket.world.story(f"a late put of {key} arrives")
            self._bucket.create(key, data, process, asked_ns)

    def get(self, key: str) -> bytes | None:
        found: bytes | None = self._call("get", key, lambda: self._bucket.objects.get(key))
        return found

    def list(self, prefix: str, after: str = "") -> list[str]:
        bucket = self._bucket
        found: list[str] = []
        while True:
            last = found[-1] if found else after
            page = self._call("list", prefix, lambda: bucket.keys(prefix, last, bucket.page))  # noqa: B023
            found += page
            if len(page) < bucket.page:
                return found

    def delete(self, keys: Iterable[str]) -> None:
        for number, key in enumerate(keys):
            if number % _AT_ONCE == 0:
                self._call("delete", key, lambda: self._bucket.remove(key))  # noqa: B023
            else:
                self._bucket.remove(key)

    def _call(self, what: str, key: str, do: Callable[[], Any]) -> Any:
        bucket = self._bucket
        if bucket.world.current is None:
            return do()
        way = bucket.begin(what, _kind(key))
        result = do()
        bucket.end(what, _kind(key), way)
        return result


LAGS_US = ((20, 900), (300, 4_000), (5_000, 40_000), (1_000, 200_000))
"""How far it is from the machines, by run."""
