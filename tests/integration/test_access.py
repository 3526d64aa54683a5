"""A server that wants to know who asks (SPEC A10)."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import shutil
import socket
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import nexo
from nexo import limits
from nexo.access import attempts
from nexo.access.attempts import PER_USER
from nexo.access.grants import parse_grant
from nexo.access.users import UsersFile
from nexo.cli import main
from nexo.errors import ConnectionLost, Forbidden, LockedOut, NexoError, Unauthenticated
from nexo.model import Broker
from nexo.protocol import stream as wire
from nexo.protocol.frames import Status, pack_str
from nexo.protocol.hello import Hello, encode_hello
from nexo.protocol.ops import Op
from nexo.protocol.stream_ordered import Commit
from nexo.testing import Process, Server, process
from tests.raw_connection import RawConnection
from tests.timing import eventually, wait_until
from tests.unit.access.samples import REQUESTS

PASSWORD = "correct horse"
WAIT_S = 15.0


def add(users: UsersFile, name: str, *grants: str) -> None:
    users.add(name, PASSWORD, [parse_grant(text) for text in grants])


@pytest.fixture(scope="module")
def users_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The users ``root`` and ``ana``, made once: a password takes long to hash."""
    path = tmp_path_factory.mktemp("users") / "users.json"
    users = UsersFile(path)
    add(users, "root", "*:*:*")
    add(users, "ana", "store:*:ana.*", "queue:write:jobs", "pubsub:read:news/#", "stream:read:s@g")
    return path


@contextlib.contextmanager
def guard(folder: Path, users_file: Path) -> Iterator[Server]:
    folder.mkdir()
    shutil.copy(users_file, folder)
    server = Server(data_dir=folder, auth=True)
    server.start()
    yield server
    server.close()


@pytest.fixture
def guarded(tmp_path: Path, users_file: Path) -> Iterator[Server]:
    """An embedded server with authentication, and the users ``root`` and ``ana``."""
    with guard(tmp_path / "nexo", users_file) as server:
        yield server


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory, users_file: Path) -> Iterator[Server]:
    """The same for all tests that are not let in."""
    with guard(tmp_path_factory.mktemp("untouched") / "nexo", users_file) as server:
        yield server


def users_of(server: Server | Process) -> UsersFile:
    return UsersFile(server.data_dir / "users.json")


def url_for(server: Server | Process, user: str, password: str = PASSWORD) -> str:
    return server.url.replace("://", f"://{user}:{password.replace(' ', '%20')}@")


class Raw(RawConnection):
    """A connection that logs in when it is told to."""

    def login(self, user: str, broker: Broker = Broker.STORE) -> int:
        return self.ask(Op.HELLO, encode_hello(broker, Hello(user=user, password=PASSWORD)))[0]


@pytest.fixture
def raw(guarded: Server) -> Iterator[Raw]:
    connection = Raw(guarded.port)
    yield connection
    connection.close()


# -- who may come in ----------------------------------------------------------------------


@pytest.mark.parametrize("op", [op for op in Op if op not in (Op.HELLO, Op.CANCEL)])
def test_without_hello_every_request_is_refused(untouched: Server, op: Op) -> None:
    with contextlib.closing(Raw(untouched.port)) as raw:
        status, payload = raw.ask(op, REQUESTS[op])
    assert status == Status.ERR
    assert b"log in with HELLO first" in payload


def test_hello_without_credentials_is_refused(raw: Raw) -> None:
    status, payload = raw.ask(Op.HELLO, encode_hello(Broker.STORE, Hello()))
    assert status == Status.ERR_CODED
    assert payload.startswith(pack_str("UNAUTHENTICATED"))
    assert raw.ask(Op.ECHO, b"hi")[0] == Status.ERR_CODED


def test_requests_behind_a_login_wait_for_it(raw: Raw) -> None:  # SPEC A10
    hello = encode_hello(Broker.STORE, Hello(user="root", password=PASSWORD))
    raw.burst((Op.HELLO, hello), (Op.ECHO, b"hi"), (Op.ECHO, b"there"))
    raw.reply()
    assert [raw.reply(), raw.reply()] == [b"hi", b"there"]


