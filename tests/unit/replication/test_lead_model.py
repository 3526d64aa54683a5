"""Every order of every step of two servers that lead one after the other (SPEC N3, Q5).

With the mends of FINDINGS T1, T2 and T20 no order breaks a promise; without any of them one does.
"""

from __future__ import annotations

import pytest

from nexo.replication import fence
from tests.unit.replication.lead_model import Broken, Rules, State, begin, explore

STARTS = {
    "three renewals": begin(renewals=3, deletions=1, lost_replies=1),
    "there and back": begin(renewals=2, takeovers=2, deletions=1, lost_replies=1),
    "two bases and a collection": begin(puts=3, made=2, deletions=1, lost_replies=1),
}
LEASES, BACK, LOG = STARTS.values()


@pytest.fixture(autouse=True)
def few_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of a leader's own is kept but its first and newest, so that few renewals are enough."""
    monkeypatch.setattr(fence, "LEASES_KEPT", 0)


@pytest.mark.parametrize("start", STARTS.values(), ids=list(STARTS))
def test_in_no_order_do_two_acknowledge_or_is_what_was_confirmed_lost(start: State) -> None:
    assert explore(start, Rules()) > 1_000


@pytest.mark.parametrize(
    ("start", "rules", "what"),
    [
        (LEASES, Rules(keeps_leases=False, proves=False), "acknowledges"),
        (LEASES, Rules(proves=False), "acknowledges"),
        (LEASES, Rules(alone_lapses=False), "acknowledges"),
        (LOG, Rules(keeps_claims=False), "confirmed and lost"),
        (LOG, Rules(proves=False), "confirmed and lost"),
    ],
    ids=[
        "T1: leases that fence are deleted, and a created one is proof enough",
        "a created lease is proof enough",
        "T20: who is alone never lapses",
        "T2: claims are deleted",
        "a created claim is proof enough",
    ],
)
def test_without_a_mend_some_order_breaks_a_promise(start: State, rules: Rules, what: str) -> None:
    with pytest.raises(Broken, match=what):
        explore(start, rules)
