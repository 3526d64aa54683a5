"""One queue's rules, with a manual clock."""

from __future__ import annotations

from typing import Any

import pytest

from nexo.brokers.queue.engine import QueueEngine
from nexo.brokers.queue.jobs import NewJobs
from nexo.brokers.queue.leases import Lease
from nexo.brokers.queue.ledger import MOST_REPLACED, Ledger
from nexo.brokers.queue.places import JobPlace, Places
from nexo.brokers.queue.snapshot import restore, snapshot
from nexo.brokers.queue.status import state_of
from nexo.errors import (
    Conflict,
    Corrupt,
    InvalidInput,
    InvalidOption,
    LeaseLost,
    NotFound,
    Overloaded,
    QueueFull,
)
from nexo.options.queue import QueueOptions, options

NOW = 1_000_000
ME, OTHER = 1, 2


def luck() -> float:
    return 0.5


def queue(**given: Any) -> QueueEngine:
    return QueueEngine.create(options(given), 7, NOW)


def push(q: QueueEngine, count: int = 1, now: int = NOW, **given: Any) -> int:
    return q.push(NewJobs(count, b"block", **given), now).base


def jobs(lease: Lease | None) -> list[int]:
    return [] if lease is None else [job for lo, hi in lease.runs for job in range(lo, hi)]


def pop(q: QueueEngine, limit: int = 100, now: int = NOW, holder: int = ME) -> list[int]:
    return jobs(q.pop(holder, limit, now))


def lease(
    q: QueueEngine, limit: int = 100, now: int = NOW, holder: int = ME, lease_ms: int = 0
) -> Lease:
    found = q.pop(holder, limit, now, lease_ms)
    assert found is not None
    return found


def recovered(q: QueueEngine, now: int = NOW) -> QueueEngine:
    ledger = Ledger()
    for record in q.outbox:
        ledger.apply(record)
    return QueueEngine(ledger, now)


# -- order -------------------------------------------------------------------


def test_jobs_come_out_in_the_order_they_went_in() -> None:  # SPEC D2
    q = queue()
    push(q, 3)
    push(q, 2)
    assert pop(q, 4) == [0, 1, 2, 3]
    assert pop(q) == [4]


def test_the_highest_priority_goes_first_and_ages_order_the_rest() -> None:  # SPEC D2
    q = queue()
    push(q, 2, priority=1)
    push(q, 2, priority=255)
    push(q, 1, priority=1)
    assert pop(q) == [2, 3, 0, 1, 4]


def test_a_retried_job_keeps_its_place_by_age() -> None:  # SPEC D5
    q = queue()
    push(q, 3)
    first = lease(q, 1)
    q.nack(first.token, None, "boom", NOW, luck)
    assert pop(q) == [0, 1, 2]


def test_jobs_that_come_back_interleave_by_age() -> None:  # SPEC D5
    q = queue()
    push(q, 6)
    held = lease(q, 4)
    q.release(held.token, [(1, 2), (3, 4)], NOW)
    assert pop(q) == [1, 3, 4, 5]
    q.release(held.token, None, NOW)
    assert pop(q) == [0, 2]


def test_a_job_that_was_given_back_is_known_until_it_is_done() -> None:  # SPEC M1
    q = queue()
    push(q, 4)
    held = lease(q, 3)
    assert q.give_back(held.token, [(0, 2)], NOW) == []
    q.release(held.token, None, NOW)
    assert list(q.ledger.returned) == [0, 1]
    again = lease(q, 4)
    assert q.ledger.attempt(0) == 1
    q.nack(again.token, [(1, 2)], "boom", NOW, luck, retry=False)
    q.ack(again.token, None)
    assert list(q.ledger.returned) == []


def test_a_delayed_job_waits_until_it_is_due() -> None:  # SPEC D2
    q = queue()
    push(q, delay_ms=500)
    push(q)
    assert pop(q) == [1]
    assert q.next_ms(NOW) == NOW + 500
    assert pop(q, now=NOW + 499) == []
    assert pop(q, now=NOW + 500) == [0]


def test_an_expired_job_is_never_delivered() -> None:  # SPEC D2
    q = queue()
    push(q, 2, ttl_ms=100)
    assert pop(q, 1, NOW + 99) == [0]
    assert pop(q, 1, NOW + 100) == []
    assert q.waiting == 0