def test_a_connection_keeps_its_user(raw: Raw) -> None:
    assert raw.login("ana") == Status.DATA
    assert raw.login("ana") == Status.DATA
    assert raw.login("root") == Status.ERR_CODED
    assert b"FORBIDDEN" in raw.ask(Op.STATUS, b"\x01")[1]


def test_without_authentication_everything_works_without_hello(nexo_server: Server) -> None:
    raw = Raw(nexo_server.port)
    assert raw.ask(Op.MAP_GET, pack_str("k"))[0] == Status.NULL
    raw.close()


@pytest.mark.parametrize(("user", "password"), [("root", "wrong one"), ("nobody", PASSWORD)])
def test_wrong_credentials_are_refused(guarded: Server, user: str, password: str) -> None:
    with (
        pytest.raises(Unauthenticated, match="wrong"),
        nexo.connect(url_for(guarded, user, password)) as client,
    ):
        client.store.get("k")


def test_a_lock_out_holds_for_the_right_password_too_but_not_for_tokens(guarded: Server) -> None:
    """A password that was right before is compared quickly, so it could be guessed quickly (G1)."""
    token = UsersFile(guarded.data_dir / "users.json").add_token("root", "spare")
    with nexo.connect(url_for(guarded, "root")) as client:
        client.store.set("k", 1)
    for _ in range(PER_USER):
        with pytest.raises(Unauthenticated), nexo.connect(url_for(guarded, "root", "wrong one")):
            pass
    connection = Raw(guarded.port)
    with contextlib.closing(connection):
        for password in ("another guess", PASSWORD):
            hello = encode_hello(Broker.STORE, Hello(user="root", password=password))
            assert b"too many failed logins" in connection.ask(Op.HELLO, hello)[1]
    wait_until(lambda: _may_read(f"nexo://127.0.0.1:{guarded.port}?token={token}"))


def _may_read(url: str) -> bool:
    """Whether the server knows the login: it reads its users file once a second."""
    try:
        with nexo.connect(url) as client:
            return bool(client.store.get("k") == 1)
    except Unauthenticated:
        return False


def test_who_is_new_waits_while_too_many_log_in_at_once(
    guarded: Server, monkeypatch: pytest.MonkeyPatch
) -> None:  # SPEC A5, A10
    monkeypatch.setattr("nexo.access.guard.MOST_CHECKS", 0)
    monkeypatch.setattr(limits, "LOCKED_OUT_PAUSE_S", 0.0)

    async def run() -> None:
        async with nexo.AsyncClient(url_for(guarded, "root"), timeout=1.0) as client:
            with pytest.raises(NexoError, match="within 1 s: too many logins at once"):
                await client.store.get("k")
            monkeypatch.undo()
            await comes_back(client)

    asyncio.run(run())


def test_who_was_in_waits_while_others_are_locked_out(
    guarded: Server, monkeypatch: pytest.MonkeyPatch
) -> None:  # SPEC A5, A10
    async def run() -> None:
        async with nexo.AsyncClient(url_for(guarded, "root"), timeout=1.0) as client:
            await client.store.set("k", 1)
            await asyncio.to_thread(restart_locked, guarded, monkeypatch)
            with pytest.raises(NexoError, match="within 1 s: too many failed logins"):
                await client.store.get("k")
            monkeypatch.undo()
            await comes_back(client)

    asyncio.run(run())


def test_a_call_waits_while_who_was_in_is_locked_out(
    guarded: Server, monkeypatch: pytest.MonkeyPatch
) -> None:  # SPEC A5, A10
    with nexo.connect(url_for(guarded, "root")) as client, ThreadPoolExecutor(1) as pool:
        client.store.set("k", 1)
        guarded.stop()
        restart_locked(guarded, monkeypatch)
        asked = pool.submit(client.store.get, "k")
        assert not wait([asked], timeout=0.5).done, "neither answered nor refused"
        monkeypatch.undo()
        asked.result(WAIT_S)


