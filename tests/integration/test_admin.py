"""The admin API: every look and every action, checked through the SDK (SPEC K3, K4)."""

from __future__ import annotations

import json
import os
import re
import signal
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import nexo
from nexo.admin.api import TABLE
from nexo.admin.http.replies import STATUS
from nexo.model import Broker
from nexo.protocol import stream as wire
from nexo.protocol.ops import Op
from nexo.protocol.stream_ordered import Commit
from nexo.testing import Process, process
from tests.integration.admin_api import ACTION, Api, value
from tests.processes import named
from tests.timing import wait_until

_numbers = count()
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    with process(tmp_path_factory.mktemp("admin") / "nexo") as server:
        Api(server.http_url).wait_ready()
        yield server


@pytest.fixture
def api(running: Process) -> Api:
    return Api(running.http_url)


@pytest.fixture
def sdk(running: Process) -> Iterator[nexo.Client]:
    with nexo.connect(running.url) as client:
        yield client


@pytest.fixture
def name() -> str:
    """A name nobody used, with what names may hold."""
    return f"team/a:{next(_numbers)}.x"


# -- the server -------------------------------------------------------------------------


def test_the_dashboards_files_are_served_and_fetched_again_only_when_they_change(api: Api) -> None:
    home = api.request("GET", "/")
    assert (home.status, home.headers["content-type"]) == (200, "text/html; charset=utf-8")
    script = api.request("GET", "/js/main.js")
    assert "javascript" in script.headers["content-type"]
    static = ROOT / "src/nexo/admin/static"
    assert (home.body, script.body) == (
        (static / "index.html").read_bytes(),
        (static / "js/main.js").read_bytes(),
    )
    again = api.request("GET", "/js/main.js", headers={"if-none-match": script.headers["etag"]})
    assert (again.status, again.body) == (304, b"")
    assert api.request("HEAD", "/index.html").status == 200
    for path in ("/js", "/nothing.js", "/js/../../app.py", "/%2e%2e/app.py", "//etc/passwd"):
        assert api.request("GET", path).status == 404, path
    assert api.request("POST", "/js/main.js").status in (403, 405)


def test_health_and_ready_say_that_every_broker_answers(api: Api) -> None:  # SPEC K4
    assert api.request("GET", "/health").json == {"status": "ok"}
    ready = api.request("GET", "/ready")
    assert ready.status == 200
    assert ready.json["brokers"] == dict.fromkeys(("store", "pubsub", "queue", "stream"), True)


def test_the_overview_shows_rates_soon(api: Api, sdk: nexo.Client) -> None:
    for n in range(200):
        sdk.store.set(f"rate/{n}", n)

    def sampled() -> Any:
        store = overview_of_store(api)
        history = api.get("/history", broker="store", names="commands", seconds=60)
        return any(history["series"]["commands"]) and store["numbers"]["keys"] >= 200 and store

    store = wait_until(sampled, every_s=0.1)
    assert store["up"]
    assert store["numbers"]["rss_bytes"] > 1_000_000


def overview_of_store(api: Api) -> Any:
    return next(row for row in api.get("/overview")["brokers"] if row["name"] == "store")


def test_the_overview_shows_how_long_requests_take(api: Api, sdk: nexo.Client) -> None:
    def timed() -> Any:
        sdk.store.get("timed")
        store = overview_of_store(api)
        kinds = {row["op"]: row for row in store["requests"]}
        return store["numbers"]["request_p99_ms"] and kinds.get("map_get")

    kind = wait_until(timed)
    assert 0 < kind["p50_ms"] <= kind["p99_ms"]
    assert not kind["waits"]


def test_live_sends_an_overview_every_second(api: Api) -> None:
    with urllib.request.urlopen(f"{api.url}/api/v1/live", timeout=10) as events:
        assert events.headers["content-type"].startswith("text/event-stream")
        seen: list[int] = []
        while len(seen) < 3:
            line = events.readline()
            if line.startswith(b"data: "):
                seen.append(json.loads(line[6:])["now_ms"])
    assert seen[2] > seen[1] >= seen[0]


