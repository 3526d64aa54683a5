"""Leases and rate limits against what they promise, whatever is asked and when (SPEC O1)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nexo.brokers.store.engine import StoreEngine

NOW = 1_700_000_000_000
STEPS = st.integers(0, 400)


@given(
    limit=st.integers(1, 3),
    acts=st.lists(
        st.tuples(
            st.sampled_from(["take", "renew", "release"]),
            st.sampled_from("abcd"),
            st.integers(1, 900),
            STEPS,
        ),
        max_size=60,
    ),
)
def test_leases_follow_their_model(limit: int, acts: list[tuple[str, str, int, int]]) -> None:
    store, now_ms = StoreEngine(), NOW
    due: dict[str, int] = {}
    numbers: dict[str, int] = {}
    highest = 0
    for act, holder, ttl_ms, step_ms in acts:
        now_ms += step_ms
        due = {name: at_ms for name, at_ms in due.items() if at_ms > now_ms}
        if act == "take":
            lease = store.leases.take("k", holder, ttl_ms, limit, now_ms)
            if holder in due:
                assert lease.number == numbers[holder]
            elif len(due) < limit:
                assert lease.number is not None
                assert lease.number > highest
                highest = numbers[holder] = lease.number
            else:
                assert lease.number is None
                assert sum(at_ms > now_ms + lease.retry_ms for at_ms in due.values()) < limit
                assert sum(at_ms > now_ms + lease.retry_ms - 1 for at_ms in due.values()) >= limit
                continue
            due[holder] = now_ms + ttl_ms
        elif act == "renew":
            assert store.leases.renew("k", holder, ttl_ms, now_ms) == (holder in due)
            if holder in due:
                due[holder] = now_ms + ttl_ms
        else:
            assert store.leases.release("k", holder, now_ms) == (due.pop(holder, None) is not None)
        assert (store.inspect("k", now_ms) is not None) or not due
    store.leases.release("k", "a", now_ms + 1_000)
    store.keyspace.sweep(now_ms + 10_000, 100)
    assert store.keyspace.used_bytes == 0


@given(
    limit=st.integers(1, 6),
    window_ms=st.integers(1, 1_000),
    asks=st.lists(st.tuples(STEPS, st.integers(1, 3)), max_size=60),
)
def test_no_window_has_more_than_the_limit(
    limit: int, window_ms: int, asks: list[tuple[int, int]]
) -> None:
    store, now_ms = StoreEngine(), NOW
    allowed: list[tuple[int, int]] = []
    for step_ms, cost in asks:
        now_ms += step_ms
        if cost > limit:
            continue
        rate = store.rates.window("k", limit, window_ms, cost, now_ms)
        if rate.allowed:
            allowed.append((now_ms, cost))
            inside = sum(c for at_ms, c in allowed if at_ms > now_ms - window_ms)
            assert inside <= limit
        else:
            # What was long ago is forgotten: a 64th of the window late at most.
            slack_ms = window_ms // 64 + 2
            inside = sum(c for at_ms, c in allowed if at_ms > now_ms - window_ms - slack_ms)
            assert inside + cost > limit
            assert 0 < rate.retry_ms <= window_ms + slack_ms


@given(
    capacity=st.integers(1, 5),
    per_second=st.integers(1, 50),
    asks=st.lists(st.tuples(STEPS, st.integers(1, 3)), max_size=60),
)
def test_a_bucket_gives_its_capacity_and_its_rate(
    capacity: int, per_second: int, asks: list[tuple[int, int]]
) -> None:
    store, now_ms = StoreEngine(), NOW
    tokens, last_ms = float(capacity), NOW
    for step_ms, cost in asks:
        now_ms += step_ms
        if cost > capacity:
            continue
        tokens = min(capacity, tokens + (now_ms - last_ms) * per_second / 1_000)
        last_ms = now_ms
        rate = store.rates.bucket("k", capacity, per_second, cost, now_ms)
        if abs(tokens - cost) < 1e-6:  # on the edge, rounding decides
            tokens -= cost if rate.allowed else 0
            continue
        assert rate.allowed == (tokens > cost)
        tokens -= cost if rate.allowed else 0
        assert abs(rate.remaining - tokens) < 1e-6