def test_a_subscription_comes_back_after_it_was_locked_out(
    guarded: Server, monkeypatch: pytest.MonkeyPatch
) -> None:  # SPEC A5, A10
    url = url_for(guarded, "root")
    with nexo.connect(url, timeout=1.0) as client, client.pubsub.subscribe("news") as news:
        restart_locked(guarded, monkeypatch)
        with pytest.raises(LockedOut):
            client.pubsub.subscribe("more")
        monkeypatch.undo()
        with nexo.connect(url) as other:
            wait_until(lambda: other.pubsub.publish("news", "hello"))
        assert news.get(WAIT_S).value == "hello"


def test_a_subscription_to_a_queue_ends_when_its_login_is_no_longer_valid(guarded: Server) -> None:
    with nexo.connect(url_for(guarded, "root")) as client:
        client.queue("jobs").create()
        subscription = client.queue("jobs").subscribe(lambda _: None, wait=0.2)
        guarded.stop()
        users_of(guarded).remove("root")
        guarded.start()
        with pytest.raises(Unauthenticated):
            subscription.wait(30.0)


async def comes_back(client: nexo.AsyncClient) -> None:
    async def back() -> bool:
        with contextlib.suppress(ConnectionLost):  # it may pause longer than the client waits
            await client.store.get("k")
            return True
        return False

    await eventually(back)