def test_metrics_are_valid_prometheus_text(api: Api, sdk: nexo.Client) -> None:  # SPEC K4
    queue = sdk.queue("metrics").create()
    queue.push("job")
    sdk.stream("metrics").create()
    sdk.stream("metrics").publish("record")
    sdk.stream("metrics").consume("readers").close()
    time.sleep(1.2)
    reply = api.request("GET", "/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = checked_families(reply.body.decode())
    assert families["nexo_up"] == "gauge"
    assert families["nexo_roundtrip_seconds"] == "histogram"
    assert families["nexo_queue_pushed_total"] == "counter"
    assert families["nexo_request_seconds"] == families["nexo_disk_sync_seconds"] == "histogram"
    text = reply.body.decode()
    assert 'nexo_request_seconds_count{broker="queue",op="q_push_many"}' in text
    assert 'nexo_queue_waiting_jobs{queue="metrics"} 1.0' in text
    assert "nexo_http_request_duration_seconds_bucket" in text


def checked_families(text: str) -> dict[str, str]:
    """The families of a metrics text, checked as ``promtool check metrics`` does."""
    kinds: dict[str, str] = {}
    helps: set[str] = set()
    seen: set[str] = set()
    for line in text.splitlines():
        if line.startswith("# HELP "):
            name, words = line[7:].split(" ", 1)
            assert name not in helps, f"second HELP of {name}"
            assert words
            helps.add(name)
        elif line.startswith("# TYPE "):
            name, kind = line[7:].split(" ")
            assert name in helps
            kinds[name] = kind
        else:
            sample = re.fullmatch(r"([a-z_]+)(\{.*\})? (\S+)", line)
            assert sample, line
            float(sample[3])
            assert line not in seen, f"twice: {line}"
            seen.add(line.rpartition(" ")[0])
            family = re.sub(r"_(bucket|sum|count|created)$", "", sample[1])
            assert family in kinds or sample[1] in kinds, line
    for name, kind in kinds.items():
        assert re.fullmatch(r"[a-z][a-z0-9_]*", name)
        if not name.endswith("_created"):
            assert (kind == "counter") == name.endswith("_total"), name
        assert not name.endswith(("_ms", "_milliseconds"))
    return kinds


def test_the_connections_of_one_application_are_one_row(api: Api, running: Process) -> None:
    with nexo.connect(running.url, client="shop-43") as client:
        client.store.set("k", 1)
        client.queue("of-an-application").create()
        (row,) = api.get("/clients", search="SHOP-43")["clients"]
    assert (row["name"], row["host"], row["brokers"]) == (
        "shop-43",
        "127.0.0.1",
        ["queue", "store"],
    )
    assert row["connections"] >= 2
    assert api.get("/clients", search="nobody-has-this-name")["clients"] == []


def test_the_busiest_queues_and_streams_come_first(api: Api, running: Process) -> None:
    with nexo.connect(running.url) as client:
        client.queue("a-quiet").create()
        client.queue("z-full").create().push_many(["job"] * 500)
        client.stream("a-quiet").create()
        client.stream("z-full").create().publish_many(["x"] * 500)

    def first(kind: str) -> str:
        rows = api.get(f"/{kind}/list", sort="activity", search="-")[f"{kind}s"]
        names = [row["name"] if kind == "stream" else row["info"]["name"] for row in rows]
        return names[0] if names else ""

    wait_until(lambda: (first("queue"), first("stream")) == ("z-full", "z-full"))


def test_connections_name_their_clients(api: Api, running: Process) -> None:
    with nexo.connect(f"{running.url}?client=shop-42") as client:
        client.store.set("connected", 1)
        page = api.get("/connections", broker="store", search="SHOP-42")
    (row,) = page["connections"]
    assert row["name"] == "shop-42"
    assert row["requests"] >= 2  # HELLO and the set
    assert min(row["bytes_in"], row["bytes_out"]) > 20
    assert page["connections"][0]["address"] == "127.0.0.1"


# -- what protects it -------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "application/json"},
        {"content-type": "text/plain", "x-nexo": "1"},
        ACTION | {"origin": "http://evil.example"},
        ACTION | {"host": "evil.example"},
    ],
)
def test_a_forged_action_is_refused(api: Api, sdk: nexo.Client, headers: dict[str, str]) -> None:
    body = json.dumps({"key": "forged", "value": value(1)}).encode()
    reply = api.request("POST", "/api/v1/store/set", body, headers)
    assert reply.status == 403
    assert reply.json["code"] == "FORBIDDEN"
    assert sdk.store.get("forged") is None


def test_nothing_acts_by_get(api: Api, sdk: nexo.Client) -> None:
    sdk.store.set("kept", 1)
    assert api.look("/store/delete", key="kept").status == 405
    assert sdk.store.get("kept") == 1


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("DELETE", "/api/v1/store/key", "GET, HEAD"),
        ("POST", "/api/v1/store/keys", "GET, HEAD"),
        ("GET", "/api/v1/store/set", "POST"),
        ("PUT", "/api/v1/store/set", "POST"),
        ("POST", "/metrics", "GET, HEAD"),
    ],
)
def test_a_wrong_method_is_told_the_right_one(
    api: Api, method: str, path: str, allowed: str
) -> None:
    """SPEC K4: before anything about headers, which would be the wrong advice."""
    reply = api.request(method, path)
    assert (reply.status, reply.headers["allow"]) == (405, allowed)
    assert reply.json["code"] == "METHOD"


