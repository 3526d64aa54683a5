"""How an operation may end. The table of what may be unsure is the contract with the callers.

An operation is acknowledged, refused (certainly not done) or unsure (done, or not, or later).
"""

from __future__ import annotations

import re
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any

from nexo.errors import (
    ConnectionLost,
    NexoError,
    OutcomeUnknown,
    RequestTimeout,
)
from tests.simulation.world import World

UNSURE: dict[type[NexoError], str] = {
    ConnectionLost: "the request was sent, and its reply cannot arrive any more",
    RequestTimeout: "the request was sent, and may still be under way",
    OutcomeUnknown: "the server itself says that it does not know",
}
"""What may be unsure, and why. An internal error is never in it."""

REPLICATED_UNSURE = "UNAVAILABLE"
"""For `replicated` alone: it is on the disk, and the object store has not confirmed it."""


@dataclass(frozen=True)
class Outcome:
    """What became of one operation."""

    kind: str
    """``ok``, ``refused`` or ``unsure``."""
    value: Any = None
    error: BaseException | None = None

    @property
    def ok(self) -> bool:
        return self.kind == "ok"

    @property
    def unsure(self) -> bool:
        return self.kind == "unsure"


async def outcome(
    world: World, what: str, work: Awaitable[Any], *, replicated: bool = False
) -> Outcome:
    """Await an operation and say how it ended."""
    try:
        value = await work
    except NexoError as error:
        ended = _judged(world, what, error, replicated)
    except Exception as error:
        world.found("typed errors", f"{what} raised {error!r}")
        ended = Outcome("unsure", error=error)
    else:
        ended = Outcome("ok", value)
    note(world, what, ended)
    return ended


def note(world: World, what: str, ended: Outcome) -> None:
    """Make it part of the hash, without addresses of objects, which differ between processes."""
    text = f"{what} {ended.kind} {ended.value if ended.ok else ended.error!r}"[:200]
    world.note(re.sub(r"0x[0-9a-f]{6,}", "0x…", text))


def _judged(world: World, what: str, error: NexoError, replicated: bool) -> Outcome:
    if type(error) is NexoError:
        world.found("internal error", f"{what} was answered {error.message!r}")
        return Outcome("unsure", error=error)
    if isinstance(error, tuple(UNSURE)):
        return Outcome("unsure", error=error)
    if replicated and error.code == REPLICATED_UNSURE:
        return Outcome("unsure", error=error)
    return Outcome("refused", error=error)
