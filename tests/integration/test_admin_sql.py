"""SQL over HTTP: with the caller's permissions, in bounds, and without a way out (SPEC I10, K3)."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("duckdb")

import nexo
from nexo import limits
from nexo.access.grants import parse_grant
from nexo.access.users import UsersFile
from nexo.admin import queries
from nexo.client.address import Address
from nexo.errors import NexoError, Overloaded
from nexo.testing import Process, process
from tests.integration.admin_api import ACTION, Api, Reply
from tests.timing import wait_until


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with process(tmp_path_factory.mktemp("sql") / "nexo") as server:
        found = Api(server.http_url)
        found.wait_ready()
        with nexo.connect(server.url) as client:
            events = client.stream("events").create()
            events.publish_many(
                [{"n": n} for n in range(10)], keys=[f"k{n % 3}" for n in range(10)]
            )
        yield found


def ask(api: Api, query: str, **more: Any) -> dict[str, Any]:
    return dict(api.post("/sql/query", query=query, **more))


def refused(api: Api, query: str, **more: Any) -> tuple[int, str]:
    reply = api.act("/sql/query", query=query, **more)
    return reply.status, reply.json["message"]


def test_a_question_is_answered_with_columns_and_rows(api: Api) -> None:
    found = ask(api, "select key, count(*) as n from events group by key order by key")
    assert [column["name"] for column in found["columns"]] == ["key", "n"]
    assert found["rows"] == [["k0", 4], ["k1", 3], ["k2", 3]]
    assert (found["more"], found["plan"]) == (False, "")


def test_rows_beyond_the_limit_are_left_out_and_said_to_be_there(api: Api) -> None:
    found = ask(api, "select value from events", limit=4)
    assert (len(found["rows"]), found["more"]) == (4, True)


def test_values_that_json_does_not_have_are_text(api: Api) -> None:
    query = "select 9007199254740993::bigint, 1.50::decimal(5, 2), 'nan'::double, 'x'::blob, [1]"
    assert ask(api, query)["rows"] == [["9007199254740993", "1.50", "nan", "x", [1]]]


def test_a_plan_is_drawn_instead_of_an_answer(api: Api) -> None:
    assert "SCAN" in ask(api, "select * from events", plan=True)["plan"]


def test_views_are_listed_by_the_streams_names(api: Api) -> None:
    found = api.get("/sql/views", search="event")
    assert [view["name"] for view in found["views"]] == [
        "stream_groups", "stream_messages", "stream_offsets", "events",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "query",
    [
        "copy events to 'out.csv'",
        "select 1; select 2",
        "attach 'other.db'",
        "set memory_limit = '9GB'",
        "select * from read_text('/etc/passwd')",
        "select * from read_parquet('/tmp/*.parquet')",
        "select * from '/etc/passwd'",
        "install httpfs",
        "selec 1",
    ],
)
def test_a_question_reaches_nothing_but_streams(api: Api, query: str, tmp_path: Path) -> None:
    status, message = refused(api, query)
    assert status in (400, 404), message
    assert message


def test_a_question_that_takes_too_long_ends(api: Api) -> None:
    status, message = refused(api, "select count(*) from range(100000000000)", timeout_s=0.3)
    assert status == 504
    assert "took longer than 300ms" in message


def test_a_question_that_needs_too_much_memory_is_refused(api: Api) -> None:
    status, message = refused(api, "select list(range) from range(200000000)", timeout_s=120)
    assert status in (400, 503), message


def test_a_reply_has_a_bound_in_bytes_too(api: Api) -> None:
    found = ask(api, "select repeat('x', 9000000) as long from range(6)")
    assert (len(found["rows"]), found["more"]) == (3, True)


async def test_one_question_too_many_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "_running", set(range(limits.HTTP_QUERIES)))
    question = queries.QueryQuestion("select 1", Address("localhost"), "", "", 1)
    with pytest.raises(Overloaded, match="4 queries are running"):
        await queries.answer(question, 1.0)


def test_who_leaves_ends_the_question(api: Api) -> None:
    """More questions than may run at once, each left: the next one finds a place."""
    for _ in range(6):
        connection = http.client.HTTPConnection(api.url.removeprefix("http://"))
        body = json.dumps({"query": "select count(*) from range(100000000000)", "timeout_s": 300})
        connection.request("POST", "/api/v1/sql/query", body, ACTION)
        connection.close()
    wait_until(lambda: api.act("/sql/query", query="select 1").status == 200)


GRANTS = {
    "root": ["*:*:*"],
    "low": ["stream:read:low*"],
    "writer": ["stream:write:*"],
    "nobody": ["store:read:*"],
}


@dataclass(frozen=True)
class Guarded:
    """A server with the streams ``low`` and ``secret``, and the tokens of its users."""

    server: Process
    tokens: dict[str, str]

    def ask(self, user: str, query: str) -> Reply:
        headers = ACTION | {"authorization": f"Bearer {self.tokens[user]}"}
        body = json.dumps({"query": query}).encode()
        return Api(self.server.http_url).request("POST", "/api/v1/sql/query", body, headers)

    def client(self, user: str) -> nexo.Client:
        return nexo.connect(self.server.url, token=self.tokens[user])


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("sql-users") / "nexo"
    users = UsersFile(folder / "users.json")
    tokens = {}
    for name, grants in GRANTS.items():
        users.add(name, None, [parse_grant(grant) for grant in grants])
        tokens[name] = users.add_token(name, "test")
    server = Process(folder, auth=True)
    server.start()

    found = Guarded(server, tokens)
    Api(server.http_url).wait_ready()
    with found.client("root") as client:
        for name in ("low", "secret"):
            client.stream(name).create().publish(f"of {name}")
    yield found
    server.close()


def test_who_may_read_all_streams_may_ask_about_all(guarded: Guarded) -> None:
    found = guarded.ask("root", "select topic from stream_messages order by topic").json
    assert found["rows"] == [["low"], ["secret"]]


def test_who_may_read_one_stream_may_ask_about_that_one(guarded: Guarded) -> None:
    assert guarded.ask("low", "select value from low").json["rows"] == [["of low"]]
    assert guarded.ask("low", "select topic from stream_messages").json["rows"] == [["low"]]
    hidden = guarded.ask("low", "select * from secret")
    assert hidden.status in (403, 404)
    assert "of secret" not in hidden.body.decode()


def test_the_client_asks_about_the_streams_that_its_user_may_read(guarded: Guarded) -> None:
    with guarded.client("low") as client:
        assert client.sql("select value from low").rows() == [(b"of low",)]
        with pytest.raises(NexoError):
            client.sql("select * from secret")


@pytest.mark.parametrize("user", ["writer", "nobody"])
def test_who_may_read_no_stream_learns_nothing(guarded: Guarded, user: str) -> None:
    for query in ("select * from low", "select * from stream_messages"):
        reply = guarded.ask(user, query)
        assert b"of low" not in reply.body
        assert reply.status != 200 or reply.json["rows"] == []


def test_tables_of_users_code_are_read_with_the_grant_of_a_stream_of_their_name(
    guarded: Guarded,
) -> None:
    pytest.importorskip("pyiceberg")
    import pyarrow as pa  # noqa: PLC0415 - as that

    from nexo.lake.catalog import Lake  # noqa: PLC0415 - as that
    from nexo.lake.settings import LakeSettings  # noqa: PLC0415 - as that
    from nexo.lake.user_tables import ensure_user_table  # noqa: PLC0415 - as that

    lake = Lake(LakeSettings(guarded.server.data_dir / "lake"))
    for name in ("low_sums", "Private"):
        rows = pa.table({"total": [f"of {name}"]})
        ensure_user_table(lake, name, rows.schema).append(rows)
    assert guarded.ask("root", 'select * from "Private"').json["rows"] == [["of Private"]]
    assert guarded.ask("low", "select * from low_sums").json["rows"] == [["of low_sums"]]
    for user in ("low", "writer", "nobody"):
        hidden = guarded.ask(user, 'select * from "Private"')
        assert hidden.status == 403
        assert b"of Private" not in hidden.body
