"""The jobs of a push, and which of them get the dedup keys they ask for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from nexo.errors import InvalidInput
from nexo.model.blocks import pack_block
from nexo.options.described import check_range
from nexo.options.queue import MAX_DELAY_MS, MAX_PRIORITY


class NewJobs(msgspec.Struct, frozen=True):
    """A push: jobs alike in everything but value, key and headers."""

    count: int
    block: bytes
    priority: int = 0
    delay_ms: int = 0
    ttl_ms: int = 0
    keys: list[str | None] | None = None
    dedup_keys: list[str | None] | None = None
    replace: bool = False
    """Whether a taken dedup key replaces the waiting job instead of dropping the new one."""
    owner: str = ""
    """The user who pushes them, if users log in."""
    headers: list[bytes | None] | None = None
    """One per job, as its producer wrote them."""

    @classmethod
    def of(
        cls, values: Sequence[bytes], priority: int = 0, delay_ms: int = 0, owner: str = ""
    ) -> NewJobs:
        """Jobs with these values, each with its type byte."""
        return NewJobs(len(values), pack_block(values), priority, delay_ms, owner=owner)

    def check(self) -> None:
        """Raise `InvalidInput` for anything out of range."""
        if self._is_plain:
            return
        check_range("priority", self.priority, MAX_PRIORITY)
        check_range("delay_ms", self.delay_ms, MAX_DELAY_MS)
        check_range("ttl_ms", self.ttl_ms, MAX_DELAY_MS)
        columns = {"keys": self.keys, "dedup_keys": self.dedup_keys, "headers": self.headers}
        for what, column in columns.items():
            if column is not None and len(column) != self.count:
                raise InvalidInput(f"{what} has {len(column)} items for {self.count} jobs")

    @property
    def _is_plain(self) -> bool:
        if self.priority or self.delay_ms or self.ttl_ms:
            return False
        return self.keys is None and self.dedup_keys is None and self.headers is None


def resolve_dedup(
    jobs: NewJobs, base: int, taken: Mapping[str, int]
) -> tuple[dict[int, int], dict[int, int]]:
    """The indexes of new jobs to drop and the old jobs to remove, each with its replacement."""
    if not jobs.dedup_keys:
        return {}, {}
    instead: dict[int, int] = {}
    replaced: dict[int, int] = {}
    holders: dict[str, int] = {}
    for index, key in enumerate(jobs.dedup_keys):
        if key is None:
            continue
        holder = holders.get(key, taken.get(key, -1))
        if holder >= 0 and not jobs.replace:
            instead[index] = holder
            continue
        holders[key] = base + index
        if holder >= base:
            instead[holder - base] = base + index
        elif holder >= 0:
            replaced[holder] = base + index
    for index in sorted(instead, reverse=True):  # one that replaced another may be replaced itself
        instead[index] = instead.get(instead[index] - base, instead[index])
    return instead, {old: instead.get(new - base, new) for old, new in replaced.items()}


def with_free_key(
    jobs: Iterable[int], keys: Mapping[int, str], taken: Mapping[str, int]
) -> list[int]:
    """The jobs that may wait again: one per dedup key, and none if the key is taken."""
    free: list[int] = []
    given: set[str] = set()
    for job in jobs:
        key = keys.get(job)
        if key is not None:
            if key in taken or key in given:
                continue
            given.add(key)
        free.append(job)
    return free