def test_an_action_without_fields_needs_no_body(api: Api, sdk: nexo.Client) -> None:
    """SPEC K4: what has nothing to say may say nothing."""
    sdk.store.set("gone", 1)
    assert api.request("POST", "/api/v1/store/clear", None, {"x-nexo": "1"}).status == 200
    assert sdk.store.get("gone") is None
    refused = api.request("POST", "/api/v1/store/delete", b"", ACTION)
    assert refused.status == 400
    assert "key" in refused.json["message"]
    assert api.request("POST", "/api/v1/store/clear", b"{}", {"x-nexo": "1"}).status == 403


@pytest.mark.parametrize(
    ("path", "parameters", "said"),
    [
        ("/store/keys", {"limit": 9999}, "limit: expected int <= 500; use 1 to 500"),
        ("/store/keys", {"limit": "x"}, "limit: expected int, got str; use 1 to 500"),
        ("/store/keys", {"size": 1}, "unknown field 'size'; known are cursor, glob, limit, prefix"),
        ("/history", {"broker": "x"}, "broker: .*use one of store, pubsub, queue, stream"),
    ],
)
def test_a_refusal_names_the_parameter_and_what_it_may_be(
    api: Api, path: str, parameters: dict[str, object], said: str
) -> None:
    """SPEC K4: in words of the API."""
    reply = api.look(path, **parameters)
    assert reply.status == 400
    assert re.match(said, reply.json["message"]), reply.json


def test_the_requests_of_the_guide_work_on_a_fresh_server(tmp_path: Path) -> None:
    """SPEC K4: in the order in which they stand there."""
    guide = Path("docs/guide/dashboard.md").read_text(encoding="utf-8")
    found = re.findall(r"-d '(.*?)'[^$]*?http://127.0.0.1:8080(/\S+)", guide, re.DOTALL)
    assert len(found) == 3
    with process(tmp_path / "nexo") as server:
        api = Api(server.http_url)
        api.wait_ready()
        for body, path in found:
            reply = api.request("POST", path, body.encode(), ACTION)
            assert reply.status == 200, reply.body


def test_a_value_that_is_no_json_is_told_how_to_be_text(api: Api) -> None:
    reply = api.act("/store/set", key="k", value={"text": "hello"})
    assert reply.status == 400
    assert '"type": "text"' in reply.json["message"]


def test_every_reply_carries_the_headers_that_protect_browsers(api: Api) -> None:
    for path in ("/", "/api/v1/overview", "/api/v1/none", "/metrics"):
        headers = api.request("GET", path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("/store/set", {"key": "k"}, 400, "INVALID"),
        ("/store/set", {"key": "k", "value": {"type": "json", "text": "{"}}, 400, "INVALID"),
        ("/store/set", {"key": "k", "value": {"type": "bytes", "text": "%"}}, 400, "INVALID"),
        ("/store/set", {"key": "", "value": value(1)}, 400, "INVALID"),
        ("/store/set", {"key": "k", "value": value(1), "ttl": 1}, 400, "INVALID"),
        ("/store/expire", {"key": "none", "ttl_s": 1}, 404, "NOT_FOUND"),
        ("/queue/push", {"queue": "none", "value": value(1)}, 404, "NOT_FOUND"),
        ("/queue/create", {"queue": "../x"}, 400, "INVALID_NAME"),
        ("/queue/create", {"queue": "q", "options": {"x": 1}}, 400, "INVALID_OPTION"),
        ("/queue/dlq/replay", {"queue": "none", "ids": ["x"]}, 400, "INVALID"),
        ("/stream/seek", {"stream": "none", "group": "g", "to": "end"}, 404, "NOT_FOUND"),
        ("/stream/seek", {"stream": "none", "group": "g"}, 400, "INVALID"),
        ("/stream/publish", {"stream": "none", "value": None}, 400, "INVALID"),
        ("/pubsub/publish", {"topic": "a/#", "value": value(1)}, 400, "INVALID_NAME"),
        ("/none", {}, 404, "NOT_FOUND"),
    ],
)
def test_bad_input_is_a_4xx_with_a_code(
    api: Api, path: str, body: dict[str, object], status: int, code: str
) -> None:
    reply = api.act(path, **body)
    assert (reply.status, reply.json["code"]) == (status, code)
    assert reply.json["message"]


# -- store ------------------------------------------------------------------------------


