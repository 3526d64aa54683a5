"""``nexo store`` against a real server (SPEC K5)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from nexo.cli import main


class Shell:
    def __init__(self, url: str) -> None:
        self.url = url

    def __call__(self, *args: str, stdin: str | None = None) -> Result:
        result = CliRunner().invoke(main, ["store", *args, "--url", self.url], input=stdin)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.output
        return result

    def json(self, *args: str) -> Any:
        lines = self(*args, "--json").output.splitlines()
        return [json.loads(line) for line in lines] if len(lines) != 1 else json.loads(lines[0])


@pytest.fixture
def nexo(nexo_url: str) -> Shell:
    return Shell(nexo_url)


def test_values_are_set_printed_and_deleted(nexo: Shell) -> None:
    assert nexo("set", "greeting", "hello").output == "set\n"
    assert nexo("get", "greeting").output == "hello\n"
    assert nexo("set", "user", '{"name": "Max"}', "--as", "json").exit_code == 0
    assert json.loads(nexo("get", "user").output) == {"name": "Max"}
    assert nexo.json("get", "user") == {"value": {"name": "Max"}}
    assert nexo("set", "blob", "-", "--as", "bytes", stdin="raw").exit_code == 0
    assert nexo("get", "blob").stdout_bytes == b"raw"
    assert nexo("del", "greeting", "none").output == "deleted 1\n"


def test_an_absent_key_is_one_line_and_exit_code_one(nexo: Shell) -> None:
    for args in (("get", "x"), ("ttl", "x"), ("expire", "x", "5"), ("inspect", "x")):
        result = nexo(*args)
        assert (result.exit_code, result.output) == (1, "error[NOT_FOUND]: key 'x' not found\n")


def test_conditions_say_whether_they_held(nexo: Shell) -> None:
    assert nexo.json("set", "k", "1", "--if-absent") == {"key": "k", "set": True}
    assert nexo.json("set", "k", "2", "--if-absent") == {"key": "k", "set": False}
    assert nexo.json("set", "k", "2", "--if-equal", "1")["set"]
    assert "not set" in nexo("set", "k", "3", "--if-equal", "1").output
    assert nexo("set", "k", "3", "--if-equal", "1", "--if-absent").exit_code == 2
    assert nexo("set", "k", "4", "--if-equal", "2").exit_code == 0
    assert nexo("set", "k", "5", "--if-equal", "2").exit_code == 1


def test_what_is_not_there_is_exit_code_one(nexo: Shell) -> None:
    """SPEC K5: a script can ask whether something was there."""
    nexo("map", "set", "m", "f", "1")
    nexo("set-of", "add", "s", "x")
    commands = (
        ("del", "x"),
        ("persist", "x"),
        ("map", "del", "m", "x"),
        ("set-of", "del", "s", "y"),
    )
    assert [nexo(*args).exit_code for args in commands] == [1] * 4
    nexo("set", "k", "v")
    assert [nexo(*args).exit_code for args in (("persist", "k"), ("del", "k", "x"))] == [0, 0]


def test_negative_numbers_are_values(nexo: Shell) -> None:
    nexo("set", "degrees", "-5", "--as", "json")
    assert nexo.json("get", "degrees") == {"value": -5}
    nexo("list", "push", "l", "-1", "-2.5")
    assert nexo.json("get", "l") == {"value": ["-1", "-2.5"]}


def test_life_times(nexo: Shell) -> None:
    nexo("set", "k", "v", "--ttl", "1m")
    assert 59 < nexo.json("ttl", "k")["ttl_s"] <= 60
    assert nexo("persist", "k").output == "never expires\n"
    assert nexo("ttl", "k").output == "never expires\n"
    assert nexo("expire", "k", "0.5").output == "expires in 500ms\n"
    assert nexo("set", "k", "v", "--ttl", "0").exit_code == 2


def test_counters(nexo: Shell) -> None:
    assert nexo("incr", "n").output == "1\n"
    assert nexo("incr", "n", "--by", "-3").output == "-2\n"
    assert nexo.json("incr", "n", "--by", "0.5") == {"key": "n", "value": -1.5}
    nexo("set", "text", "x")
    assert nexo("incr", "text").output.startswith("error[WRONG_TYPE]: ")


def test_keys_are_listed(nexo: Shell) -> None:
    assert "no keys" in nexo("keys").output
    assert "did you mean --glob 'user:*'?" in nexo("keys", "user:*").output
    for key in ("user:1", "user:2", "other"):
        nexo("set", key, "x")
    assert nexo.json("keys", "user:") == [{"key": "user:1"}, {"key": "user:2"}]
    assert nexo.json("keys", "--prefix", "user:") == [{"key": "user:1"}, {"key": "user:2"}]
    assert nexo("keys", "a", "--prefix", "b").exit_code == 2
    assert nexo.json("keys", "--glob", "*1") == {"key": "user:1"}
    assert nexo.json("keys", "--limit", "1") == {"key": "other"}
    assert nexo.json("keys", "other", "--long")["kind"] == "value"
    assert "user:2" in nexo("keys", "-l").output


def test_collections(nexo: Shell) -> None:
    assert nexo("map", "set", "m", "f", "1", "--as", "json").output == "added\n"
    assert nexo("map", "get", "m", "f").output == "1\n"
    assert nexo("map", "get", "m", "none").exit_code == 1
    assert nexo.json("get", "m") == {"value": {"f": 1}}
    assert nexo("map", "del", "m", "f").output == "deleted 1\n"
    assert nexo("list", "push", "l", "a", "b").output == "2 values\n"
    assert nexo("list", "push", "l", "z", "--left").output == "3 values\n"
    assert nexo.json("get", "l") == {"value": ["z", "a", "b"]}
    assert nexo("list", "pop", "l").output == "b\n"
    assert nexo("list", "pop", "none").exit_code == 1
    assert nexo("set-of", "add", "s", "x", "y").output == "added 2\n"
    assert nexo("set-of", "del", "s", "x").output == "removed 1\n"
    assert nexo.json("get", "s") == {"value": ["y"]}
    assert nexo.json("inspect", "s")["kind"] == "set"


def test_info_and_clear(nexo: Shell) -> None:
    nexo("set", "k", "v")
    assert nexo.json("info")["keys"] == 1
    assert nexo("clear", "--yes").output == "deleted 1\n"
    assert nexo("clear", stdin="n\n").exit_code == 1
