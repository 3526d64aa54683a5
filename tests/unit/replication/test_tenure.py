"""For how long a leader may acknowledge, and when a standby may take over (SPEC N3, Q5)."""

from __future__ import annotations

from nexo.replication.lease import LeaderLease
from nexo.replication.tenure import FOREVER, PATIENCE, Tenure, Watch

LEASE_S = 3.0


def tenure(*, alone: bool) -> Tenure:
    """Of a leader that renewed at 10 s."""
    made = Tenure(LEASE_S, 9.0)
    made.asking(1, 10.0, alone=alone)
    made.renewed(10.1, alone=alone, proved=False)
    return made


def test_a_leader_that_is_alone_goes_on_while_it_runs() -> None:
    alone = tenure(alone=True)
    for tenth in range(100, 1_000):
        alone.pulse(tenth / 10)
    assert not alone.lapsed(102.0)
    known = tenure(alone=False)
    known.pulse(12.0)
    assert known.lapsed(13.1)


def test_one_that_was_paused_has_lapsed_alone_or_not() -> None:
    alone = tenure(alone=True)
    alone.pulse(12.0)
    assert alone.lapsed(72.0)
    alone.pulse(72.0)
    assert alone.lapsed(72.0), "a lapse ends only with a proof"


def test_after_a_lapse_a_renewal_without_a_proof_changes_nothing() -> None:
    lapsed = tenure(alone=True)
    lapsed.asking(2, 72.0, alone=True)
    lapsed.renewed(72.1, alone=True, proved=False)
    assert lapsed.lapsed(72.1)
    assert lapsed.proofs == 1
    lapsed.renewed(72.1, alone=True, proved=True)
    assert not lapsed.lapsed(72.1)
    assert lapsed.proofs == 2


def test_from_the_first_try_that_names_a_standby_a_leader_is_not_alone() -> None:
    """Its lease may be there although the reply was lost."""
    made = tenure(alone=True)
    made.pulse(11.0)
    made.asking(2, 11.0, alone=False)
    made.pulse(13.0)
    assert made.lapsed(14.1)


def watch(*, alone: bool) -> Watch:
    """Of a standby that saw a lease at 10 s."""
    lease = LeaderLease("term", "leader", "", int(LEASE_S * 1000), 0, {}, alone=alone)
    return Watch("standby", 1, lease, 10.0)


def test_a_leader_that_knows_no_standby_is_asked_before_the_lead_is_taken() -> None:
    watching = watch(alone=True)
    assert watching.due_s() == FOREVER
    watching.asked(12.0, answered=False)
    watching.asked(13.0, answered=False)
    assert watching.due_s() == 12.0 + PATIENCE * LEASE_S
    watching.asked(14.0, answered=True)
    assert watching.due_s() == FOREVER
    assert watch(alone=False).due_s() == 10.0 + PATIENCE * LEASE_S
