"""Numbers that a leader may have given out before it was lost are not used again (SPEC N2)."""

from __future__ import annotations

from itertools import pairwise

from nexo.brokers.queue.ledger import LOST_JOBS, Ledger


def test_leaders_that_begin_with_the_same_files_give_out_different_numbers() -> None:
    """As if each was lost before it had shipped anything."""
    begins = []
    for epoch in range(1, 200):
        ledger = Ledger()
        ledger.next_job = 1_000
        ledger.skip_ahead(epoch)
        begins.append(ledger.next_job)
    assert min(begins) >= 1_000 + LOST_JOBS
    assert min(after - before for before, after in pairwise(begins)) >= 16 * LOST_JOBS
