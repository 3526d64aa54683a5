"""The dashboard with authentication on: it logs in, and users see what they may (SPEC A10)."""

from __future__ import annotations

import json
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import nexo
from nexo.access.grants import parse_grant
from nexo.access.users import UsersFile
from nexo.errors import Unauthenticated
from nexo.limits import HTTP_LOGINS_PER_USER
from nexo.model import Broker
from nexo.protocol import stream as wire
from nexo.protocol.ops import Op
from nexo.protocol.stream_ordered import Commit
from nexo.testing import Process
from tests.integration.admin_api import ACTION, Api, Reply, value
from tests.timing import wait_until


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    folder = tmp_path_factory.mktemp("login") / "nexo"
    users = UsersFile(folder / "users.json")
    users.add("root", "a long secret", [parse_grant("*:*:*")])
    users.add("clerk", "a sharp pen", [parse_grant("queue:*:mail*")])
    users.add(
        "reader",
        "a quiet corner",
        [parse_grant("stream:read:mailed"), parse_grant("pubsub:read:mailed/#")],
    )
    (folder / "token").write_text(users.add_token("root", "prometheus"))
    process = Process(folder, auth=True)
    process.start()
    Api(process.http_url).wait_ready()
    with nexo.connect(
        f"{process.url}?client=setup", user="root", password="a long secret"
    ) as client:
        client.queue("mail").create()
        client.queue("payroll").create()
    yield process
    process.close()


def log_in(api: Api, user: str, password: str) -> Reply:
    body = json.dumps({"user": user, "password": password}).encode()
    reply = api.request("POST", "/api/v1/login", body, ACTION)
    api.cookie = reply.headers.get("set-cookie", "").partition(";")[0]
    return reply


def test_who_may_read_a_stream_sees_and_moves_its_ordered_groups(guarded: Process) -> None:
    """SPEC A10, K3."""
    with nexo.connect(guarded.url, user="root", password="a long secret") as client:
        client.stream("mailed").create().publish_many(["a", "b"])
        commit = Commit(group="o", offsets=[("mailed", 0, 0, "")])
        client.link(Broker.STREAM).call(Op.S_COMMIT, wire.pack(commit))
    api = Api(guarded.http_url)
    log_in(api, "reader", "a quiet corner")
    (group,) = api.get("/stream/groups", stream="mailed")
    assert (group["name"], group["mode"], group["lag"]) == ("o", "ordered", 1)
    api.post("/stream/seek", stream="mailed", group="o", mode="ordered", to="end")
    assert api.get("/stream/groups", stream="mailed")[0]["lag"] == 0
    reply = api.act("/stream/seek", stream="mailed", group="no", mode="ordered", to="end")
    assert reply.json["code"] == "NOT_FOUND"


def test_it_asks_for_a_login_and_gives_a_safe_cookie(guarded: Process) -> None:
    api = Api(guarded.http_url)
    assert api.get("/session") == {"required": True, "user": None}
    assert api.look("/overview").json["code"] == "UNAUTHENTICATED"
    reply = log_in(api, "root", "a long secret")
    assert {"HttpOnly", "SameSite=strict"} <= set(reply.headers["set-cookie"].split("; "))
    assert api.get("/session")["user"] == "root"
    assert {row["name"] for row in api.get("/overview")["brokers"]} == {
        "store", "pubsub", "queue", "stream",
    }  # fmt: skip
    assert api.request("GET", "/metrics").status == 200


def test_a_wrong_password_is_refused(guarded: Process) -> None:
    api = Api(guarded.http_url)
    reply = log_in(api, "root", "guess")
    assert (reply.status, reply.json["code"]) == (401, "UNAUTHENTICATED")
    assert "set-cookie" not in reply.headers


def test_a_user_sees_and_does_only_what_is_granted(guarded: Process) -> None:
    api = Api(guarded.http_url)
    log_in(api, "clerk", "a sharp pen")
    api.post("/queue/push", queue="mail", value=value("hello"))
    assert api.get("/queue/info", queue="mail")["info"]["waiting"] >= 1
    for refused in (
        api.act("/queue/push", queue="payroll", value=value(1)),
        api.act("/store/set", key="k", value=value(1)),
        api.look("/queue/info", queue="payroll"),
        api.look("/history", broker="queue"),
        api.look("/pipeline/tables"),
        api.request("GET", "/metrics"),
    ):
        assert (refused.status, refused.json["code"]) == (403, "FORBIDDEN")
    overview = api.get("/overview")
    assert (overview["brokers"], overview["groups"], overview["alerts"]) == ([], [], [])


