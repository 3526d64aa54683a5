"""A server that does not replicate refuses ``replicated``, and nothing is left of it (SPEC N2)."""

from __future__ import annotations

import pytest

from nexo import Client
from nexo.errors import InvalidOption


def test_replicated_is_refused_without_a_store(nexo_url: str) -> None:
    with Client(nexo_url) as client:
        for made in (client.queue("jobs"), client.stream("records")):
            with pytest.raises(InvalidOption, match="start it with --replicate"):
                made.create(persistence="replicated")
        assert client.queues() == []
        assert client.streams() == []
        client.queue("jobs").create()
        with pytest.raises(InvalidOption, match="start it with --replicate"):
            client.queue("jobs").update(persistence="replicated")