def test_keys_are_listed_a_page_at_a_time(api: Api, sdk: nexo.Client) -> None:
    sdk.store.mset({f"page/{n:03}": n for n in range(120)})
    found: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        page = api.get("/store/keys", prefix="page/", cursor=cursor, limit=50)
        assert len(page["keys"]) <= 50
        found += [row["key"] for row in page["keys"]]
        cursor = page["cursor"]
    assert found == [f"page/{n:03}" for n in range(120)]
    assert api.get("/store/keys", glob="page/*7")["keys"][0]["key"] == "page/007"


def test_a_key_is_set_shown_expired_and_deleted(api: Api, sdk: nexo.Client, name: str) -> None:
    api.post("/store/set", key=name, value=value({"n": 2**63 + 1}), ttl_s=500)
    assert sdk.store.get(name) == {"n": 2**63 + 1}
    view = api.get("/store/key", key=name)
    assert "9223372036854775809" in view["value"]["text"]
    assert 499_000 < view["ttl_ms"] <= 500_000
    api.post("/store/expire", key=name, ttl_s=None)
    assert sdk.store.ttl(name) == float("inf")
    assert api.post("/store/delete", key=name) == {"count": 1}
    assert sdk.store.get(name) is None


def test_collections_show_their_items(api: Api, sdk: nexo.Client) -> None:
    sdk.store.map("c/map").set_many({"<b>": 1, "b": "two"})
    sdk.store.list("c/list").push("x", "y", "z")
    sdk.store.set_("c/set").add(b"\x00\xff")
    shown = api.get("/store/key", key="c/map")["content"]
    assert [(item["name"], item["value"]["text"]) for item in shown] == [("<b>", "1"), ("b", "two")]
    page = api.get("/store/key", key="c/list", offset=1, limit=1)
    assert [item["value"]["text"] for item in page["content"]] == ["y"]
    (member,) = api.get("/store/key", key="c/set")["content"]
    assert member["value"] == {"type": "bytes", "text": "AP8=", "size_bytes": 2, "truncated": False}


# -- pub/sub ----------------------------------------------------------------------------


def test_a_retained_message_is_published_shown_and_cleared(api: Api, sdk: nexo.Client) -> None:
    api.post("/pubsub/publish", topic="conf/a", value=value([1]), retain=True, ttl_s=60)
    assert api.get("/pubsub/retained", topic="conf/a")["value"]["text"] == "[\n  1\n]"
    (row,) = api.get("/pubsub/topics", search="conf/a")["topics"]
    assert row["retained_bytes"] > 0
    with sdk.pubsub.subscribe("conf/#") as conf:
        assert next(iter(conf)).value == [1]
        assert api.get("/pubsub/topics", search="conf/#")["topics"][0]["subscribers"] == 1
        assert api.get("/pubsub/subscriptions", search="conf/")["total"] == 1
    assert api.post("/pubsub/clear", topic="conf/a") == {"count": 1}
    assert api.look("/pubsub/retained", topic="conf/a").status == 404


def test_the_tail_shows_messages_as_they_come(api: Api, sdk: nexo.Client) -> None:
    url = f"{api.url}/api/v1/pubsub/tail?pattern=live%2F%2B"
    with urllib.request.urlopen(url, timeout=10) as events:
        assert events.readline() == b": hello\n"
        wait_until(lambda: sdk.pubsub.publish("live/1", "<script>"))
        line = next(line for line in events if line.startswith(b"data: "))
    (message,) = json.loads(line[6:])["messages"]
    assert (message["topic"], message["value"]["text"]) == ("live/1", "<script>")


@pytest.mark.parametrize("busy", [False, True])
def test_a_tail_ends_with_its_viewer(api: Api, sdk: nexo.Client, busy: bool) -> None:
    """A page that was closed leaves nothing behind at the broker (SPEC K3)."""
    topic = f"left/{busy}"
    for _ in range(3):
        with urllib.request.urlopen(f"{api.url}/api/v1/pubsub/tail?pattern={topic}") as events:
            assert events.readline() == b": hello\n"
            wait_until(lambda: sdk.pubsub.publish(topic, 1) > 0)
            if busy:
                sdk.pubsub.publish_many(topic, ["x" * 1_000] * 2_000)
    wait_until(lambda: sdk.pubsub.publish(topic, 1) == 0)


# -- queue ------------------------------------------------------------------------------