def test_lists_show_what_the_user_may_see(guarded: Process) -> None:
    """SPEC A10, K4: by name, by a number, and what of it is busiest."""
    with nexo.connect(guarded.url, user="root", password="a long secret") as root:
        for name in ("mailed", "paid"):
            root.stream(name).create().publish(name)
            root.pubsub.publish(f"{name}/last", name, retain=True)
    api = Api(guarded.http_url)
    log_in(api, "clerk", "a sharp pen")
    for sort in ("name", "waiting"):
        page = filled(api, "/queue/list", "queues", sort=sort)
        assert ([row["info"]["name"] for row in page["queues"]], page["total"]) == (["mail"], 1)
    assert [row["name"] for row in filled(api, "/overview", "queues")["queues"]] == ["mail"]
    assert api.look("/stream/list").status == 403
    log_in(api, "reader", "a quiet corner")
    for sort in ("name", "offsets"):
        page = filled(api, "/stream/list", "streams", sort=sort)
        assert ([row["name"] for row in page["streams"]], page["total"]) == (["mailed"], 1)
    overview = filled(api, "/overview", "streams")
    assert [row["name"] for row in overview["streams"]] == ["mailed"]
    assert "paid" not in str(overview)
    page = api.get("/pubsub/topics")
    assert ([row["topic"] for row in page["topics"]], page["total"]) == (["mailed/last"], 1)


def filled(api: Api, path: str, rows: str, **parameters: object) -> Any:
    """The reply as soon as it has rows: what was made just now is watched a moment later."""

    def look() -> Any:
        page = api.get(path, **parameters)
        return page if page[rows] else None

    return wait_until(look)


def test_a_token_works_for_scripts(guarded: Process) -> None:
    token = (guarded.data_dir / "token").read_text()
    reply = Api(guarded.http_url).request(
        "GET", "/metrics", headers={"authorization": f"Bearer {token}"}
    )
    assert b'nexo_up{broker="store"} 1.0' in reply.body


def test_logging_out_ends_it(guarded: Process) -> None:
    api = Api(guarded.http_url)
    log_in(api, "root", "a long secret")
    api.post("/logout")
    assert api.look("/overview").status == 401


def test_guessing_locks_out_who_guesses_and_nobody_else(guarded: Process) -> None:
    """Counted per user and address, as the brokers do, and told with the time to wait."""
    api = Api(guarded.http_url)
    statuses = [log_in(api, "eve", f"guess {number}").status for number in range(5)]
    assert statuses == [401] * 5
    locked = log_in(api, "eve", "guess")
    assert (locked.json["code"], locked.headers["retry-after"]) == ("LOCKED_OUT", "10")
    assert log_in(Api(guarded.http_url), "clerk", "a sharp pen").status == 200
    with nexo.connect(guarded.url, user="root", password="a long secret") as client:
        client.store.set("still", "open")


def test_a_token_or_a_session_is_never_locked_out(guarded: Process) -> None:
    api = Api(guarded.http_url)
    log_in(api, "root", "a long secret")
    reply = Api(guarded.http_url).request("GET", "/metrics")
    while reply.status != 429:
        bearer = {"authorization": f"Bearer nexo_guess{time.monotonic_ns()}"}
        reply = Api(guarded.http_url).request("GET", "/metrics", headers=bearer)
    assert api.request("GET", "/metrics").status == 200
    test_a_token_works_for_scripts(guarded)


def test_failed_logins_are_logged_with_user_and_address(guarded: Process) -> None:
    log_in(Api(guarded.http_url), "mal\nlory", "guess")
    with pytest.raises(Unauthenticated), nexo.connect(guarded.url, user="oscar", password="x") as c:
        c.queue("mail").info()
    log = guarded.log_file.read_text()
    assert r"store      failed login of user 'mal\nlory' from 127.0.0.1" in log
    assert "failed login of user 'oscar' from 127.0.0.1" in log


def until_ready(url: str, context: ssl.SSLContext) -> None:
    """Wait until the dashboard reaches every broker; it has no certificate of its own."""

    def ready() -> bool:
        try:
            urllib.request.urlopen(url, timeout=10, context=context).close()
        except urllib.error.HTTPError as not_yet:
            not_yet.close()
            return False
        return True

    wait_until(ready, every_s=0.1)


