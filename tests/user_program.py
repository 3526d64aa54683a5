"""A user's program with one misspelt name. ``make check`` has mypy read it; nothing runs it.

Strict mypy rejects an ``ignore`` of an error that is not there, so a misspelt name that passed
would fail the check (SPEC K1).
"""

from __future__ import annotations

import nexo
from nexo.types import AsyncJob, Job

NAMES = (nexo.topics.Producer, nexo.xstreams.connect, nexo.errors.NotFound)


def value_of(job: Job[int]) -> int:
    return job.value


async def value_of_async(job: AsyncJob[str]) -> str:
    return job.value


def misspelt() -> None:
    nexo.conect()  # type: ignore[attr-defined]
