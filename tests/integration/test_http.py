"""HTTP for those without a client: jobs, records, live events, other sites (SPEC O5)."""

from __future__ import annotations

import asyncio
import json
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Origin

import nexo
from nexo import limits
from nexo.access.grants import parse_grant
from nexo.access.users import UsersFile
from nexo.testing import Process, process
from tests.integration.admin_api import ACTION, Api, Reply
from tests.timing import wait_until

APP = "https://app.example.com"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """With a reader of ``news`` who has a token, and one site whose pages may come."""
    folder = tmp_path_factory.mktemp("http") / "nexo"
    users = UsersFile(folder / "users.json")
    users.add("root", "a long secret", [parse_grant("*:*:*")])
    users.add("web", None, [parse_grant("pubsub:read:news/#")])
    (folder / "web").write_text(users.add_token("web", "page"))
    (folder / "root").write_text(users.add_token("root", "script"))
    with process(folder, auth=True, http_origins=APP) as running:
        Api(running.http_url).wait_ready()
        yield running


@pytest.fixture
def api(server: Process) -> Script:
    return Script(server, "root")


@pytest.fixture
def sdk(server: Process) -> Iterator[nexo.Client]:
    with nexo.connect(server.url, user="root", password="a long secret") as client:
        yield client


class Script(Api):
    """A program with a token."""

    def __init__(self, server: Process, user: str) -> None:
        super().__init__(server.http_url)
        self.token = (server.data_dir / user).read_text()

    def request(
        self, method: str, path: str, body: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> Reply:  # fmt: skip
        token = {"authorization": f"Bearer {self.token}"}
        return super().request(method, path, body, token | (headers or {}))


# -- jobs -------------------------------------------------------------------------------


def test_a_job_is_pushed_fetched_and_acked(api: Script, sdk: nexo.Client) -> None:
    sdk.queue("mail").create(result_ttl="1m")
    given = {"data": {"to": "ada", "n": 12345678901234567890}}
    pushed = api.post("/queue/push", queue="mail", value=given, headers={"task": "send"})
    found = api.post("/queue/fetch", queue="mail", lease_s=30)
    (job,) = found["jobs"]
    assert (job["id"], job["attempt"], job["headers"]) == (pushed["id"], 1, {"task": "send"})
    assert job["value"] == {"type": "json", "data": given["data"]}
    assert 29_000 < found["lease_ms"] <= 30_000
    held = {"queue": "mail", "id": job["id"], "lease": job["lease"]}
    assert api.act("/queue/ack", **held | {"lease": str(int(job["lease"]) + 1)}).status == 409
    assert api.post("/queue/extend", queue="mail", lease=job["lease"], lease_s=60)["count"] == 1
    api.post("/queue/ack", **held, result={"data": "sent"})
    assert sdk.queue("mail").result(job["id"]) == "sent"
    assert api.act("/queue/ack", **held).json["code"] == "LEASE_LOST"
    assert api.post("/queue/fetch", queue="mail")["jobs"] == []


def test_a_job_is_nacked_released_and_rejected(api: Script, sdk: nexo.Client) -> None:
    queue = sdk.queue("fail").create(max_retries=5)
    queue.push("x")

    def fetched() -> dict[str, Any]:
        (job,) = api.post("/queue/fetch", queue="fail", wait_s=5)["jobs"]
        return {"queue": "fail", "id": job["id"], "lease": job["lease"]}

    api.post("/queue/release", **fetched())
    api.post("/queue/nack", **fetched(), reason="not now", delay_s=0)
    assert queue.peek()[0].attempts == 1
    api.post("/queue/nack", **fetched(), reason="never", retry=False)
    assert [(letter.cause, letter.reason) for letter in queue.dlq.peek()] == [("rejected", "never")]


def test_a_caller_who_leaves_while_waiting_takes_no_job(api: Script, sdk: nexo.Client) -> None:
    queue = sdk.queue("left").create()

    async def leave() -> None:
        host = urllib.parse.urlsplit(api.url).netloc
        address, port = host.split(":")
        _, writer = await asyncio.open_connection(address, int(port))
        body = json.dumps({"queue": "left", "wait_s": 30}).encode()
        head = (
            f"POST /api/v1/queue/fetch HTTP/1.1\r\nHost: {host}\r\nX-Nexo: 1\r\n"
            f"Authorization: Bearer {api.token}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        await writer.drain()
        await asyncio.to_thread(wait_until, waiting)
        writer.close()
        await asyncio.to_thread(wait_until, lambda: not waiting())

    def waiting() -> bool:
        rows = api.get("/connections", broker="queue")["connections"]
        # One is this very request.
        return sum(int(row["in_flight"]) for row in rows if row["user"] == "root") > 1

    asyncio.run(leave())
    queue.push("for somebody else")
    assert [job.value for job in queue.pop()] == ["for somebody else"]


# -- records ----------------------------------------------------------------------------


def test_records_are_published_and_read_whole(api: Script, sdk: nexo.Client) -> None:
    sdk.stream("orders").create()
    large = {"text": "x" * 5_000}
    for value in (
        {"data": large},
        {"type": "text", "data": "é"},
        {"type": "bytes", "data": "AP8="},
    ):
        api.post("/stream/publish", stream="orders", value=value, key="k", headers={"h": 1})
    page = api.get("/stream/read", stream="orders", limit=2)
    assert [record["value"]["data"] for record in page["records"]] == [large, "é"]
    assert (page["next_offset"], page["end_offset"]) == (2, 3)
    assert (page["records"][0]["key"], page["records"][0]["headers"]) == ("k", {"h": 1})
    rest = api.get("/stream/read", stream="orders", offset=2)
    assert rest["records"][0]["value"] == {"type": "bytes", "data": "AP8="}
    assert api.get("/stream/read", stream="orders", offset=3, wait_s=0.05)["records"] == []
    assert api.look("/stream/read", stream="orders", partition=4).status == 404


def test_a_value_has_text_or_data(api: Script, sdk: nexo.Client) -> None:
    sdk.queue("bad").create()
    for value in ({}, {"text": "1", "data": 1}, {"type": "text", "data": 1}):
        assert api.act("/queue/push", queue="bad", value=value).status == 400
    assert sdk.queue("bad").info().waiting == 0


# -- server-sent events -----------------------------------------------------------------


class Events:
    """What an EventSource sees."""

    def __init__(self, url: str, headers: dict[str, str] | None = None) -> None:
        request = urllib.request.Request(url, headers=headers or {})
        self.reply = urllib.request.urlopen(request, timeout=10)
        assert self.reply.readline() == b": hello\n"

    def next(self) -> dict[str, str]:
        found: dict[str, str] = {}
        while True:
            line = self.reply.readline().decode().rstrip("\n")
            if not line and found:
                return found
            name, _, text = line.partition(": ")
            if name:
                found[name] = text

    def close(self) -> None:
        self.reply.close()


def test_messages_come_as_events_to_who_has_a_token(server: Process, sdk: nexo.Client) -> None:
    token = (server.data_dir / "web").read_text()
    sdk.pubsub.publish("news/first", {"n": 1}, retain=True)
    url = f"{server.http_url}/api/v1/events?topic=news/%23&retained=true&token={token}"
    with closing(Events(url, {"origin": APP})) as events:
        assert events.reply.headers["access-control-allow-origin"] == APP
        first = json.loads(events.next()["data"])
        assert (first["topic"], first["retained"]) == ("news/first", True)
        sdk.pubsub.publish("news/today", {"n": 2}, headers={"h": "x"})
        second = json.loads(events.next()["data"])
        assert (second["value"]["data"], second["headers"]) == ({"n": 2}, {"h": "x"})
    url = f"{server.http_url}/api/v1/events?topic=other&token={token}"
    with closing(Events(url)) as events:
        assert json.loads(events.next()["data"])["code"] == "FORBIDDEN"


def test_a_token_in_the_address_is_for_live_events_alone(server: Process) -> None:
    token = (server.data_dir / "root").read_text()
    api = Api(server.http_url)
    assert api.request("GET", f"/api/v1/queue/list?token={token}").status == 401
    assert api.request("GET", "/api/v1/events?token=wrong").status == 401


def test_records_come_as_events_and_go_on_where_they_were(api: Script, sdk: nexo.Client) -> None:
    stream = sdk.stream("live").create(partitions=2)
    url = f"{api.url}/api/v1/stream/events?stream=live&offsets=0,0&token={api.token}"
    with closing(Events(url)) as events:
        stream.publish("a", key="k")
        first = events.next()
        assert json.loads(first["data"])["value"]["data"] == "a"
    stream.publish("b", key="k")
    with closing(Events(url, {"last-event-id": first["id"]})) as events:
        assert json.loads(events.next()["data"])["value"]["data"] == "b"


# -- web sockets ------------------------------------------------------------------------


def socket(server: Process, user: str, origin: str = APP) -> ClientConnection:
    token = (server.data_dir / user).read_text()
    url = server.http_url.replace("http", "ws") + f"/api/v1/socket?token={token}"
    return connect(url, origin=Origin(origin), open_timeout=10)


def ask(connection: ClientConnection, **request: Any) -> dict[str, Any]:
    connection.send(json.dumps(request))
    return heard(connection)


def heard(connection: ClientConnection) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(connection.recv(timeout=10))
    return found


def test_a_web_socket_subscribes_follows_and_publishes(server: Process, sdk: nexo.Client) -> None:
    sdk.stream("talk").create()
    with socket(server, "root") as connection:
        assert ask(connection, do="subscribe", topic="chat/+", id=1) == {"event": "done", "id": 1}
        wait_until(lambda: "chat/+" in [row.pattern for row in sdk.pubsub.subscriptions()])
        connection.send(json.dumps({
            "do": "publish", "topic": "chat/a", "value": {"data": "hi"}, "id": 2,
        }))  # fmt: skip
        both = {row["event"]: row for row in (heard(connection), heard(connection))}
        assert both["message"]["value"] == {"type": "text", "data": "hi"}
        assert (both["done"]["id"], both["done"]["count"]) == (2, 1)
        assert ask(connection, do="follow", stream="talk", offsets="0", id=3)["event"] == "done"
        sdk.stream("talk").publish({"n": 1}, key="k")
        assert heard(connection)["value"]["data"] == {"n": 1}
        assert ask(connection, do="unsubscribe", topic="chat/+", id=4)["event"] == "done"
        assert ask(connection, do="unsubscribe", topic="chat/+", id=5)["code"] == "NOT_FOUND"


def test_a_web_socket_is_told_what_was_wrong(server: Process) -> None:
    with socket(server, "web") as connection:
        assert ask(connection, nonsense=1)["code"] == "INVALID"
        refused = ask(connection, do="publish", topic="news/x", value={"data": 1}, id=7)
        assert (refused["code"], refused["id"]) == ("FORBIDDEN", 7)
        assert ask(connection, do="publish", value={"data": 1})["code"] == "INVALID"
        connection.send(json.dumps({"do": "subscribe", "topic": "secret"}))
        assert "FORBIDDEN" in [heard(connection).get("code"), heard(connection).get("code")]
        assert ask(connection, do="subscribe", topic="news/#", id=8)["event"] == "done"


def test_a_web_socket_of_an_unknown_site_or_without_a_token_is_refused(server: Process) -> None:
    with pytest.raises(InvalidStatus) as refused:
        socket(server, "root", "https://evil.example.com")
    assert refused.value.response.status_code == 403
    url = server.http_url.replace("http", "ws") + "/api/v1/socket"
    with pytest.raises(InvalidStatus) as refused:
        connect(url, origin=Origin(APP))
    assert refused.value.response.status_code == 401


def test_a_web_socket_follows_so_many_things_and_sends_so_much(server: Process) -> None:
    with socket(server, "root") as connection:
        for number in range(limits.SOCKET_SUBSCRIPTIONS):
            assert ask(connection, do="subscribe", topic=f"many/{number}")["event"] == "done"
        assert ask(connection, do="subscribe", topic="many/more")["code"] == "OVERLOADED"
        connection.send("x" * (limits.SOCKET_FRAME_BYTES + 1))
        with pytest.raises(Exception, match="1009"):
            heard(connection)


# -- other sites ------------------------------------------------------------------------


def test_a_known_site_may_ask_and_act_with_a_token(server: Process, sdk: nexo.Client) -> None:
    sdk.queue("sited").create()
    api = Script(server, "root")
    wanted = {"origin": APP, "access-control-request-method": "POST"}
    asked = Api(server.http_url).request("OPTIONS", "/api/v1/queue/push", headers=wanted)
    assert asked.status == 204
    assert asked.headers["access-control-allow-origin"] == APP
    assert "authorization" in asked.headers["access-control-allow-headers"]
    assert "access-control-allow-credentials" not in asked.headers
    body = json.dumps({"queue": "sited", "value": {"data": 1}}).encode()
    headers = {"origin": APP, "content-type": "application/json"}
    acted = api.request("POST", "/api/v1/queue/push", body, headers)
    assert (acted.status, acted.headers["access-control-allow-origin"]) == (200, APP)
    assert acted.headers["vary"] == "Origin"
    assert "access-control-allow-origin" not in api.request("GET", "/", headers=headers).headers


def test_an_unknown_site_may_neither_ask_nor_act(server: Process, sdk: nexo.Client) -> None:
    sdk.queue("unsited").create()
    evil = {"origin": "https://evil.example.com"}
    api = Script(server, "root")
    assert api.request("OPTIONS", "/api/v1/queue/push", headers=evil).status == 403
    body = json.dumps({"queue": "unsited", "value": {"data": 1}}).encode()
    assert api.request("POST", "/api/v1/queue/push", body, evil | ACTION).status == 403
    looked = api.request("GET", "/api/v1/queue/list", headers=evil)
    assert "access-control-allow-origin" not in looked.headers
    assert sdk.queue("unsited").info().waiting == 0


def test_a_cookie_never_counts_for_another_site(server: Process) -> None:
    api = Api(server.http_url)
    login = json.dumps({"user": "root", "password": "a long secret"}).encode()
    reply = api.request("POST", "/api/v1/login", login, ACTION)
    cookie = {"cookie": reply.headers["set-cookie"].partition(";")[0]}
    assert api.request("GET", "/api/v1/queue/list", headers=cookie).status == 200
    foreign = cookie | {"origin": APP}
    assert api.request("GET", "/api/v1/queue/list", headers=foreign).status == 401
    url = server.http_url.replace("http", "ws") + "/api/v1/socket"
    with pytest.raises(InvalidStatus):
        connect(url, origin=Origin(APP), additional_headers=cookie)
    with connect(url, origin=Origin(server.http_url), additional_headers=cookie) as own:
        assert ask(own, do="subscribe", topic="x")["event"] == "done"


def test_the_asyncapi_document_refers_to_what_it_has(server: Process) -> None:
    document = Api(server.http_url).get("/asyncapi.json")
    assert document["asyncapi"] == "3.0.0"

    def follow(reference: str) -> Any:
        found: Any = document
        for step in reference.removeprefix("#/").split("/"):
            found = found[step]
        return found

    def references(part: Any) -> Iterator[str]:
        if isinstance(part, dict):
            if isinstance(part.get("$ref"), str):
                yield part["$ref"]
            part = list(part.values())
        if isinstance(part, list):
            for each in part:
                yield from references(each)

    assert all(follow(reference) for reference in references(document))
    assert "SocketSubscribe" in document["components"]["messages"]