def test_where_clients_must_show_a_certificate_browsers_must_too(tmp_path: Path) -> None:
    """``tls_client_ca`` counts for both ports (SPEC A10)."""
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
    key, cert, both = (str(tmp_path / name) for name in ("key.pem", "cert.pem", "both.pem"))
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key]
    subprocess.run([*command, "-out", cert, *subject], check=True, capture_output=True)
    Path(both).write_text(Path(cert).read_text() + Path(key).read_text())
    server = Process(
        tmp_path / "nexo", tls_cert=cert, tls_key=key, tls_client_ca=cert,
        client_certificate=f"&cert_file={both}",
    )  # fmt: skip
    try:
        server.start()
        url = f"https://127.0.0.1:{server.http_port}/health"
        known = ssl.create_default_context(cafile=cert)
        known.load_cert_chain(cert, key)
        with urllib.request.urlopen(url, timeout=10, context=known) as reply:
            assert reply.status == 200
        until_ready(url.replace("health", "ready"), known)
        stranger = ssl.create_default_context(cafile=cert)
        with pytest.raises(OSError, match=r"(?i)certificate|reset|closed|EOF|broken"):
            urllib.request.urlopen(url, timeout=10, context=stranger).close()
    finally:
        server.close()


def test_a_user_who_logs_in_often_throws_nobody_else_out(guarded: Process) -> None:
    """SPEC A10: the places for logins belong to all users."""
    root, clerk = Api(guarded.http_url), Api(guarded.http_url)
    assert log_in(root, "root", "a long secret").status == 200
    cookies = []
    for _ in range(HTTP_LOGINS_PER_USER + 1):
        assert log_in(clerk, "clerk", "a sharp pen").status == 200
        cookies.append(clerk.cookie)
    assert root.get("/session")["user"] == "root"
    clerk.cookie = cookies[0]
    assert clerk.get("/session")["user"] is None


def test_a_login_is_small(guarded: Process) -> None:
    api = Api(guarded.http_url)
    assert log_in(api, "root", "x" * 10_000).status == 413


def test_an_origin_that_is_no_address_is_refused(guarded: Process) -> None:
    api = Api(guarded.http_url)
    reply = api.request("POST", "/api/v1/login", b"{}", ACTION | {"Origin": "http://["})
    assert reply.status == 403


def test_the_cookie_is_secure_behind_a_proxy_that_speaks_tls(guarded: Process) -> None:
    api = Api(guarded.http_url)
    body = json.dumps({"user": "clerk", "password": "a sharp pen"}).encode()
    headers = ACTION | {"X-Forwarded-Proto": "https"}
    reply = api.request("POST", "/api/v1/login", body, headers)
    assert "; Secure" in reply.headers["set-cookie"]


def test_the_api_tells_what_a_user_may_do(guarded: Process) -> None:
    """U7: readers saw buttons that could only fail."""
    clerk, reader = Api(guarded.http_url), Api(guarded.http_url)
    log_in(clerk, "clerk", "a sharp pen")
    log_in(reader, "reader", "a quiet corner")
    everything = {"read": True, "write": True, "admin": True}
    nothing = dict.fromkeys(everything, False)
    assert clerk.get("/may", broker="queue", name="mail") == everything
    assert clerk.get("/may", broker="queue") == everything
    assert clerk.get("/may", broker="queue", name="payroll") == nothing
    assert clerk.get("/may", broker="store") == nothing
    reads = nothing | {"read": True}
    assert reader.get("/may", broker="pubsub", name="mailed/today") == reads
    assert reader.get("/may", broker="pubsub", name="other") == nothing


def test_users_see_their_permissions_and_logins_and_end_them(guarded: Process) -> None:
    clerk, again, root = (Api(guarded.http_url) for _ in range(3))
    log_in(clerk, "clerk", "a sharp pen")
    log_in(again, "clerk", "a sharp pen")
    log_in(root, "root", "a long secret")
    page = clerk.get("/users")
    assert (page["me"], [row["account"]["name"] for row in page["users"]]) == ("clerk", ["clerk"])
    assert page["users"][0]["account"]["grants"] == ["queue:*:mail*"]
    newest = page["users"][0]["logins"][0]
    assert (newest["how"], newest["address"]) == ("password", "127.0.0.1")
    assert {row["account"]["name"] for row in root.get("/users")["users"]} >= {"root", "clerk"}
    assert clerk.act("/users/logout", user="root").status == 403
    clerk.post("/users/logout", user="clerk", login=newest["id"])
    assert again.look("/queue/list").status == 401
    assert root.post("/users/logout", user="clerk")["count"] >= 1
    assert clerk.look("/queue/list").status == 401
    assert root.act("/users/logout", user="clerk").status == 404


def test_a_token_belongs_to_its_user(guarded: Process) -> None:
    token = (guarded.data_dir / "token").read_text()
    headers = {"authorization": f"Bearer {token}"}
    page = Api(guarded.http_url).request("GET", "/api/v1/users", headers=headers).json
    assert page["me"] == "root"