def test_a_tick_sweeps_out_expired_jobs() -> None:
    q = queue()
    push(q, 2, ttl_ms=100)
    q.tick(NOW + 1_000, luck)
    assert q.ledger.open_jobs == 0
    assert q.next_ms(NOW + 1_000) is None


# -- leases ------------------------------------------------------------------


def test_a_leased_job_is_not_given_to_anyone_else() -> None:  # SPEC D4
    q = queue()
    push(q)
    lease(q)
    assert pop(q, holder=OTHER) == []


def test_a_late_ack_is_refused_and_harms_nobody() -> None:  # SPEC D4
    q = queue(visibility_timeout_ms=100)
    push(q)
    late = lease(q)
    q.tick(NOW + 100, luck)
    current = lease(q, now=NOW + 100, holder=OTHER)
    with pytest.raises(LeaseLost):
        q.ack(late.token, None)
    assert q.ack(current.token, None) == []
    assert q.ledger.open_jobs == 0


def test_a_renewed_lease_does_not_expire() -> None:  # SPEC D4
    q = queue(visibility_timeout_ms=100)
    push(q)
    held = lease(q)
    assert q.renew(held.token, NOW + 90) == NOW + 190
    q.tick(NOW + 150, luck)
    assert pop(q, now=NOW + 150) == []
    q.tick(NOW + 190, luck)
    assert pop(q, now=NOW + 190) == [0]


def test_some_jobs_of_a_lease_can_be_acked_and_others_not() -> None:
    q = queue()
    push(q, 10)
    held = lease(q)
    assert q.ack(held.token, [(2, 5), (7, 8)]) == []
    assert q.ack(held.token, [(4, 6)]) == [4]
    assert q.release_holder(ME, NOW, luck)
    assert pop(q) == [0, 1, 6, 8, 9]


def test_one_jobs_lease_is_found_among_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """F14: every lease of the queue was asked."""
    q = queue()
    push(q, 5_000)
    held = [lease(q, 1) for _ in range(5_000)]
    asked = 0
    holds = Lease.holds

    def counting(self: Lease, job: int) -> bool:
        nonlocal asked
        asked += 1
        return holds(self, job)

    monkeypatch.setattr(Lease, "holds", counting)
    leases = q.dispatch.leases
    assert leases.hold(4_999)
    assert leases.find(ME, 2_500) is held[2_500]
    assert leases.find(OTHER, 2_500) is None
    q.ack(held[2_500].token, None)
    assert not leases.hold(2_500)
    assert asked <= 4 * 256  # four lookups, each among neighbours


def test_acking_a_job_twice_in_one_request_counts_once() -> None:
    q = queue()
    push(q, 3)
    held = lease(q)
    assert q.ack(held.token, [(0, 1), (0, 1)]) == []
    assert q.dispatch.leases.jobs == 2


def test_a_lost_consumer_releases_its_jobs_at_once() -> None:  # SPEC D8
    q = queue()
    push(q, 100)
    lease(q)
    assert q.release_holder(ME, NOW, luck)
    assert not q.release_holder(OTHER, NOW, luck)
    assert len(pop(q, holder=OTHER)) == 100


def reported(q: QueueEngine, limit: int = 100, now: int = NOW) -> Lease:
    held = q.pop(ME, limit, now, 1_000, reports=True)
    assert held is not None
    return held


def test_what_a_lost_worker_had_begun_counts_and_what_it_had_only_fetched_does_not() -> None:
    """F9, SPEC D5; all of it is free at once, whatever the back-off (SPEC D8)."""
    q = queue(max_retries=2, backoff="fixed", backoff_delay_ms=60_000)
    push(q, 4)
    held = reported(q)
    q.begin(held.token, [(1, 3)], NOW)
    q.ack(held.token, [(2, 3)])
    q.release_holder(ME, NOW, luck)
    assert [q.ledger.attempt(job) for job in (0, 1, 3)] == [1, 2, 1]
    assert pop(q) == [0, 1, 3]


