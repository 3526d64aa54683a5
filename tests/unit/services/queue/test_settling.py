"""What a request to settle jobs of several leases does, and does not do."""

from __future__ import annotations

import pytest

from nexo.errors import InvalidInput
from nexo.model.queue import ACK
from nexo.protocol.ops import Op
from nexo.protocol.queue import Settled, SettleJobs, encode
from tests.memory_files import MemoryFiles
from tests.unit.brokers.queue.desk import Desk


@pytest.mark.parametrize("runs", [[1], [2, 1], [0, 10**12]])
def test_one_bad_lease_of_a_request_leaves_the_others_as_they_are(runs: list[int]) -> None:
    """Bad input changes nothing (SPEC, preamble)."""
    peer = Desk(MemoryFiles()).client()
    peer.create("q")
    peer.push_many("q", [b"\0a", b"\0b"])
    (first, _), (second, _) = peer.pop("q", 1), peer.pop("q", 1)
    leases = [Settled(first), Settled(second, runs)]
    with pytest.raises(InvalidInput):
        peer.call(Op.Q_SETTLE, encode(SettleJobs("q", ACK, leases)))
    assert peer.info("q")["working"] == 2
