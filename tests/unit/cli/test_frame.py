"""The frame around all commands: finding them, shared options, errors, printing."""

import json
import socket
from pathlib import Path

import click
import msgspec
import pytest
from click.testing import CliRunner, Result

from nexo import cli
from nexo.cli import completion, options, output
from nexo.cli.operate import serve
from nexo.config import SETTINGS, load
from nexo.errors import ConfigError, NotFound
from nexo.server.processes.addresses import Addresses


@click.group()
def fake() -> None:
    """A group as a broker's module would offer it."""


@fake.command()
def fail() -> None:
    raise NotFound("queue 'mail' does not exist; create it first")


@fake.command()
def show() -> None:
    output.rows([{"name": "a", "size": 1000}, {"name": "b", "size": 2}], ["name", "size"])


@fake.command()
def query() -> None:
    output.rows([{"took_ms": 1}], ["took_ms"], literal=True)


@fake.command()
@click.argument("text")
@options.as_option
def echo(text: str, kind: str) -> None:
    output.value(options.read_value(text, kind))


@fake.command()
def where() -> None:
    output.fields({"url": options.common().url, "timeout_s": options.common().timeout_s})


@fake.command()
def times() -> None:
    histogram = {"buckets": [0, 1], "sum_s": 0.1}
    output.fields(
        {
            "created_ms": 1_700_000_000_000,
            "due_ms": 0,
            "visibility_timeout_ms": 30_000,
            "disk": {"size_bytes": 2_048, "sync_times": histogram},
        }
    )


@fake.command()
@click.option("--number", type=int)
def number(number: int) -> None:
    msgspec.msgpack.encode(number)


@fake.command(cls=options.SignedCommand)
@click.argument("values", nargs=-1)
@click.option("--by", type=float, default=0.0)
def add(values: tuple[str, ...], by: float) -> None:
    output.line({"values": values, "by": by})


options.add_shared(fake)


SERVER = "nexo://flag:2"


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> click.Command:
    root = cli.Commands(name="nexo", params=options.shared_params())
    monkeypatch.setattr(root, "get_command", lambda ctx, name: fake)
    return root