def test_a_job_that_kills_its_workers_ends_among_the_dead_letters() -> None:
    """F9: it was delivered for ever."""
    q = queue(max_retries=2)
    push(q, 3)
    for _ in range(3):
        held = reported(q)
        q.begin(held.token, [(0, 1)], NOW)
        q.release_holder(ME, NOW, luck)
    assert list(q.ledger.dead) == [0]
    assert q.ledger.dead[0].cause == "lost"
    assert [q.ledger.attempt(job) for job in (1, 2)] == [1, 1]


def test_of_a_worker_that_reports_nothing_the_first_unsettled_job_is_presumed_begun() -> None:
    """F9 for clients without Q_BEGIN: a job that kills them comes to be first, and dies."""
    q = queue(max_retries=1)
    push(q, 3)
    deliveries = 0
    while 1 not in q.ledger.dead:
        held = lease(q)
        if held.holds(0):
            q.ack(held.token, [(0, 1)])
        q.release_holder(ME, NOW, luck)  # job 1 killed it
        deliveries += 1
    assert deliveries == 2
    assert pop(q) == [2]
    assert q.ledger.attempt(2) == 1


def test_a_start_that_is_only_presumed_makes_no_dead_letter_by_itself() -> None:
    q = queue(max_retries=0)
    push(q, 1)
    lease(q)
    q.release_holder(ME, NOW, luck)
    assert pop(q) == [0]
    q.release_holder(ME, NOW, luck)
    assert list(q.ledger.dead) == [0]


def test_a_lease_that_runs_out_counts_only_for_what_was_begun() -> None:
    q = queue()
    push(q, 3)
    held = reported(q)
    q.begin(held.token, [(0, 1)], NOW)
    q.tick(NOW + 1_000, luck)
    assert [q.ledger.attempt(job) for job in range(3)] == [2, 1, 1]


def test_beginning_jobs_of_a_lost_lease_does_nothing() -> None:
    q = queue()
    push(q, 2)
    held = reported(q)
    q.release_holder(ME, NOW, luck)
    q.begin(held.token, [(0, 2)], NOW)
    assert [q.ledger.attempt(job) for job in range(2)] == [1, 1]


def test_a_handler_that_hangs_loses_its_job_however_often_its_lease_is_renewed() -> None:
    """U9."""
    q = queue(time_limit_ms=5_000, max_retries=3)
    push(q, 3)
    held = reported(q)
    q.begin(held.token, [(0, 1)], NOW)
    for second in range(1, 5):
        q.renew(held.token, NOW + 1_000 * second, 2_000)
        q.begin(held.token, [(1, 2)], NOW + 1_000 * second)
        q.tick(NOW + 1_000 * second, luck)
    assert q.next_ms(NOW + 4_000) == NOW + 5_000
    q.tick(NOW + 5_000, luck)
    assert q.ledger.failures[0].history[-1][1] == "the handler ran longer than 5000 ms"
    assert pop(q, now=NOW + 5_000) == [0]
    assert held.holds(1)
    assert held.holds(2)
    q.tick(NOW + 6_000, luck)  # the other one hangs too: nothing that it fetched is kept back
    assert pop(q, now=NOW + 6_000) == [1, 2]
    assert q.ledger.attempt(2) == 1


def test_what_ended_long_before_its_time_is_forgotten() -> None:
    q = queue(time_limit_ms=3_600_000)
    push(q, 20_000)
    for _ in range(20_000):
        held = q.pop(ME, 1, NOW, 3_600_000, reports=True)
        assert held is not None
        q.begin(held.token, held.runs, NOW)
        q.ack(held.token, None)
    dispatch = q.dispatch
    assert max(len(dispatch._expiries), len(dispatch._limits)) < 3_000
    assert q.next_ms(NOW) == NOW + 3_600_000 or not dispatch._limits


def test_a_worker_that_reports_nothing_holds_n_jobs_n_times_the_limit() -> None:
    q = queue(time_limit_ms=1_000)
    push(q, 2)
    held = lease(q, lease_ms=500)
    for at in range(400, 2_000, 400):
        q.renew(held.token, NOW + at, 500)
    assert held.expires_ms == NOW + 2_000


# -- retries and death -------------------------------------------------------


def test_max_retries_n_means_one_plus_n_deliveries() -> None:  # SPEC D5
    q = queue(max_retries=2)
    push(q)
    for _ in range(3):
        q.nack(lease(q).token, None, "boom", NOW, luck)
    assert pop(q) == []
    letter, failures = q.ledger.dead[0], q.ledger.failures[0]
    assert (letter.cause, letter.died_ms, failures.count) == ("nack", NOW, 3)
    assert failures.history == [(NOW, "boom")] * 3


