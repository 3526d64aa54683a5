"""Runs of messages of which the user may publish some: those are, and the reply tells the rest.

A client joins what is published in one turn. Were the whole run refused for one message, it
would have to send the others again, behind what it has sent meanwhile (SPEC C2, A10).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nexo.protocol import pubsub
from nexo.protocol.frames import Buffer
from nexo.protocol.ops import Op
from nexo.services.service import Peer

RUNS = frozenset({Op.PUBLISH_RUN, Op.PUBLISH})


class Partly:
    """The peer of such a run, as the handler of what remains of it sees it."""

    def __init__(self, peer: Peer, op: int, payload: memoryview) -> None:
        self._peer = peer
        self._head, frames = b"", bytes(payload)
        if op == Op.PUBLISH:
            self._head, frames = pubsub.split_publish(payload)
        self._run = pubsub.parse_run(frames)
        self._refused: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._peer, name)

    def permitted(self, allowed: Callable[[str], bool]) -> memoryview | None:
        """The request without the messages of topics that are not; None if nothing is left."""
        topics = {topic: allowed(topic.decode("utf-8", "replace")) for topic in self._run.topics}
        self._refused = [at for at, topic in enumerate(self._run.topics) if not topics[topic]]
        kept = [at for at, topic in enumerate(self._run.topics) if topics[topic]]
        messages = self._run.part(0, len(self._run.topics)).messages(True)
        return memoryview(self._head + b"".join([messages[at] for at in kept])) if kept else None

    def data(self, request_id: int, *parts: Buffer) -> None:
        """Reply to all of the run."""
        self._peer.data(request_id, pubsub.pack_partly(b"".join(parts), self._refused))