def test_a_queue_is_created_used_paused_and_deleted(api: Api, sdk: nexo.Client, name: str) -> None:
    api.post("/queue/create", queue=name, options={"max_retries": 0})
    job_id = api.post("/queue/push", queue=name, value=value("a"), priority=3)["id"]
    api.post("/queue/push", queue=name, value=value("later"), delay_s=600)
    page = api.get("/queue/jobs", queue=name)
    assert [(job["id"], job["priority"]) for job in page["jobs"]] == [(job_id, 3)]
    assert api.get("/queue/jobs", queue=name, state="scheduled")["total"] == 1
    assert api.get("/queue/job", queue=name, id=job_id)["state"] == "waiting"
    old, new = (sdk.queue(name).push(n, dedup_key="k", replace=True, delay=60) for n in (1, 2))
    replaced = api.get("/queue/job", queue=name, id=old)
    assert (replaced["state"], replaced["replaced_by"]) == ("replaced", new)
    api.post("/queue/cancel", queue=name, ids=[new])
    api.post("/queue/pause", queue=name)
    assert not sdk.queue(name).pop()
    api.post("/queue/resume", queue=name)
    (job,) = sdk.queue(name).pop()
    job.nack("boom <b>")
    (dead,) = api.get("/queue/jobs", queue=name, state="dead")["jobs"]
    assert (dead["reason"], dead["cause"]) == ("boom <b>", "nack")
    assert api.post("/queue/dlq/replay", queue=name, ids=[dead["id"]]) == {"count": 1}
    assert sdk.queue(name).info().waiting == 1
    assert api.post("/queue/cancel", queue=name, ids=[dead["id"]]) == {"count": 1}
    assert api.post("/queue/purge", queue=name)["count"] == 1
    api.post("/queue/update", queue=name, options={"max_retries": 7})
    assert api.get("/queue/info", queue=name)["info"]["options"]["max_retries"] == 7
    api.post("/queue/delete", queue=name)
    assert not sdk.queue(name).exists()


def test_options_are_described_and_written_with_units(
    api: Api, sdk: nexo.Client, name: str
) -> None:
    queue = {row["name"]: row for row in api.get("/queue/options")}
    assert queue.keys() == sdk.queue(name).create().info().options.keys()
    assert (queue["visibility_timeout_ms"]["unit"], queue["visibility_timeout_ms"]["default"]) == (
        "ms",
        30_000,
    )
    assert queue["backoff"]["choices"] == ["none", "fixed", "exponential"]
    assert all(row["help"] and row["title"] for row in queue.values())
    api.post("/queue/update", queue=name, options={"visibility_timeout_ms": "5m"})
    assert sdk.queue(name).info().options["visibility_timeout_ms"] == 300_000
    stream = {row["name"]: row for row in api.get("/stream/options")}
    assert not stream["partitions"]["fixed"]  # SPEC E1: they may be added
    api.post("/stream/create", stream=name, options={"retention_bytes": "2 GiB"})
    described = sdk.stream(name).info().options
    assert stream.keys() == described.keys()
    assert described["retention_bytes"] == 2 * 1024**3


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/queue/create", {"queue": "q", "options": {"result_ttl_ms": "a while"}}, "result_ttl_ms"),
        ("/queue/create", {"queue": "q", "options": {"backoff": "odd"}}, "backoff"),
        ("/queue/create", {"queue": "q", "options": {"backoff_delay_ms": -1}}, "backoff_delay_ms"),
        ("/queue/create", {"queue": "q", "options": {"x": 1}}, None),
        ("/queue/create", {"queue": "../q"}, "queue"),
        ("/stream/create", {"stream": "s", "options": {"partitions": 0}}, "partitions"),
        ("/stream/create", {"stream": "s", "options": {"retention_bytes": "1 kg"}},
         "retention_bytes"),
        ("/stream/create", {"stream": "s/../s"}, "stream"),
    ],
)  # fmt: skip
def test_a_refused_option_is_named(
    api: Api, sdk: nexo.Client, path: str, body: dict[str, object], field: str | None
) -> None:
    reply = api.act(path, **body)
    assert (reply.status, reply.json.get("field")) == (400, field)
    assert not sdk.queue("q").exists()
    assert not sdk.stream("s").exists()


def test_dead_letters_are_deleted(api: Api, sdk: nexo.Client, name: str) -> None:
    queue = sdk.queue(name).create(max_retries=0)
    queue.push_many(["a", "b", "c"])
    for job in queue.pop(3):
        job.nack("no")
    ids = [job["id"] for job in api.get("/queue/jobs", queue=name, state="dead")["jobs"]]
    assert api.post("/queue/dlq/delete", queue=name, ids=ids[:1]) == {"count": 1}
    assert api.post("/queue/dlq/purge", queue=name) == {"count": 2}
    assert queue.dlq.count() == 0