def test_a_timeout_counts_as_a_failure() -> None:  # SPEC D5
    q = queue(visibility_timeout_ms=10, max_retries=0)
    push(q)
    lease(q)
    q.tick(NOW + 10, luck)
    assert q.ledger.dead[0].cause == "timeout"


def test_a_rejected_job_dies_at_once() -> None:
    q = queue()
    push(q)
    q.nack(lease(q).token, None, "bad input", NOW, luck, retry=False)
    assert q.ledger.dead[0].cause == "rejected"


@pytest.mark.parametrize(
    ("given", "waits"),
    [
        ({"backoff": "none"}, [0, 0, 0]),
        ({"backoff": "fixed", "backoff_delay_ms": 70}, [70, 70, 70]),
        ({"backoff": "exponential", "backoff_delay_ms": 100, "backoff_jitter": 0}, [100, 200, 400]),
        ({"backoff": "exponential", "backoff_delay_ms": 100, "backoff_jitter": 1}, [50, 100, 200]),
        ({"backoff": "exponential", "backoff_delay_ms": 100, "backoff_jitter": 0,
          "backoff_max_ms": 150}, [100, 150, 150]),
    ],
)  # fmt: skip
def test_each_backoff_policy_waits_as_it_says(given: dict[str, Any], waits: list[int]) -> None:
    q, now = queue(**given), NOW
    push(q)
    for wait_ms in waits:
        q.nack(lease(q, now=now).token, None, "boom", now, luck)
        assert wait_ms == 0 or pop(q, now=now + wait_ms - 1) == []
        now += wait_ms


def test_replay_resets_attempts_and_delete_removes() -> None:  # SPEC D6
    q = queue(max_retries=0)
    push(q, 3)
    q.nack(lease(q).token, None, "boom", NOW, luck)
    assert q.replay([0, 0, 99], NOW) == 1
    assert pop(q) == [0]
    assert q.ledger.attempt(0) == 1
    assert q.delete_dead([1, 0, 77]) == 1
    assert list(q.ledger.dead) == [2]


# -- dedup -------------------------------------------------------------------


def test_a_taken_dedup_key_drops_the_new_job() -> None:  # SPEC D2
    q = queue()
    first = push(q, dedup_keys=["a"])
    again = q.push(NewJobs(3, b"", dedup_keys=["b", "a", "b"]), NOW)
    assert again.instead == {1: first, 2: again.base}
    assert pop(q) == [first, again.base]


def test_of_many_that_replace_one_another_all_stand_for_the_last() -> None:  # SPEC D2
    q = queue()
    keys: list[str | None] = ["a", "a", "b", "a", "a"]
    taken = q.push(NewJobs(5, b"", dedup_keys=keys, replace=True), NOW)
    assert taken.instead == dict.fromkeys((0, 1, 3), 4)
    assert q.waiting == 2


def test_a_queue_remembers_what_was_replaced_for_a_while() -> None:  # SPEC D2
    q = queue()
    for _ in range(MOST_REPLACED + 2):
        push(q, dedup_keys=["a"], replace=True)
    assert (state_of(q, 0), state_of(q, 1), state_of(q, 2)) == ("done", "replaced", "replaced")
    assert q.ledger.replaced[1] == 2
    assert restore(snapshot(q.ledger, Places()))[0].replaced == q.ledger.replaced


def test_a_replayed_letter_does_not_stand_beside_a_job_of_its_dedup_key() -> None:  # SPEC D2, D6
    q = queue(max_retries=0)
    for _ in range(2):
        push(q, dedup_keys=["a"])
        q.nack(lease(q).token, None, "x", NOW, luck)
    assert q.replay(list(q.ledger.dead), NOW) == 1
    with pytest.raises(Conflict, match="dedup_key 'a'"):
        q.replay(list(q.ledger.dead), NOW)
    ledger = restore(snapshot(q.ledger, Places()))[0]
    assert ledger.dedup == q.ledger.dedup == {"a": 0}
    assert q.push(NewJobs(1, b"", dedup_keys=["a"]), NOW).instead == {0: 0}
    q.ack(lease(q).token, None)
    assert q.replay(list(q.ledger.dead), NOW) == 1


