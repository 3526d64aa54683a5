"""Commands in the hands of people: pipes, terminals, encodings, completion (SPEC K5)."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import nexo
from nexo.cli import main

NEXO = [sys.executable, "-c", "from nexo.cli import main; main()"]


def run(*args: str, **env: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*NEXO, *args], capture_output=True, env=os.environ | env, timeout=60, check=False
    )


def on_a_terminal(*args: str) -> bytes:
    """What a terminal would get to see."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen([*NEXO, *args], stdout=theirs, stderr=theirs)
    os.close(theirs)
    seen = b""
    try:
        while part := os.read(ours, 4096):
            seen += part
    except OSError:  # how a terminal ends on Linux
        pass
    process.wait(60)
    os.close(ours)
    return seen


def test_keys_and_values_cannot_steer_a_terminal(nexo_url: str) -> None:
    title = "\x1b]0;owned\x07"
    with nexo.connect(nexo_url) as client:
        client.store.set(f"key{title}", title)
    listed = on_a_terminal("store", "keys", "--url", nexo_url)
    assert b"owned" in listed
    assert b"\x1b]" not in listed
    assert b"\x1b]" not in on_a_terminal("store", "get", f"key{title}", "--url", nexo_url)
    assert b"\x1b]" not in on_a_terminal("store", "get", title, "--url", nexo_url)  # the error
    assert run("store", "get", f"key{title}", "--url", nexo_url).stdout == title.encode() + b"\n"


def test_a_reader_that_has_enough_is_no_failure(nexo_url: str) -> None:
    with nexo.connect(nexo_url) as client:
        client.store.mset({f"key-{number:05}": "x" * 100 for number in range(3_000)})
    command = " ".join(f"'{word}'" for word in [*NEXO, "store", "keys", "--url", nexo_url])
    found = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{command} | head -1"],
        capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert (found.returncode, found.stderr) == (0, b"")


def test_a_terminal_that_lacks_a_character_shows_its_number(nexo_url: str) -> None:
    with nexo.connect(nexo_url) as client:
        client.store.set("k", "h\N{SNOWMAN}")
    found = run("store", "get", "k", "--url", nexo_url, PYTHONIOENCODING="latin-1", PYTHONUTF8="0")
    assert (found.returncode, found.stdout) == (0, b"h\\u2603\n")


@pytest.mark.parametrize(
    ("words", "typed", "expected"),
    [
        ("nexo queue info", "mail-", ["mail-in", "mail-out"]),
        ("nexo dlq list", "mail-i", ["mail-in"]),
        ("nexo stream info", "ord", ["orders"]),
        ("nexo lag", "ord", ["orders"]),
        ("nexo lag orders", "bil", ["billing"]),
        ("nexo store get", "user:", ["user:1"]),
        ("nexo queue info", "zzz", []),
    ],
)
def test_shells_complete_names(nexo_url: str, words: str, typed: str, expected: list[str]) -> None:
    with nexo.connect(nexo_url) as client:
        for name in ("mail-in", "mail-out"):
            client.queue(name).create()
        client.stream("orders").create()
        with client.stream("orders").consume("billing"):
            pass
        client.store.set("user:1", 1)
    env = {
        "_NEXO_COMPLETE": "bash_complete", "NEXO_URL": nexo_url,
        "COMP_WORDS": f"{words} {typed}", "COMP_CWORD": str(len(words.split())),
    }  # fmt: skip
    found = CliRunner(env=env).invoke(main, prog_name="nexo")
    assert [line.removeprefix("plain,") for line in found.output.split()] == expected


def test_a_password_must_come_from_standard_input_if_it_is_to(tmp_path: Path) -> None:
    words = ["user", "add", "max", "--password-stdin", "--data-dir", str(tmp_path)]
    found = CliRunner().invoke(main, words, input="")
    assert found.exit_code == 2
    assert "has no password" in found.output
    assert not (tmp_path / "users.json").exists()


def test_lag_over_none_filters(nexo_url: str) -> None:
    with nexo.connect(nexo_url) as client:
        orders = client.stream("orders")
        orders.create()
        with orders.consume("idle"):
            pass
        found = CliRunner().invoke(main, ["lag", "--over", "0", "--url", nexo_url])
        assert (found.exit_code, found.stdout) == (0, "")
        orders.publish("one")
        found = CliRunner().invoke(main, ["lag", "--over", "0", "--url", nexo_url])
        assert found.exit_code == 3
        assert found.stdout.startswith("orders\tidle")