def test_schedules_are_set_listed_and_removed(api: Api, sdk: nexo.Client, name: str) -> None:
    sdk.queue(name).create()
    body = {"queue": name, "name": "nightly", "cron": "0 3 * * *", "value": value(1)}
    assert api.post("/queue/cron/set", **body)["next_ms"] > time.time() * 1000
    (row,) = api.get("/queue/cron/list", queue=name)
    assert (row["name"], row["cron"]) == ("nightly", "0 3 * * *")
    assert api.act("/queue/cron/set", **body | {"cron": "soon"}).status == 400
    api.post("/queue/cron/delete", queue=name, name="nightly")
    assert api.act("/queue/cron/delete", queue=name, name="nightly").status == 404
    assert sdk.queue(name).cron.list() == []


def test_queues_are_searched_and_sorted(api: Api, sdk: nexo.Client) -> None:
    for number, jobs in enumerate((1, 3, 2)):
        sdk.queue(f"sorted/{number}").create().push_many(["x"] * jobs)

    def sorted_page() -> Any:  # ranks are as of the last round
        page = api.get("/queue/list", search="SORTED", sort="waiting", limit=2)
        return [row["info"]["waiting"] for row in page["queues"]] == [3, 2] and page

    page = wait_until(sorted_page, every_s=0.1)
    assert page["total"] == 3


# -- stream -----------------------------------------------------------------------------


def test_records_are_published_and_browsed(api: Api, sdk: nexo.Client, name: str) -> None:
    api.post("/stream/create", stream=name, options={"partitions": 2})
    place = api.post(
        "/stream/publish", stream=name, value=value({"a": 1}), key="k", headers={"h": "<i>"}
    )
    sdk.stream(name).publish_many([f"r{n}" for n in range(300)], keys=["k"] * 300)
    page = api.get("/stream/records", stream=name, partition=place["partition"], offset=0, limit=3)
    assert [row["offset"] for row in page["records"]] == [0, 1, 2]
    first = page["records"][0]
    assert (first["key"], first["headers"]) == ("k", {"h": "<i>"})
    assert json.loads(first["value"]["text"]) == {"a": 1}
    assert (page["earlier"], page["later"], page["first"], page["last"]) == ("0", "3", True, False)
    newest = api.get("/stream/records", stream=name, partition=place["partition"], limit=5)
    assert [row["offset"] for row in newest["records"]] == [296, 297, 298, 299, 300]
    by_time = api.get(
        "/stream/records", stream=name, partition=place["partition"],
        time_ms=newest["records"][0]["timestamp_ms"], limit=1,
    )  # fmt: skip
    assert 0 < by_time["records"][0]["offset"] <= 296
    whole = api.get("/stream/record", stream=name, partition=place["partition"], offset=7)
    assert whole["value"]["text"] == "r6"
    assert api.look("/stream/records", stream=name, partition=9).status == 400


def test_a_page_of_records_is_whole_across_small_batches(
    api: Api, sdk: nexo.Client, name: str
) -> None:
    stream = sdk.stream(name).create()
    for n in range(120):
        stream.publish(n)
    page = api.get("/stream/records", stream=name, offset=0, limit=100)
    assert [row["offset"] for row in page["records"]] == list(range(100))


def test_a_record_is_traced_through_its_groups(api: Api, sdk: nexo.Client, name: str) -> None:
    stream = sdk.stream(name).create()
    stream.publish_many(["a", "b", "c", "d"])

    def states() -> list[str]:
        found = []
        for offset in range(4):
            (group,) = api.get("/stream/trace", stream=name, offset=offset)["groups"]
            assert (group["group"], group["mode"]) == ("g", "shared")
            found.append(group["state"])
        return found

    with stream.consume("g", max_deliveries=1, wait=0.2) as consumer:
        first, second, third = (record for _, record in zip(range(3), consumer, strict=False))
        second.ack()
        first.nack(reason="bad <b>")
        assert states()[:3] == ["parked", "finished", "in_flight"]
        held = api.get("/stream/trace", stream=name, offset=2)["groups"][0]
        assert held["consumer"] in stream.group("g").info().consumers
        assert held["until_ms"] > held["attempts"] == 1
        parked = api.get("/stream/trace", stream=name, offset=0)["groups"][0]
        assert (parked["reason"], parked["attempts"]) == ("bad <b>", 1)
        third.ack()
    wait_until(lambda: states()[3] in ("waiting", "unread"))
    assert api.look("/stream/trace", stream=name, offset=0, partition=7).status >= 400


def test_a_topic_is_traced_to_its_subscribers(api: Api, sdk: nexo.Client, name: str) -> None:
    with sdk.pubsub.subscribe(f"{name}/+"), sdk.pubsub.subscribe("elsewhere"):
        rows = api.get("/pubsub/trace", topic=f"{name}/x")["subscriptions"]
        assert f"{name}/+" in [row["pattern"] for row in rows]
        assert "elsewhere" not in [row["pattern"] for row in rows]