def test_a_dedup_key_is_free_again_when_its_job_is_over() -> None:
    q = queue()
    push(q, dedup_keys=["a"])
    q.ack(lease(q).token, None)
    assert q.push(NewJobs(1, b"", dedup_keys=["a"]), NOW).instead == {}


def test_replace_puts_the_new_job_in_the_place_of_the_waiting_one() -> None:
    q = queue()
    push(q, dedup_keys=["a"], delay_ms=1_000)
    new = push(q, dedup_keys=["a"], replace=True)
    assert q.dispatch.delays.jobs == 0
    assert pop(q, now=NOW + 2_000) == [new]


def test_replace_leaves_a_running_job_alone() -> None:
    q = queue()
    push(q, dedup_keys=["a"])
    running = lease(q)
    new = push(q, dedup_keys=["a"], replace=True)
    assert q.ack(running.token, None) == []
    assert pop(q) == [new]


# -- keys, rates, pause ------------------------------------------------------


def test_fair_queues_take_turns_between_keys() -> None:  # SPEC D9
    q = queue(fair=True)
    push(q, 4, keys=["a"] * 4)
    push(q, 2, keys=["b"] * 2)
    push(q, 1)
    assert pop(q) == [0, 4, 6, 1, 5, 2, 3]


def test_a_key_never_has_more_jobs_at_work_than_allowed() -> None:  # SPEC D9
    q = queue(key_concurrency=1)
    push(q, 4, keys=["a", "a", "b", "a"])
    held = lease(q)
    assert jobs(held) == [0, 2]
    q.ack(held.token, [(2, 3)])
    assert pop(q) == []
    q.ack(held.token, [(0, 1)])
    assert pop(q) == [1]


def test_the_rate_limit_lets_a_burst_and_then_so_many_per_second() -> None:  # SPEC D9
    q = queue(rate=10, rate_burst=2)
    push(q, 5)
    assert pop(q) == [0, 1]
    assert q.dispatch.next_delivery_ms(NOW) == NOW + 100
    assert pop(q, now=NOW + 99) == []
    assert pop(q, now=NOW + 100) == [2]


def test_a_long_pause_allows_no_more_than_the_burst() -> None:  # SPEC D9
    q = queue(rate=10, rate_burst=2)
    push(q, 9)
    assert len(pop(q, now=NOW + 60_000)) == 2


def test_a_rate_per_key_holds_back_only_that_key() -> None:  # SPEC D9
    q = queue(key_rate=1)
    push(q, 3, keys=["a", "a", "b"])
    assert pop(q) == [0, 2]
    assert q.next_ms(NOW) == NOW + 1_000
    q.tick(NOW + 1_000, luck)
    assert pop(q, now=NOW + 1_000) == [1]


def test_options_change_for_jobs_already_waiting() -> None:  # SPEC D1
    q = queue()
    push(q, 4, keys=["a", "a", "b", "b"])
    q.update(options({"fair": True}, q.options), NOW)
    assert pop(q, 2) == [0, 2]
    q.update(options({"fair": False}, q.options), NOW)
    assert pop(q) == [1, 3]


def test_a_paused_queue_delivers_nothing() -> None:  # SPEC D9
    q = queue()
    push(q)
    q.pause(True)
    assert pop(q) == []
    q.pause(False)
    assert pop(q) == [0]


def test_purge_removes_what_has_not_started() -> None:  # SPEC D1
    q = queue()
    push(q, 5)
    push(q, 2, delay_ms=100)
    held = lease(q, 2)
    assert q.purge() == 5
    assert q.ack(held.token, None) == []
    assert (q.ledger.open_jobs, q.waiting) == (0, 0)


def test_a_scheduled_job_can_be_listed_and_cancelled() -> None:  # SPEC D2
    q = queue()
    push(q, 3, delay_ms=100)
    push(q, 1, delay_ms=50)
    assert q.dispatch.delays.upcoming(2, 0) == [(NOW + 50, 3), (NOW + 100, 0)]
    assert q.cancel(1)
    assert not q.cancel(1)
    assert pop(q, now=NOW + 100) == [0, 2, 3]
    assert not q.cancel(0)


