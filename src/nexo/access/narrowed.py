"""Lists of which the user may see some: those are shown, as if there were no others (SPEC A10)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nexo.services.service import Peer


class Narrowed:
    """The peer of such a list; the list's handler asks it what it `shows`."""

    def __init__(self, peer: Peer, shows: Callable[[str], bool]) -> None:
        self._peer = peer
        self.shows = shows

    def __getattr__(self, name: str) -> Any:
        return getattr(self._peer, name)