def run(root: click.Command, *args: str, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(root, ["fake", *args], input=stdin)


def test_help_lists_the_commands_that_exist() -> None:
    result = CliRunner().invoke(cli.main, ["--help"])
    assert result.exit_code == 0
    assert "serve" in result.output
    assert "Run the server." in result.output


def test_an_unknown_command_is_a_usage_error() -> None:
    assert CliRunner().invoke(cli.main, ["nonsense"]).exit_code == 2


def test_an_error_of_ours_is_one_line_with_its_code(root: click.Command) -> None:
    result = run(root, "fail")
    assert result.exit_code == 1
    assert result.stderr == "error[NOT_FOUND]: queue 'mail' does not exist; create it first\n"
    assert result.stdout == ""


def test_with_json_the_error_is_json_too(root: click.Command) -> None:
    result = run(root, "fail", "--json")
    assert json.loads(result.stderr)["error"] == "NOT_FOUND"


def test_rows_are_a_table_for_people(root: click.Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_piped", lambda: False)
    shown = run(root, "show").stdout.replace("─", "")
    assert shown.split() == ["name", "size", "a", "1,000", "b", "2"]


def test_rows_are_lines_with_tabs_in_a_pipe_and_json_if_asked_for(root: click.Command) -> None:
    """SPEC K5: `| head -1` is a row, and numbers are digits."""
    assert run(root, "show").stdout == "a\t1000\nb\t2\n"
    lines = run(root, "show", "--json").stdout.splitlines()
    assert [json.loads(line) for line in lines] == [
        {"name": "a", "size": 1000},
        {"name": "b", "size": 2},
    ]


def test_columns_that_a_query_named_are_shown_as_they_are(
    root: click.Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(root, "query").stdout == "1\n"
    monkeypatch.setattr(output, "_piped", lambda: False)
    assert run(root, "query").stdout.replace("─", "").split() == ["took_ms", "1"]


def test_a_value_is_printed_as_it_is(root: click.Command) -> None:
    assert run(root, "echo", "hällo").stdout == "hällo\n"
    assert json.loads(run(root, "echo", '{"a": [1]}', "--as", "json").stdout) == {"a": [1]}
    assert run(root, "echo", "-", "--as", "bytes", stdin=b"\x00\xff").stdout_bytes == b"\x00\xff"


def test_json_output_shows_bytes_as_base64(root: click.Command) -> None:
    shown = run(root, "echo", "-", "--as", "bytes", "--json", stdin=b"\x00\xff").stdout
    assert json.loads(shown) == {"value": {"base64": "AP8="}}


@pytest.mark.parametrize("args", [("echo", "{", "--as", "json"), ("echo", "@/no/such/file")])
def test_a_bad_value_is_a_usage_error(root: click.Command, args: tuple[str, ...]) -> None:
    assert run(root, *args).exit_code == 2


def test_the_url_comes_from_the_flag_before_the_environment(
    root: click.Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEXO_URL", "nexo://env:1")
    assert json.loads(run(root, "where", "--json").stdout)["url"] == "nexo://env:1"
    flagged = run(root, "where", "--json", "--url", "nexo://flag:2", "--timeout", "3")
    assert json.loads(flagged.stdout) == {"url": "nexo://flag:2", "timeout_s": 3.0}


@pytest.mark.parametrize(
    "args",
    [("--url", SERVER, "fake", "where"), ("fake", "--url", SERVER, "where")],
    ids=["before the command", "before its subcommand"],
)
def test_shared_options_may_stand_at_any_level(
    root: click.Command, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...]
) -> None:
    """SPEC K5: the flag counts wherever it is, and before the environment."""
    monkeypatch.setenv("NEXO_URL", "nexo://env:1")
    result = CliRunner().invoke(root, ["--json", "--timeout", "2m", *args])
    assert json.loads(result.stdout) == {"url": SERVER, "timeout_s": 120.0}


def test_an_address_for_a_command_that_asks_no_server_is_refused() -> None:
    result = CliRunner().invoke(cli.main, ["--url", SERVER, "doctor"])
    assert result.exit_code == 2
    assert "doctor asks no server" in result.stderr


@pytest.mark.parametrize(
    "args",
    [
        ("--json", "nonsense"),
        ("nonsense", "--json"),
        ("--nonsense", "--json"),
        ("store", "set", "--json"),
        ("store", "set", "a", "nojson", "--as", "json", "--json"),
        ("queue", "push", "q", "1", "--delay", "10x", "--json"),
        ("stream", "update", "s", "--retention", "5y", "--json"),
        ("user", "add", "ana", "--grant", "queue:push", "--json"),
    ],
)
def test_wrong_usage_is_json_too(args: tuple[str, ...]) -> None:
    """SPEC K5: --json everywhere, and bad text is exit code 2 in every command."""
    result = CliRunner().invoke(cli.main, args)
    assert result.exit_code == 2
    found = json.loads(result.stderr)
    assert found["error"] == "USAGE"
    assert found["message"]


def test_a_number_beyond_64_bits_is_wrong_usage(root: click.Command) -> None:
    result = run(root, "number", "--number", str(10**30))
    assert result.exit_code == 2
    assert "too large" in result.stderr


def test_negative_numbers_are_values(root: click.Command) -> None:
    """SPEC K5: `nexo store set degrees -5` needs no --."""
    found = json.loads(run(root, "add", "-5", "--by", "-2", "-.5e3", "--", "-x").stdout)
    assert found == {"values": ["-5", "-.5e3", "-x"], "by": -2.0}
    found = json.loads(run(root, "add", "a", "--by=-2", "-5h", "-", "--json").stdout)
    assert found == {"values": ["a", "-5h", "-"], "by": -2.0}
    assert run(root, "add", "-x").exit_code == 2
    assert "No such option '--nope'" in run(root, "add", "-5", "--nope").stderr


def test_a_timeout_must_be_positive(root: click.Command) -> None:
    assert run(root, "where", "--timeout", "0").exit_code == 2


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(shell: str) -> None:
    result = CliRunner().invoke(cli.main, ["completion", shell])
    assert result.exit_code == 0
    assert "_NEXO_COMPLETE" in result.output


def test_completion_refuses_other_shells() -> None:
    assert CliRunner().invoke(completion.command, ["cmd.exe"]).exit_code == 2


def test_serve_has_a_flag_for_every_setting() -> None:
    flags = {param.name for param in serve.command.params}
    assert set(SETTINGS) <= flags


def test_serve_stops_at_a_bad_flag_and_names_it() -> None:
    result = CliRunner().invoke(cli.main, ["serve", "--port", "many"])
    assert result.exit_code == 1
    assert "port = 'many'" in result.stderr


@pytest.mark.parametrize(
    ("given", "meant"),
    [("--tcp-port", "--port"), ("--bind", "--host"), ("--no-dashbord", "--no-dashboard")],
)
def test_serve_tells_the_flag_that_was_meant(given: str, meant: str) -> None:  # SPEC A8, K5
    result = CliRunner().invoke(cli.main, ["serve", given, "1"])
    assert result.exit_code == 2
    assert f"No such option '{given}'; did you mean {meant}" in result.output


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.8.8.8"])
def test_loopback_needs_no_warning(host: str) -> None:  # SPEC A10
    assert serve.exposure_warnings(load(flags={"host": host})) == []


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org"])
def test_an_address_others_can_reach_is_warned_about(host: str) -> None:  # SPEC A10
    (warning,) = serve.exposure_warnings(load(flags={"host": host}))
    assert warning is not None
    assert host in warning


def test_the_warning_names_what_is_missing_and_ends_with_it(tmp_path: Path) -> None:  # SPEC A10
    tls = {"host": "0.0.0.0", "tls_cert": tmp_path / "cert", "tls_key": tmp_path / "key"}
    (warning,) = serve.exposure_warnings(load(flags=tls))
    assert warning is not None
    assert "auth" in warning
    assert "tls" not in warning
    assert serve.exposure_warnings(load(flags=tls | {"auth": True})) == []


def test_config_errors_are_input_errors() -> None:
    with pytest.raises(ConfigError):
        load(flags={"port": -1})


def test_a_command_that_does_not_exist_brings_those_like_it() -> None:
    result = CliRunner().invoke(cli.main, ["strem", "list"])
    assert result.exit_code == 2
    assert "Did you mean stream" in result.output
    assert "Did you mean" not in CliRunner().invoke(cli.main, ["zzzzzz"]).output


def test_a_server_that_is_not_there_is_told_at_once_with_what_to_do() -> None:
    with socket.socket() as taken:  # bound, but nobody listens
        taken.bind(("127.0.0.1", 0))
        url = f"nexo://127.0.0.1:{taken.getsockname()[1]}"
        result = CliRunner().invoke(cli.main, ["store", "get", "k", "--url", url])
    assert result.exit_code == 1
    assert result.output.startswith(f"error[CONNECTION]: no server answers at {url}")
    assert "nexo serve" in result.output


def test_times_and_durations_are_shown_for_people_and_as_they_are_in_json(
    root: click.Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "_piped", lambda: False)
    lines = run(root, "times").output.splitlines()
    assert lines[0].startswith("created             2023-11-1")  # whatever the time zone
    assert lines[1:] == [
        "due                 -",
        "visibility timeout  30s",
        "disk size           2.0 KiB",
    ]
    assert json.loads(run(root, "times", "--json").output)["created_ms"] == 1_700_000_000_000


def test_the_banner_shows_addresses_that_work() -> None:  # SPEC A1, A10
    plain = serve.banner(load(), Addresses("127.0.0.1", 7654, 8080))
    assert "  clients    nexo://127.0.0.1:7654\n" in plain
    assert "  dashboard  http://127.0.0.1:8080 " in plain
    assert "  access     auth off, TLS off\n" in plain
    secure = serve.banner(load(flags={"auth": True}), Addresses("::1", 7654, 8080, tls=True))
    assert "nexos://[::1]:7654\n" in secure
    assert "https://[::1]:8080 " in secure
    assert "auth on, TLS on" in secure
    assert "dashboard" not in serve.banner(load(), Addresses("127.0.0.1", 7654, None))


@pytest.mark.parametrize(("host", "near"), [("0.0.0.0", "127.0.0.1"), ("::", "[::1]")])
def test_a_server_on_all_addresses_is_named_by_its_machine(host: str, near: str) -> None:
    everywhere = Addresses(host, 7654, 8080)
    assert everywhere.url == f"nexo://{socket.gethostname()}:7654"
    assert everywhere.near_url == f"nexo://{near}:7654", "which needs no name to be known"
    secure = Addresses(host, 7654, 8080, tls=True)
    assert secure.near_url == secure.url, "as certificates are for names"
    assert Addresses("10.0.0.1", 7654, 8080).near_url == "nexo://10.0.0.1:7654"


def test_every_flag_of_serve_shows_its_variable() -> None:  # SPEC A8
    shown = CliRunner().invoke(cli.main, ["serve", "--help"], terminal_width=200).output
    for each in SETTINGS.values():
        assert f"[env var: {each.variable}" in shown


def user(*args: str) -> Result:
    return CliRunner().invoke(cli.main, ["user", *args])


def test_users_are_kept_in_a_file_that_is_told(tmp_path: Path) -> None:  # SPEC A10, K5
    added = user("add", "ana", "--no-password", "--data-dir", str(tmp_path))
    assert added.stdout == f"user ana added to {tmp_path / 'users.json'}\n"
    assert f"no server has run with {tmp_path}" in added.stderr
    (tmp_path / "store").mkdir()
    assert user("list", "--data-dir", str(tmp_path)).stderr == ""
    assert user("remove", "ana", "--data-dir", str(tmp_path)).exit_code == 0
    empty = user("list", "--data-dir", str(tmp_path))
    assert empty.stderr == f"{tmp_path / 'users.json'} has no users\n"


@pytest.mark.parametrize("option", ["--url", "--timeout"])
def test_users_are_not_reached_over_the_network(option: str) -> None:  # SPEC K5
    refused = user("list", option, "1")
    assert (refused.exit_code, "o such option" in refused.stderr) == (2, True)
