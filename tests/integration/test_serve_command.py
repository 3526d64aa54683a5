"""``nexo serve`` as a user starts it."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec import structs

import nexo
from nexo.config import Settings
from nexo.server.processes.folders import FORMAT, FORMAT_FILE, stamp_format
from nexo.testing import free_port

SERVE = [sys.executable, "-m", "nexo", "serve", "--no-dashboard"]


@contextmanager
def serving(*flags: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A started server and what it said up to its list of brokers."""
    command = [*SERVE, *flags]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    said = ""
    try:
        for line in process.stderr:
            said += line
            if line.startswith("  brokers"):
                break
        yield process, said
    finally:
        process.terminate()
        process.wait(10)
        process.stderr.close()


def run(*flags: str) -> subprocess.CompletedProcess[str]:
    command = [*SERVE, *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def test_it_says_where_it_answers_and_stops_cleanly(tmp_path: Path) -> None:  # SPEC A1, A7
    port = free_port()
    with serving("--port", str(port), "--data-dir", str(tmp_path / "data")) as (process, said):
        assert f"nexo://127.0.0.1:{port}" in said
        assert "warning" not in said
        with nexo.connect(f"nexo://127.0.0.1:{port}") as client:
            client.store.set("key", "value")
            assert client.store.get("key") == "value"
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


def test_embedded_it_is_one_process_with_all_brokers(tmp_path: Path) -> None:
    with serving("--embedded", "--port=0", "--data-dir", str(tmp_path)) as (process, said):
        url = next(word for word in said.split() if word.startswith("nexo://"))
        with nexo.connect(url) as client:
            brokers = structs.astuple(client.info())
            assert {broker.process.pid for broker in brokers} == {process.pid}
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0


@pytest.mark.parametrize("mode", [(), ("--embedded",)])
def test_a_folder_of_a_newer_version_is_refused_and_left_alone(
    tmp_path: Path, mode: tuple[str, ...]
) -> None:  # SPEC O7
    stamp = tmp_path / FORMAT_FILE
    stamp.write_text('{"format": 99, "nexo": "9.9.0", "more": []}')
    refused = run(*mode, "--port=0", "--data-dir", str(tmp_path))
    assert refused.returncode == 1
    assert "was written by Nexo 9.9.0" in refused.stderr
    assert "99" in stamp.read_text()


@pytest.mark.parametrize("before", [None, '{"format": 1}', "damaged"])
def test_a_folder_is_marked_with_the_version_that_writes_it(
    tmp_path: Path, before: str | None
) -> None:  # SPEC O7
    stamp = tmp_path / FORMAT_FILE
    if before is not None:
        stamp.write_text(before)
    stamp_format(Settings(data_dir=tmp_path))
    expected = {"format": FORMAT, "nexo": nexo.__version__}
    assert json.loads(stamp.read_text()) == expected


def test_a_folder_in_use_by_an_embedded_server_is_refused(tmp_path: Path) -> None:
    """For that of a server of several processes see tests/integration/test_service.py."""
    with serving("--embedded", "--port=0", "--data-dir", str(tmp_path)) as (process, _):
        second = run("--port=0", "--data-dir", str(tmp_path))
    assert second.returncode == 1
    assert f"error[CONFIG]: data_dir = {tmp_path} is in use" in second.stderr
    assert f"process {process.pid} on 127.0.0.1:" in second.stderr


@pytest.mark.parametrize("mode", [(), ("--embedded",)])
def test_a_port_in_use_is_refused_and_named(tmp_path: Path, mode: tuple[str, ...]) -> None:
    port = str(free_port())
    with serving("--port", port, "--data-dir", str(tmp_path / "one")):
        second = run(*mode, "--port", port, "--data-dir", str(tmp_path / "two"))
    assert second.returncode == 1
    assert f"error[CONFIG]: cannot listen on 127.0.0.1:{port}" in second.stderr


def test_one_port_for_both_is_refused(tmp_path: Path) -> None:  # SPEC A8
    port = str(free_port())
    flags = ("--dashboard", "--port", port, "--http-port", port, "--data-dir", str(tmp_path / "d"))
    refused = run(*flags)
    assert f"error[CONFIG]: port and http_port are both {port}" in refused.stderr
    assert not (tmp_path / "d").exists()


def test_a_misspelt_variable_is_warned_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # SPEC A8
    monkeypatch.setenv("SERVER_SOCKET_PORT", "1")
    with serving("--port=0", "--data-dir", str(tmp_path)) as (_, said):
        assert "SERVER_SOCKET_PORT is not known; did you mean SERVER_SOCKET_TCP_PORT?" in said


def test_settings_come_from_the_file(tmp_path: Path) -> None:  # SPEC A8
    file = tmp_path / "nexo.toml"
    file.write_text(f'port = 0\ndata_dir = "{tmp_path}/from-file"\n', encoding="utf-8")
    with serving("--config", str(file)) as (_, said):
        assert f"{tmp_path}/from-file" in said
    assert (tmp_path / "from-file").is_dir()


def test_an_open_address_is_warned_about(tmp_path: Path) -> None:  # SPEC A10
    with serving("--host=0.0.0.0", "--port=0", "--data-dir", str(tmp_path)) as (_, said):
        assert said.startswith("warning: listening on 0.0.0.0")