def test_a_cron_schedule_pushes_once_per_match() -> None:  # SPEC D9
    q = queue()
    due = q.set_cron("report", "*/5 * * * *", b"block", NOW, 9)
    assert q.next_ms(NOW) == due
    q.tick(due - 1, luck)
    assert q.waiting == 0
    q.tick(due + 3_600_000, luck)
    assert q.waiting == 1
    q.drop_cron("report")
    with pytest.raises(NotFound):
        q.drop_cron("report")


def test_a_full_queue_skips_a_scheduled_run() -> None:
    q = queue(max_jobs=1)
    push(q)
    due = q.set_cron("report", "@daily", b"block", NOW)
    q.tick(due, luck)
    assert (q.waiting, q.ledger.schedules.by_name["report"].next_ms) == (1, due + 86_400_000)


def test_results_are_kept_for_as_long_as_asked() -> None:  # SPEC D9
    q = queue(result_ttl_ms=100)
    push(q, 2)
    q.ack(lease(q, 1).token, None, {0: b"42", 1: b"not mine"}, NOW)
    assert q.result(0, NOW + 99) == b"42"
    assert q.result(0, NOW + 100) is None
    assert q.result(1, NOW) is None
    q.tick(NOW + 100, luck)
    assert q.ledger.results.by_job == {}


def test_results_go_when_their_time_is_over_whatever_came_before_them() -> None:  # SPEC D9
    q = queue(result_ttl_ms=1_000_000)
    push(q, 2)
    q.ack(lease(q, 1).token, None, {0: b"long"}, NOW)
    q.update(options({"result_ttl_ms": 5_000}, q.options), NOW)
    q.ack(lease(q, 1).token, None, {1: b"short"}, NOW)
    assert q.next_ms(NOW) == NOW + 5_000
    q.tick(NOW + 5_000, luck)
    assert list(q.ledger.results.by_job) == [0]
    assert q.next_ms(NOW + 5_000) == NOW + 1_000_000


def test_a_job_that_nobody_works_on_has_no_progress() -> None:  # SPEC D9
    q = queue()
    push(q)
    held = lease(q)
    q.report_progress(held.token, 0, b"half")
    q.release(held.token, None, NOW)
    assert q.progress == {}


def test_only_the_holder_reports_progress() -> None:  # SPEC D9
    q = queue()
    push(q, 2)
    held = lease(q, 1)
    q.report_progress(held.token, 0, b"half")
    with pytest.raises(LeaseLost):
        q.report_progress(held.token, 1, b"half")
    q.ack(held.token, None)
    assert q.progress == {}


# -- bad input ---------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [{"priority": 256}, {"priority": -1}, {"delay_ms": -1}, {"delay_ms": 10**15}, {"ttl_ms": -5},
     {"keys": ["a", "b"]}, {"dedup_keys": []}],
)  # fmt: skip
def test_a_push_out_of_range_is_refused_and_changes_nothing(given: dict[str, Any]) -> None:
    q = queue()
    before = list(q.outbox)
    with pytest.raises(InvalidInput):
        push(q, **given)
    assert q.outbox == before


@pytest.mark.parametrize("limit", [0, -1, 10_001, 10**12])
def test_a_pop_of_a_senseless_size_is_refused(limit: int) -> None:
    with pytest.raises(InvalidInput, match="batch"):
        queue().pop(ME, limit, NOW)


def test_an_ack_of_a_huge_range_is_refused() -> None:
    q = queue()
    push(q)
    held = lease(q)
    with pytest.raises(InvalidInput):
        q.ack(held.token, [(0, 10**12)])
    assert q.ack(held.token, [(0, 1)]) == []


def test_a_full_queue_refuses_pushes() -> None:
    q = queue(max_jobs=3)
    push(q, 3)
    with pytest.raises(Overloaded):
        push(q)


def test_a_full_queue_takes_a_push_that_adds_nothing() -> None:  # SPEC D2
    q = queue(max_jobs=2)
    push(q, 2, dedup_keys=["a", "b"])
    assert q.push(NewJobs(1, b"block", dedup_keys=["a"]), NOW).instead == {0: 0}
    assert q.push(NewJobs(1, b"block", dedup_keys=["b"], replace=True), NOW).instead == {}
    assert (q.waiting, pop(q)) == (2, [0, 2])
    with pytest.raises(QueueFull):  # a leased job stays, whatever replaces it
        q.push(NewJobs(1, b"block", dedup_keys=["a"], replace=True), NOW)


