"""Every limit of `nexo.limits` is tried by a test: those below, or those that are named here."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nexo import limits
from nexo.admin.app import AdminApp
from nexo.admin.context import NOBODY, ApiContext
from nexo.admin.http.sessions import Sessions, _Session
from nexo.config import Settings
from nexo.errors import NexoError, Overloaded
from nexo.replication.tenure import FOREVER
from nexo.server.processes.admin_worker import _config
from nexo.services.replicating import Replicating
from nexo.services.store.service import StoreService
from tests.unit.services.store.test_service import StoreRuntime

ROOT = Path(__file__).parents[2]
SQL = "integration/test_admin_sql.py"
ENTRANCES, HTTP = "integration/test_entrances.py", "unit/server/processes/test_http_server.py"
STOPPING = "unit/server/test_host.py"
HERE, LOGINS = "unit/test_limits.py", "integration/test_admin_login.py"
JOBS, SHARED = "unit/services/queue/test_work.py", "unit/services/stream/groups/test_shared.py"
SHIPPING = "unit/services/test_replicating.py"
DECISIONS = ("unit/access/test_login.py", "test_decisions_are_remembered_within_bounds")
LARGE = "kafka/test_large_requests.py"
GARBAGE = "kafka/test_garbage.py"
LOCKED_OUT = (DECISIONS[0], "test_a_user_is_locked_after_some_failures_and_free_again_later")
TRIED = {
    "FIRST_BYTES_S": (ENTRANCES, "test_a_connection_that_says_nothing_is_closed"),
    "TLS_HANDSHAKE_S": (ENTRANCES, "test_a_tls_handshake_that_is_not_finished_is_given_up"),
    "LOGIN_S": (ENTRANCES, "test_a_first_request_that_does_not_end_is_given_up"),
    "LOCKED_OUT_MS": LOCKED_OUT,
    "LOCKED_OUT_PAUSE_S": ("integration/test_access.py", "test_who_guesses_waits_for_each_answer"),
    "BEFORE_LOGIN_BYTES": (ENTRANCES, "test_before_the_login_a_large_request_is_refused"),
    "FRAME_BYTES_PER_S": (ENTRANCES, "test_a_request_that_trickles_in_is_given_up"),
    "FAREWELL_S": (ENTRANCES, "test_a_stop_does_not_wait_for_a_client_that_reads_nothing"),
    "LONGEST_FAREWELL_S": (HTTP, "test_a_reply_before_the_end_of_the_body_is_followed_by_the_end"),
    "SETTLING_S": (STOPPING, "test_a_stop_waits_for_what_clients_hold_as_long_as_they_finish"),
    "IDLE_SETTLING_S": (STOPPING, "test_a_stop_does_not_wait_for_those_who_finish_nothing"),
    "LONGEST_SYNC_S": (STOPPING, "test_waiting_for_a_slow_disk_is_progress"),
    "CLIENT_NAME_CHARS": (ENTRANCES, "test_a_clients_name_forges_no_log_line"),
    "LARGE_REQUESTS_BYTES": (LARGE, "test_further_large_requests_wait_for_room"),
    "LARGE_REQUEST_BYTES_PER_S": (LARGE, "test_who_keeps_others_waiting_must_send"),
    "KAFKA_REQUEST_BYTES": (LARGE, "test_a_request_over_the_limit_is_refused_by_partition"),
    "KAFKA_UNPACKED_BYTES": (GARBAGE, "test_what_unpacks_to_too_much_is_refused"),
    "KAFKA_BATCH_RECORDS": (GARBAGE, "test_a_batch_of_too_many_records_is_refused"),
    "KAFKA_ELEMENTS": ("kafka/test_frames.py", ""),
    "PIPELINED_REQUESTS": ("kafka/test_frames.py", ""),
    "QUEUE_WAIT_MS": (JOBS, "test_a_wait_for_longer_than_its_limit_is_refused"),
    "LEASE_WAIT_MS": ("unit/services/store/test_service.py", "test_a_long_wait_ends_at_its_limit"),
    "STREAM_WAIT_MS": (SHARED, "test_a_long_poll_ends_at_its_limit"),
    "DECISIONS": DECISIONS,
    "DECISION_NAME_CHARS": DECISIONS,
    "REPLY_PAYLOADS": (HERE, "test_a_reply_of_the_store_is_bounded_by_payloads"),
    "PAGE_BYTES": ("unit/brokers/store/test_engine.py", "test_a_page_of_long_keys_is_short"),
    "HTTP_CONNECTIONS": (HTTP, "test_silent_connections_give_way_to_one_that_asks"),
    "HTTP_CONNECTIONS_PER_ADDRESS": (HTTP, "test_silent_connections_give_way_to_one_that_asks"),
    "HTTP_REQUEST_S": (HTTP, "test_headers_have_a_deadline"),
    "HTTP_BODY_BYTES_PER_S": (HTTP, "test_a_body_that_arrives_steadily_may_take_longer"),
    "HTTP_LOGIN_BYTES": (LOGINS, "test_a_login_is_small"),
    "HTTP_LIVE_VIEWS": (HERE, "test_one_live_view_too_many_is_refused"),
    "HTTP_QUERIES": (SQL, "test_one_question_too_many_is_refused"),
    "HTTP_QUERY_MEMORY_BYTES": (SQL, "test_a_question_that_needs_too_much_memory_is_refused"),
    "HTTP_QUERY_REPLY_BYTES": (SQL, "test_a_reply_has_a_bound_in_bytes_too"),
    "SOCKET_SUBSCRIPTIONS": ("integration/test_http.py", ""),
    "SOCKET_PING_S": (HERE, "test_web_sockets_are_pinged"),
    "SOCKET_FRAME_BYTES": ("integration/test_http.py", ""),
    "HTTP_LOGINS": (HERE, "test_the_login_used_least_recently_ends_for_a_new_one"),
    "HTTP_LOGINS_PER_USER": (LOGINS, "test_a_user_who_logs_in_often_throws_nobody_else_out"),
    "PROBES": ("unit/server/processes/test_health.py", ""),
    "PROBE_BYTES": ("unit/server/processes/test_health.py", ""),
    "PROBE_S": ("unit/server/processes/test_health.py", ""),
    "WAITING_FOR_BROKER": ("unit/server/processes/test_supervisor.py", ""),
    "UNSHIPPED_BYTES": (HERE, "test_what_waits_for_the_object_store_is_dropped_beyond_the_limit"),
    "LOG_BYTES_PER_BASE": (HERE, "test_a_base_is_due_after_so_many_bytes_or_objects"),
    "LOG_OBJECTS_PER_BASE": (HERE, "test_a_base_is_due_after_so_many_bytes_or_objects"),
    "BUCKET_LOOK_S": (SHIPPING, "test_a_bucket_that_lost_what_was_put_is_noticed"),
    "LAST_PUTS_MS": (HERE, "test_a_stop_does_not_wait_long_for_the_object_store"),
}  # fmt: skip
"""By limit: the file under ``tests`` and the test; without one, the file names the limit."""

NAMES = [name for name in vars(limits) if name.isupper() and name not in ("KIB", "MIB")]


@pytest.mark.parametrize("name", NAMES)
def test_each_limit_is_tried_and_described(name: str) -> None:
    assert name in TRIED, "say here which test tries it"
    path, test = TRIED[name]
    text = (ROOT / "tests" / path).read_text(encoding="utf-8")
    assert re.search(rf"def {test}\(" if test else rf"\b{name}\b", text)
    page = (ROOT / "docs" / "reference" / "limits.md").read_text(encoding="utf-8")
    assert f"| `{name}` |" in page


def test_no_limit_is_listed_that_is_gone() -> None:
    assert set(TRIED) <= set(NAMES)


# -- those that no other test tries --------------------------------------------------------


def test_a_reply_of_the_store_is_bounded_by_payloads() -> None:
    store = StoreService(StoreRuntime(max_payload_bytes=1_000))._store
    values = {str(n): b"x" * 900 for n in range(2 * limits.REPLY_PAYLOADS)}
    store.mset(values, 0)
    assert store.mget(list(values)[: limits.REPLY_PAYLOADS], 0)
    with pytest.raises(NexoError, match="ask for less"):
        store.mget(list(values), 0)


async def test_one_live_view_too_many_is_refused() -> None:
    open_views: set[object] = set(range(limits.HTTP_LIVE_VIEWS))
    context = ApiContext(
        cast("Any", None), cast("Any", None), cast("Any", None), asyncio.Event(), open_views
    )
    with pytest.raises(Overloaded, match="live views"):
        async with context.own_client():
            pass


def test_web_sockets_are_pinged() -> None:
    config = _config(Settings(), cast("AdminApp", SimpleNamespace(app=None)))
    assert (config.ws_ping_interval, config.ws_ping_timeout) == (limits.SOCKET_PING_S,) * 2


class Closing:
    """A client that can be closed."""

    async def close(self) -> None: ...


async def test_the_login_used_least_recently_ends_for_a_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "HTTP_LOGINS", 3)
    sessions = Sessions(cast("Any", None))
    now_s = asyncio.get_running_loop().time()
    for name, used_s in (("a", 2.0), ("b", 1.0), ("c", 3.0)):
        client = cast("Any", Closing())
        sessions._open[name] = _Session(NOBODY, client, name, now_s + used_s, 0)
    await sessions._forget_idle(NOBODY)
    assert set(sessions._open) == {"a", "c"}


class Recorded:
    """Files of which some operations wait to be shipped."""

    def __init__(self) -> None:
        self.recorded_bytes = 0
        self.recorded = False
        self.paused = False

    def pause(self) -> None:
        self.paused = True


def replicating(files: Recorded) -> Replicating:
    shipper = SimpleNamespace(shipped=0, epoch=1, waiting_bytes=0, discard=lambda: None)
    clock, settings = SimpleNamespace(now_ms=lambda: 0), Settings(replicate_wait_ms=3_600_000)
    lease = SimpleNamespace(get=lambda: (FOREVER, 1.0))
    parts = (files, Path(), shipper, None, settings, clock, lease, None, None)
    return Replicating(*cast("Any", parts))


async def test_what_waits_for_the_object_store_is_dropped_beyond_the_limit() -> None:
    files = Recorded()
    shipping = replicating(files)
    files.recorded_bytes = limits.UNSHIPPED_BYTES
    shipping._bound_memory()
    assert not files.paused
    files.recorded_bytes += 1
    shipping._bound_memory()
    assert files.paused


async def test_a_base_is_due_after_so_many_bytes_or_objects() -> None:
    bases = replicating(Recorded())._bases
    assert not bases.is_due()
    bases.log_bytes = limits.LOG_BYTES_PER_BASE
    assert bases.is_due()
    bases.log_bytes, bases.log_objects = 0, limits.LOG_OBJECTS_PER_BASE
    assert bases.is_due()


async def test_a_stop_does_not_wait_long_for_the_object_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def never(self: Replicating, ticket: int) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(limits, "LAST_PUTS_MS", 10)
    monkeypatch.setattr(Replicating, "gather", lambda self: 1)
    monkeypatch.setattr(Replicating, "all_shipped", never)
    assert not await replicating(Recorded()).drain()