def restart_locked(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new server, which has heard of too many failures here, until the patch is undone."""
    server.stop()
    monkeypatch.setattr(attempts, "PER_USER", 0)
    monkeypatch.setattr(limits, "LOCKED_OUT_PAUSE_S", 0.0)
    server.start()


def test_who_guesses_waits_for_each_answer(
    raw: Raw, guarded: Server, monkeypatch: pytest.MonkeyPatch
) -> None:  # SPEC A10
    """A client that was locked out takes no time from those who are logged in."""
    monkeypatch.setattr(limits, "LOCKED_OUT_PAUSE_S", 3_600.0)
    wrong = encode_hello(Broker.STORE, Hello(user="eve", password="a guess"))
    for _ in range(PER_USER):
        assert b"is wrong" in raw.ask(Op.HELLO, wrong)[1]
    raw.burst((Op.HELLO, wrong), (Op.ECHO, b"hi"))
    other = Raw(guarded.port)
    with contextlib.closing(other):
        assert other.login("root") == Status.DATA
    assert not raw.has_reply()


def test_wrong_tokens_do_not_make_wrong_passwords_forgotten(
    raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:  # SPEC A10
    monkeypatch.setattr(attempts, "_MOST_KEYS", 20)
    monkeypatch.setattr(limits, "LOCKED_OUT_PAUSE_S", 0.0)
    wrong = encode_hello(Broker.STORE, Hello(user="root", password="a guess"))
    for _ in range(PER_USER):
        assert b"is wrong" in raw.ask(Op.HELLO, wrong)[1]
    for number in range(30):
        raw.ask(Op.HELLO, encode_hello(Broker.STORE, Hello(user=f"user{number}", token="a guess")))
    assert b"LOCKED_OUT" in raw.ask(Op.HELLO, wrong)[1]


def test_guesses_are_counted_over_all_brokers_together(tmp_path: Path) -> None:
    """Each broker's process lets in by itself, yet four times the guesses are not to be had."""
    add(UsersFile(tmp_path / "users.json"), "ana", "*:*:*")
    turns, answers = iter([*Broker] * 3), list[bytes]()
    with process(tmp_path, auth=True, dashboard=False) as server, ThreadPoolExecutor() as pool:
        for broker in turns:
            answers.append(guess(server.port, broker))
            if b"is wrong" not in answers[-1]:
                break
        answers += pool.map(guess, itertools.repeat(server.port), turns)  # each one's pause is long
    assert len(answers) == 12
    wrong = [answer for answer in answers if b"is wrong" in answer]
    refused = [answer for answer in answers if b"too many failed logins" in answer]
    assert len(wrong) + len(refused) == len(answers)
    assert PER_USER <= len(wrong) <= 2 * PER_USER  # the news travels while others ask


def guess(port: int, broker: Broker) -> bytes:
    """What a connection for one broker is told that has a wrong password."""
    connection = Raw(port)
    hello = encode_hello(broker, Hello(user="ana", password="a guess"))
    with contextlib.closing(connection):
        return connection.ask(Op.HELLO, hello)[1]


def test_a_slow_password_check_stalls_nobody(guarded: Server) -> None:
    """Ten logins with unknown passwords at once, while another client works."""

    async def run() -> float:
        async with nexo.AsyncClient(url_for(guarded, "root")) as client:
            await client.store.set("k", 1)
            tries = [nexo.AsyncClient(url_for(guarded, f"u{n}", "wrong one")) for n in range(10)]
            waiting = [asyncio.ensure_future(one.store.get("k")) for one in tries]
            longest = 0.0
            while not all(task.done() for task in waiting):
                began = time.perf_counter()
                await client.store.get("k")
                longest = max(longest, time.perf_counter() - began)
            await asyncio.gather(*waiting, return_exceptions=True)
            await asyncio.gather(*(one.close() for one in tries))
            return longest

    assert asyncio.run(run()) < 1.0


# -- who may do what ------------------------------------------------------------------------


def test_permissions_are_per_broker_action_and_name(guarded: Server) -> None:
    with nexo.connect(url_for(guarded, "root")) as root:
        root.queue("jobs").create()
        root.stream("s").create().publish("record")
    with nexo.connect(url_for(guarded, "ana")) as ana:
        ana.store.set("ana.color", "red")
        assert ana.store.get("ana.color") == "red"
        assert list(ana.store.keys("ana.")) == ["ana.color"]
        assert ana.queue("jobs").push("work")
        with ana.pubsub.subscribe("news/+"):
            pass
        forbidden: list[Callable[[], object]] = [
            lambda: ana.store.set("bob.color", "red"),
            lambda: ana.store.mget(["ana.color", "bob.color"]),
            lambda: list(ana.store.keys("")),
            ana.store.clear,
            lambda: ana.queue("jobs").pop(),
            lambda: ana.queue("jobs").purge(),
            lambda: ana.queue("other").push("work"),
            lambda: ana.pubsub.publish("news/1", "x"),
            lambda: ana.pubsub.subscribe("#"),
            lambda: ana.stream("s").publish("x"),
            lambda: ana.stream("t").create(),
        ]
        for attempt in forbidden:
            with pytest.raises(Forbidden, match="'ana' may not"):
                attempt()


def test_lists_are_of_what_the_user_may_see(guarded: Server) -> None:
    """SPEC A10."""
    grants = ("queue:read:mail*", "stream:write:s*", "pubsub:read:news/#")
    users_of(guarded).set_grants("ana", [parse_grant(text) for text in grants])
    with nexo.connect(url_for(guarded, "root")) as root, root.pubsub.subscribe("secret/#"):
        for name in ("mail", "mail/eu", "payroll"):
            root.queue(name).create()
        for name in ("s1", "hidden", "s2"):
            root.stream(name).create()
        for topic in ("news/1", "secret/1"):
            root.pubsub.publish(topic, "x", retain=True)
        wait_until(lambda: "mail" in command(guarded, "queue", "list").stdout)
        with nexo.connect(url_for(guarded, "ana")) as ana, ana.pubsub.subscribe("news/+"):
            assert ana.queues() == ["mail", "mail/eu"]
            assert ana.streams() == ["s1", "s2"]
            assert ana.streams("s2") == ["s2"]
            assert ana.streams("h") == []
            assert [row.topic for row in ana.pubsub.retained("#")] == ["news/1"]
            assert [row.pattern for row in ana.pubsub.subscriptions()] == ["news/+"]
            with pytest.raises(Forbidden, match="everything of the store broker"):
                list(ana.store.keys())


def test_a_token_logs_in(guarded: Server) -> None:
    token = users_of(guarded).add_token("ana", "laptop")
    wait_until(lambda: works(f"{guarded.url}?token={token}"))


def works(url: str) -> bool:
    try:
        with nexo.connect(url) as client:
            client.store.set("ana.k", 1)
    except NexoError:
        return False
    return True


def enters(url: str) -> bool:
    with contextlib.suppress(Unauthenticated), nexo.connect(url):
        return True
    time.sleep(0.4)  # who asks more often is locked out
    return False


# -- changes while it runs ------------------------------------------------------------------


def test_a_permission_taken_away_counts_for_open_connections(guarded: Server) -> None:
    with nexo.connect(url_for(guarded, "ana")) as ana:
        ana.store.set("ana.k", 1)
        users_of(guarded).set_grants("ana", [parse_grant("store:read:ana.*")])

        def refused() -> bool:
            try:
                ana.store.set("ana.k", 2)
            except Forbidden:
                return True
            except NexoError:
                return False  # the connection was just cut
            return False

        wait_until(refused)
        assert ana.store.get("ana.k") is not None


def test_a_removed_user_loses_its_connections(guarded: Server, raw: Raw) -> None:
    assert raw.login("ana") == Status.DATA
    users_of(guarded).remove("ana")

    def cut() -> bool:
        try:
            raw.ask(Op.ECHO)
        except OSError:
            return True
        return False

    wait_until(cut)


# -- the real processes -----------------------------------------------------------------------


@pytest.mark.slow
def test_a_relayed_request_runs_as_the_user_of_its_connection(tmp_path: Path) -> None:
    users = UsersFile(tmp_path / "nexo" / "users.json")
    add(users, "ana", "store:*:*", "queue:read:q")
    process = Process(tmp_path / "nexo", dashboard=False, auth=True)
    try:
        process.start()
        raw = Raw(process.port)
        assert b"log in with HELLO first" in raw.ask(Op.Q_EXISTS, pack_str("q"))[1]
        assert raw.login("ana") == Status.DATA
        assert raw.ask(Op.MAP_GET, pack_str("k"))[0] == Status.NULL
        assert b"not found" in raw.ask(Op.Q_EXISTS, pack_str("q"))[1]
        assert b"FORBIDDEN" in raw.ask(Op.Q_CREATE, pack_str("q") + pack_str("{}"))[1]
        assert b"FORBIDDEN" in raw.ask(Op.S_EXISTS, pack_str("s"))[1]
        raw.close()
        log = process.log_file.read_text()
        assert PASSWORD not in log
    finally:
        process.close()


def test_a_peer_that_never_logs_in_is_dropped(
    guarded: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nexo.limits.FIRST_BYTES_S", 0)
    with socket.create_connection(("127.0.0.1", guarded.port), timeout=WAIT_S) as silent:
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with contextlib.suppress(ConnectionResetError):
            assert silent.recv(1) == b""


# -- the command ---------------------------------------------------------------------------


def test_users_are_managed_from_the_command_line(tmp_path: Path) -> None:
    def run(*arguments: str, stdin: str = "") -> str:
        command = ["user", *arguments, "--data-dir", str(tmp_path)]
        result = CliRunner().invoke(main, command, input=stdin)
        assert result.exit_code == 0, result.output
        return result.stdout

    run("add", "ana", "--grant", "queue:write:jobs.*", "--password-stdin", stdin=PASSWORD + "\n")
    run("add", "bob", "--no-password")
    prompted = run("passwd", "ana", stdin="another horse\nanother horse\n")
    assert "another horse" not in prompted
    token = run("token", "bob", "ci").strip()
    assert token.startswith("nexo_")
    run("grant", "bob", "*:read:*")
    listed = run("list")
    assert "queue:write:jobs.*" in listed
    assert token not in listed
    run("revoke", "bob", "ci")
    run("remove", "bob")
    assert list(UsersFile(tmp_path / "users.json").load()) == ["ana"]


def test_the_command_says_what_is_wrong(tmp_path: Path) -> None:
    command = ["user", "add", "ana", "--no-password", "--grant", "all", "--data-dir", str(tmp_path)]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 2
    assert "broker:action:pattern" in result.output
    assert not (tmp_path / "users.json").exists()


@pytest.mark.parametrize(("text", "code", "said"), [("[{]", 1, "not a users file"), ("[]", 0, "")])
def test_a_broken_users_file_stops_the_start(
    tmp_path: Path, text: str, code: int, said: str
) -> None:
    (tmp_path / "users.json").write_text(text)
    process = Process(tmp_path, dashboard=False, auth=True)
    try:
        if code:
            with pytest.raises(RuntimeError, match=said):
                process.start()
        else:
            process.start()
            assert "nobody can log in" in process.log_file.read_text()
    finally:
        process.close()


# -- the commands of a user who may little --------------------------------------------------


def command(server: Server, *args: str) -> Result:
    return CliRunner().invoke(main, ["--url", url_for(server, "ana"), *args])


def test_who_may_read_a_stream_sees_and_moves_all_its_groups(guarded: Server) -> None:
    """SPEC A10, K5: ordered groups too, as far as they read that stream."""
    add(users_of(guarded), "bob", "stream:*:s*")
    with nexo.connect(url_for(guarded, "root")) as root:
        for name in ("s", "hidden"):
            root.stream(name).create().publish_many(["a", "b", "c"])
        root.stream("s").seek("g", "end")
        commit = Commit(group="o", offsets=[("s", 0, 0, ""), ("hidden", 0, 0, "")])
        root.link(Broker.STREAM).call(Op.S_COMMIT, wire.pack(commit))
    guarded.stop()
    guarded.start()

    def shown(*args: str) -> list[dict[str, Any]]:
        command = [*args, "--json", "--url", url_for(guarded, "bob")]
        result = CliRunner().invoke(main, command)
        assert (result.exit_code, result.stderr) == (0, "")
        return [json.loads(line) for line in result.stdout.splitlines()]

    assert shown("stream", "info", "s")[0]["ordered_groups"] == ["o"]
    ordered = shown("stream", "groups", "s")[1]
    assert (ordered["name"], ordered["lags"]) == ("o", {"s": 2})
    assert "hidden" not in json.dumps(ordered)
    assert {(row["group"], row["lag"]) for row in shown("lag", "s")} == {("g", 0), ("o", 2)}
    assert [row["kind"] for row in shown("lag", "s", "o")] == ["ordered"]
    assert shown("seek", "s", "o", "end")[0]["lag"] == 0
    everything = ["lag", "--url", url_for(guarded, "bob")]
    assert "everything of the stream broker" in CliRunner().invoke(main, everything).stderr


def test_who_may_not_read_all_ordered_groups_is_told_that_they_are_not_counted(
    guarded: Server,
) -> None:
    """SPEC K5: a list is of more than one stream."""
    users_of(guarded).set_grants("ana", [parse_grant("stream:*:s*")])
    with nexo.connect(url_for(guarded, "root")) as root:
        root.stream("s").create()
    wait_until(lambda: command(guarded, "stream", "groups", "s").exit_code == 0)
    listed = command(guarded, "stream", "list", "s")
    assert listed.stderr == "ordered groups are not shown: it takes stream:read:*\n"
    assert listed.exit_code == 0


def test_bench_tells_the_first_refusal_not_that_of_its_clean_up(guarded: Server) -> None:
    """SPEC A10, K5."""
    refused = command(guarded, "bench", "--seconds", "10ms")
    assert refused.exit_code == 1
    assert "user 'ana' may not write store key 'nexo-bench-" in refused.stderr


def test_top_ends_with_the_refusal_if_nothing_may_be_read(guarded: Server) -> None:
    """SPEC A10, K5."""
    refused = command(guarded, "top", "--once", "--interval", "50ms")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert refused.stderr.startswith("error[FORBIDDEN]: user 'ana' may not read")


def test_top_shows_what_may_be_read_and_what_may_not(guarded: Server) -> None:
    """SPEC A10, K5."""
    users_of(guarded).set_grants("ana", [parse_grant("queue:read:*")])
    wait_until(lambda: command(guarded, "top", "--once", "--interval", "50ms").exit_code == 0)
    shown = command(guarded, "top", "--once", "--interval", "50ms", "--json")
    rows = {row["broker"]: row for row in json.loads(shown.stdout)["brokers"]}
    assert rows["queue"]["up"]
    assert rows["store"]["holds"] == "forbidden"
    assert "forbidden" in command(guarded, "top", "--once", "--interval", "50ms").stdout


def test_the_environment_logs_in_clients_and_commands(
    guarded: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SPEC A10, K5: a secret need not stand in a URL, where others see it."""
    with pytest.raises(Unauthenticated, match="set NEXO_TOKEN, or NEXO_USER and NEXO_PASSWORD"):
        nexo.connect(guarded.url)
    command = ["store", "set", "ana.k", "1", "--url", guarded.url]
    assert "NEXO_TOKEN" in CliRunner().invoke(main, command).output
    monkeypatch.setenv("NEXO_USER", "ana")
    monkeypatch.setenv("NEXO_PASSWORD", PASSWORD)
    assert CliRunner().invoke(main, command).exit_code == 0
    monkeypatch.delenv("NEXO_PASSWORD")
    monkeypatch.setenv("NEXO_TOKEN", users_of(guarded).add_token("ana", "laptop"))
    wait_until(lambda: works(guarded.url))


async def test_a_message_that_is_forbidden_fails_alone(guarded: Server) -> None:
    """SPEC A10, C2: those of the same loop turn that are allowed are published."""
    add(users_of(guarded), "bob", "pubsub:write:news/#")
    wait_until(lambda: enters(url_for(guarded, "bob")))
    async with nexo.AsyncClient(url_for(guarded, "bob")) as client:
        topics = ["news/1", "secret", "news/2"]
        sent = (client.pubsub.publish(topic, 1) for topic in topics)
        results = await asyncio.gather(*sent, return_exceptions=True)
    assert [type(result) for result in results] == [int, Forbidden, int]


@pytest.mark.parametrize("retain", [False, True])
async def test_messages_keep_their_order_around_one_that_is_forbidden(
    guarded: Server, retain: bool
) -> None:
    """SPEC C2, A10: what leaves later does not overtake what went with it."""
    add(users_of(guarded), "bob", "pubsub:*:news/#")
    wait_until(lambda: enters(url_for(guarded, "bob")))
    async with nexo.AsyncClient(url_for(guarded, "bob")) as client:
        subscription = await client.pubsub.subscribe("news/#", retained=False)
        sent = [
            client.pubsub.publish("news/a", 1, retain=retain),
            client.pubsub.publish("secret", 2, retain=retain),
            client.pubsub.publish("news/b", 3, retain=retain),
        ]
        await asyncio.sleep(0)  # the next one leaves in a request of its own, before a reply
        sent.append(client.pubsub.publish("news/a", 4, retain=retain))
        found = await asyncio.gather(*sent, return_exceptions=True)
        assert [type(each) for each in found] == [int, Forbidden, int, int]
        assert "pubsub:write:secret" in str(found[1])
        got = [await subscription.get(10) for _ in range(3)]
        assert [message.value for message in got] == [1, 3, 4]


async def test_a_subscription_that_is_no_longer_allowed_ends_alone(guarded: Server) -> None:
    """SPEC A5, A10: after a reconnect the others of the client go on."""
    users = users_of(guarded)
    await asyncio.to_thread(guarded.stop)
    users.set_grants("ana", map(parse_grant, ("pubsub:read:news/#", "pubsub:read:chat/#")))
    await asyncio.to_thread(guarded.start)
    async with (
        nexo.AsyncClient(url_for(guarded, "ana")) as ana,
        nexo.AsyncClient(url_for(guarded, "root")) as root,
    ):
        news, chat = await ana.pubsub.subscribe("news/#"), await ana.pubsub.subscribe("chat/#")
        await asyncio.to_thread(guarded.crash)
        users.set_grants("ana", [parse_grant("pubsub:read:chat/#")])
        await asyncio.to_thread(guarded.start)
        await eventually(lambda: root.pubsub.publish("chat/1", "hi"))
        assert (await chat.get(WAIT_S)).value == "hi"
        with pytest.raises(Forbidden):
            await news.get(WAIT_S)