def test_jobs_that_share_a_dedup_key_need_room_for_one() -> None:  # SPEC D2
    q = queue(max_jobs=2)
    push(q, 5, dedup_keys=["a", "a", "b", "a", "b"])
    assert q.waiting == 2
    with pytest.raises(QueueFull):
        push(q, 1, dedup_keys=["c"])
    with pytest.raises(InvalidInput):
        push(q, 3, dedup_keys=["c", "d", "e"])


@pytest.mark.parametrize(
    "given",
    [{"visibility_timeout_ms": 0}, {"max_retries": -1}, {"backoff": "linear"}, {"colour": "red"},
     {"persistence": "memory"}, {"rate": -1}, {"max_retries": "5"}],
)  # fmt: skip
def test_unknown_and_bad_options_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption):
        options(given)


# -- recovery ----------------------------------------------------------------


def test_the_records_give_back_the_queue() -> None:  # SPEC D7
    q = queue(max_retries=1, backoff="fixed", backoff_delay_ms=500)
    push(q, 5, priority=3)
    push(q, 2, delay_ms=1_000)
    push(q, 1, dedup_keys=["k"])
    held = lease(q, 3)
    q.ack(held.token, [(0, 1)])
    q.nack(held.token, [(1, 2)], "boom", NOW, luck)
    q.nack(held.token, [(2, 3)], "bad", NOW, luck, retry=False)
    again = recovered(q)
    assert pop(again) == [3, 4, 7]
    assert pop(again, now=NOW + 500) == [1]
    assert again.ledger.attempt(1) == 2
    assert list(again.ledger.dead) == [2]
    assert pop(again, now=NOW + 1_000) == [5, 6]
    assert again.push(NewJobs(1, b"", dedup_keys=["k"]), NOW).instead == {0: 7}
    assert again.options == QueueOptions(
        max_retries=1, backoff=q.options.backoff, backoff_delay_ms=500
    )


def test_a_snapshot_gives_back_the_ledger() -> None:  # SPEC D7
    q = queue(max_retries=0, result_ttl_ms=1_000)
    push(q, 4, keys=["a", None, "b", None], dedup_keys=["x", None, None, None], priority=3)
    push(q, 2, delay_ms=500)
    q.set_cron("c", "@daily", b"block", NOW)
    held = lease(q, 2)
    q.nack(held.token, [(0, 1)], "boom", NOW, luck)
    q.ack(held.token, [(1, 2)], {1: b"result"}, NOW)
    places = Places()
    places.add(0, 5, NOW)
    places.move(0, 9, NOW)
    ledger, again = restore(snapshot(q.ledger, places))
    for name in ("open_jobs", "next_job", "dead", "failures", "keys", "dedup", "totals",
                 "options", "incarnation"):  # fmt: skip
        assert getattr(ledger, name) == getattr(q.ledger, name), name
    assert ledger.schedules.by_name == q.ledger.schedules.by_name != {}
    assert ledger.results.by_job == q.ledger.results.by_job != {}
    assert ledger.open_jobs == 4
    assert (again.find(0).offset, again.find(1).offset) == (9, 5)
    with pytest.raises(Corrupt):
        restore(b"\x80")


def test_places_are_trimmed_and_moved_jobs_kept() -> None:
    places = Places()
    for number in range(10):
        places.add(number * 10, number, NOW + number)
    places.move(3, 50, NOW)
    places.move(4, 51, NOW)
    assert (places.find(39), places.end_of(39)) == (JobPlace(30, 3, NOW + 3), 40)
    assert places.end_of(95) is None
    assert places.first_job_from(4, -1) == 40
    places.trim(45, lambda job: job == 4)
    assert places.find(45).offset == 4
    assert (places.find(3).offset, places.is_moved(4)) == (50, False)
    assert (places.lowest_moved(99), places.moved_from(51)) == (50, 0)


def test_a_million_single_pushes_are_few_objects() -> None:
    q = queue()
    for _ in range(5_000):
        push(q)
    assert len(list(q.ledger.batches)) <= 5
    assert len(list(q.dispatch.lanes)) == 1