def test_streams_show_partitions_tiers_and_groups(api: Api, sdk: nexo.Client, name: str) -> None:
    stream = sdk.stream(name).create(partitions=2)
    stream.publish_many(["x"] * 10)
    with stream.consume("readers", wait=0.1) as consumer:
        next(iter(consumer)).ack()
        (group,) = api.get("/stream/groups", stream=name)
    assert (group["name"], group["mode"], group["lag"]) == ("readers", "shared", 9)
    assert len(group["consumers"]) == 1
    view = api.get("/stream/info", stream=name)
    assert [part["tiers"][-1]["tier"] for part in view["partitions"]] == ["hot", "hot"]
    assert sum(part["next_offset"] for part in view["partitions"]) == 10
    (row,) = api.get("/stream/list", search=name)["streams"]
    assert (row["offsets"], row["groups"]) == (10, ["readers"])
    with sdk.transaction() as tx:
        tx.publish(name, "never seen")
        tx.abort()
    (row,) = api.get("/stream/list", search=name)["streams"]
    assert row["offsets"] == 11, "offsets, which are no count of records"


def test_the_lag_of_an_ordered_group_is_what_it_can_read(
    api: Api, sdk: nexo.Client, name: str
) -> None:  # SPEC G6
    stream = sdk.stream(name).create()
    stream.publish_many(["x"] * 3)
    commit = Commit(group=f"{name}-billing", offsets=[(name, 0, 0, "")])
    sdk.link(Broker.STREAM).call(Op.S_COMMIT, wire.pack(commit))
    with sdk.transaction() as tx:
        tx.publish(name, "not yet")
        (group,) = api.get("/stream/groups", stream=name)
    assert (group["mode"], group["lag"], group["partitions"][0]["lag"]) == ("ordered", 2, 2)


def test_a_group_is_sought_and_forgotten(api: Api, sdk: nexo.Client, name: str) -> None:
    stream = sdk.stream(name).create()
    stream.publish_many(["x"] * 10)
    stream.consume("g").close()
    stream.seek("g", "beginning")
    api.post("/stream/seek", stream=name, group="g", to="end")
    assert stream.group("g").lag() == 0
    api.post("/stream/seek", stream=name, group="g", offset=4)
    assert stream.group("g").lag() == 6
    api.post("/stream/seek", stream=name, group="g", time_ms=0)
    assert stream.group("g").lag() == 10
    api.post("/stream/group/delete", stream=name, group="g")
    assert stream.groups() == []


def test_an_ordered_group_is_sought_within_what_is_there(
    api: Api, sdk: nexo.Client, name: str
) -> None:  # SPEC F4, G5
    sdk.stream(name).create().publish_many(["x"] * 10)
    ask = {"stream": name, "group": f"{name}-billing", "mode": "ordered"}
    commit = Commit(group=ask["group"], offsets=[(name, 0, 0, "")])
    sdk.link(Broker.STREAM).call(Op.S_COMMIT, wire.pack(commit))
    api.post("/stream/seek", **ask, offset=4)
    refused = api.act("/stream/seek", **ask, offset=11)
    assert (refused.status, refused.json["code"]) == (400, "OFFSET_RANGE")
    (group,) = api.get("/stream/groups", stream=name)
    assert group["lag"] == 6


def test_parked_records_are_replayed_and_deleted(api: Api, sdk: nexo.Client, name: str) -> None:
    stream = sdk.stream(name).create()
    stream.publish_many(["a", "b", "c"])
    with stream.consume("g", max_deliveries=1, wait=0.1) as consumer:
        for _, record in zip(range(3), consumer, strict=False):
            record.nack(reason="bad <b>")
        page = api.get("/stream/parked", stream=name, group="g")
        assert page["total"] == 3
        assert page["records"][0]["reason"] == "bad <b>"
        one = [{"partition": 0, "offset": 1}]
        assert api.post("/stream/parked/replay", stream=name, group="g", records=one)["count"] == 1
        again = next(iter(consumer))
        assert again.value == "b"
        again.ack()
    one[0]["offset"] = 2
    assert api.post("/stream/parked/delete", stream=name, group="g", records=one)["count"] == 1
    assert api.post("/stream/parked/purge", stream=name, group="g")["count"] == 1


def test_a_stream_is_compacted_and_deleted(api: Api, sdk: nexo.Client, name: str) -> None:
    stream = sdk.stream(name).create(cleanup="compact")
    stream.publish_many([str(n) for n in range(100)], keys=["k"] * 100)
    api.post("/stream/publish", stream=name, value=None, key="gone")
    stream.update(cleanup="delete")
    refused = api.act("/stream/compact", stream=name)
    assert (refused.status, refused.json["code"]) == (400, "INVALID_OPTION")
    stream.update(cleanup="compact")
    api.post("/stream/compact", stream=name)
    assert [record.value for record in stream.read(0, 0)][-1:] in (["99"], [None])
    api.post("/stream/retain", stream=name)
    api.post("/stream/delete", stream=name)
    assert not stream.exists()


# -- the process ------------------------------------------------------------------------


def test_without_the_dashboard_nothing_listens(tmp_path: Path) -> None:  # SPEC A8
    with (
        process(tmp_path / "d", dashboard=False) as server,
        pytest.raises(OSError, match="refused"),
    ):
        Api(server.http_url).request("GET", "/health")


def admin_pid(server: Process) -> int | None:
    """The dashboard's process."""
    return named(server).get("admin")


def test_a_killed_dashboard_comes_back_on_the_same_port(tmp_path: Path) -> None:  # SPEC A2
    with process(tmp_path / "d") as server:
        api = Api(server.http_url)
        api.wait_ready()
        before = admin_pid(server)
        assert before is not None
        os.kill(before, signal.SIGKILL)
        with nexo.connect(server.url) as client:
            client.store.set("meanwhile", 1)  # the brokers do not notice
        api.wait_ready()
        assert admin_pid(server) not in (None, before)


def test_the_dashboard_gets_the_processor_after_the_brokers(tmp_path: Path) -> None:  # SPEC K3
    with process(tmp_path / "d") as server:
        Api(server.http_url).wait_ready()
        dashboard = admin_pid(server)
        assert dashboard is not None
        behind = os.getpriority(os.PRIO_PROCESS, dashboard)
        assert behind > os.getpriority(os.PRIO_PROCESS, server.pid)


def test_the_dashboard_ends_with_a_killed_supervisor(tmp_path: Path) -> None:
    with process(tmp_path / "d") as server:
        Api(server.http_url).wait_ready()
        os.kill(server.pid, signal.SIGKILL)
        wait_until(lambda: admin_pid(server) is None)


def test_a_pipeline_without_a_lake_says_so(api: Api) -> None:
    pipeline = api.get("/pipeline/tables")
    assert not pipeline["available"]
    assert "pipeline" in pipeline["reason"] or "installed" in pipeline["reason"]


def test_the_grafana_dashboard_and_its_page_ask_for_metrics_that_exist(api: Api) -> None:
    board = json.loads((ROOT / "ops" / "grafana-dashboard.json").read_text(encoding="utf-8"))
    asked = {
        re.sub(r"_(bucket|count|sum)$", "", name)
        for panel in board["panels"]
        for target in panel["targets"]
        for name in re.findall(r"nexo_[a-z_]+", target["expr"])
    }
    text = (ROOT / "docs" / "howto" / "monitor.md").read_text(encoding="utf-8")
    told = {re.sub(r"_bucket$", "", name) for name in re.findall(r"nexo_[a-z_]+", text)}
    known = set(checked_families(api.request("GET", "/metrics").body.decode()))
    assert asked <= known
    ours = {name for name in known if name.startswith("nexo_") and not name.endswith("_created")}
    shown = {name for name in told if not name.startswith("nexo_replica_")}  # where there is one
    assert shown == ours  # SPEC K4: the page names every metric, and no other


def test_the_openapi_document_describes_every_path_and_refusal(api: Api) -> None:
    """SPEC K4."""
    paths = api.get("/openapi.json")["paths"]
    beside = {"/health", "/ready", "/metrics", "/api/v1/session", "/api/v1/login", "/api/v1/logout"}
    assert beside == paths.keys() - {row.path for row in TABLE}
    refused = {str(status) for _, status in STATUS}
    told = {
        status for path in paths.values() for one in path.values() for status in one["responses"]
    }
    assert refused <= told
    for row in TABLE:
        described = paths[row.path][row.method.lower()]["responses"].keys()
        assert {"200", "400", "401", "403", "404", "409", "503", "504"} <= described, row.path


def test_a_start_waits_for_the_dashboard_of_a_killed_server(tmp_path: Path) -> None:
    """It still holds the HTTP port (finding T26)."""
    with process(tmp_path / "d") as server, ThreadPoolExecutor(1) as pool:
        Api(server.http_url).wait_ready()
        old = admin_pid(server)
        assert old is not None
        os.kill(old, signal.SIGSTOP)  # it notices nothing
        os.kill(server.pid, signal.SIGKILL)
        assert server._process is not None
        server._process.wait()
        starting = pool.submit(server.start)
        try:
            wait_until(lambda: b"waiting: data_dir" in server.log_file.read_bytes())
        finally:
            os.kill(old, signal.SIGCONT)
        starting.result()
        Api(server.http_url).wait_ready()
        assert admin_pid(server) not in (None, old)
