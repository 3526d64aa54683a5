"""The service as a whole: start, stop, isolation, restarts, limits (SPEC A1, A2, A7)."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import nexo
from nexo.errors import NexoError
from nexo.testing import Process, process
from tests.integration.classic import Classic, text, value
from tests.processes import broker_pids
from tests.timing import wait_until


@pytest.fixture(scope="module")
def shared() -> Iterator[Process]:
    """One server for the tests that leave it as it was."""
    with process(dashboard=False) as running:
        yield running


def test_every_broker_has_a_process_of_its_own(shared: Process) -> None:  # SPEC A2
    pids = broker_pids(shared)
    assert set(pids) == {"store", "pubsub", "queue", "stream"}
    assert len(set(pids.values())) == 4


def test_a_killed_broker_comes_back_while_the_others_serve(served: Process) -> None:  # SPEC A2
    """kill -9 of pub/sub: Store answers meanwhile, retained values and subscribers return."""
    with nexo.connect(served.url) as client:
        client.store.set("k", 1)
        client.pubsub.publish("conf/a", "kept", retain=True)
        with client.pubsub.subscribe("news/#") as news:
            os.kill(broker_pids(served)["pubsub"], signal.SIGKILL)
            assert client.store.get("k") == 1
            wait_until(lambda: delivered(client, "news/1", "back"), 20)
            assert next(iter(news)).value == "back"
        with client.pubsub.subscribe("conf/+") as conf:
            assert next(iter(conf)).value == "kept"


def test_the_log_says_what_happens_to_the_server_and_its_brokers(tmp_path: Path) -> None:
    """SPEC A2, A7, K4: a broker that is back, the dashboard, a stop and its end, a kill."""
    with process(tmp_path / "d") as server:
        wait_for_line(server, f"the dashboard is ready at {server.http_url}")
        with urllib.request.urlopen(f"{server.http_url}/ready", timeout=10) as reply:
            assert reply.status == 200
        os.kill(broker_pids(server)["queue"], signal.SIGKILL)
        wait_for_line(server, "the queue process ended with -9; restarting it")
        wait_for_line(server, "the queue process is back")
        server.terminate()
        said = server.log_file.read_text()
        assert "supervisor stopping: SIGTERM" in said
        assert "supervisor stopped in " in said
        assert "uvicorn" not in said.lower()
        assert "server process" not in said, "uvicorn's own words"
        assert "ended without a stop" not in said
        server.start()
        killed = server.pid
        wait_for_line(server, f"the dashboard is ready at {server.http_url}", times=2)
        server.kill()
        server.start()
        wait_for_line(server, f"process {killed} on 127.0.0.1:{server.port} ended without a stop")


def test_every_line_of_a_json_log_is_json(tmp_path: Path) -> None:  # SPEC K4
    with process(tmp_path / "nexo", log_format="json", host="0.0.0.0") as server:
        wait_for_line(server, "the dashboard is ready at")
        server.terminate()
        lines = [json.loads(line) for line in server.log_file.read_text().splitlines()]
    told = [(line["level"], line["message"]) for line in lines]
    (warning,) = [text for level, text in told if level == "warning"]
    assert "without encryption" in warning
    assert any(f":{server.port}; dashboard http://" in text for _, text in told)
    assert all(line.keys() >= {"time", "level", "process", "logger", "message"} for line in lines)


def wait_for_line(server: Process, text: str, times: int = 1) -> None:
    wait_until(lambda: server.log_file.read_text().count(text) >= times, what=f"no {text!r}")


def delivered(client: nexo.Client, topic: str, message: str) -> bool:
    """Publish; False while the connection is cut or nobody has subscribed again yet."""
    try:
        return client.pubsub.publish(topic, message) > 0
    except NexoError:
        return False


def test_sigterm_stops_with_0_and_keeps_what_was_acknowledged(tmp_path: Path) -> None:  # SPEC A7
    with process(tmp_path / "d") as server:
        with nexo.connect(server.url) as client:
            for n in range(200):
                client.pubsub.publish(f"t/{n}", n, retain=True)
            began = time.monotonic()
            assert server.terminate() == 0
            assert time.monotonic() - began < 5
        server.start()
        with (
            nexo.connect(server.url) as client,
            client.pubsub.subscribe("t/+") as retained,
        ):
            messages = iter(retained)
            assert {next(messages).value for _ in range(200)} == set(range(200))


def test_killing_the_supervisor_ends_every_process_and_frees_the_folder(tmp_path: Path) -> None:
    with process(tmp_path / "d") as server:
        pids = broker_pids(server).values()
        os.kill(server.pid, signal.SIGKILL)
        server.kill()
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
        server.start()


def test_the_folders_of_a_server_are_its_own(tmp_path: Path) -> None:  # SPEC A8, D7
    """Its data folder, a broker's folder in there, and one elsewhere; until it stops."""
    elsewhere = tmp_path / "elsewhere" / "queues"
    with process(tmp_path / "one", dashboard=False, queue_path=elsewhere) as first:
        inside = first.data_dir / "stream"
        others = [
            refused(f"--data-dir={first.data_dir}"),
            refused(f"--data-dir={tmp_path / 'two'}", f"--stream-path={inside}"),
            refused(f"--data-dir={tmp_path / 'three'}", f"--queue-path={elsewhere}"),
        ]  # all at once, since each waits for a few seconds
        told = [other.communicate(timeout=60)[1] for other in others]
        assert [other.returncode for other in others] == [1, 1, 1]
        assert "waiting: data_dir" in told[0]  # said at once, before the few seconds of patience
        holder = f"process {first.pid} on 127.0.0.1:{first.port}"
        assert f"data_dir = {first.data_dir} is in use by another Nexo server: {holder}" in told[0]
        assert f"error[CONFIG]: stream_path = {inside} is in use" in told[1]
        assert f"error[CONFIG]: queue_path = {elsewhere} is in use" in told[2]
        assert first.terminate() == 0
    with (
        process(tmp_path / "three", dashboard=False, queue_path=elsewhere) as server,
        nexo.connect(server.url) as client,
    ):
        assert client.queue("q").create().push(1)


def refused(*flags: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "nexo", "serve", "--no-dashboard", "--port=0", *flags]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("folder", ["file", "file/below", "/proc/nexo"])
@pytest.mark.parametrize("setting", ["data_dir", "queue_path"])
def test_a_folder_that_cannot_be_made_stops_the_start_with_its_name(
    tmp_path: Path, setting: str, folder: str
) -> None:  # SPEC A8
    (tmp_path / "file").touch()
    places = {"data_dir": str(tmp_path / "data")} | {setting: str(tmp_path / folder)}
    flags = [f"--{name.replace('_', '-')}={place}" for name, place in places.items()]
    command = [sys.executable, "-m", "nexo", "serve", "--port=0", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert f"error[CONFIG]: {setting} = {tmp_path / folder}: " in done.stderr


def test_a_taken_port_stops_the_start_with_its_name(shared: Process, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "nexo",
        "serve",
        f"--port={shared.port}",
        f"--data-dir={tmp_path / 'other'}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1:{shared.port}" in done.stderr


def test_a_client_that_never_reads_its_replies_stops_being_read(shared: Process) -> None:
    """SPEC A2, MEASURE: half-open and slow peers must not grow the server's memory."""
    with Classic("127.0.0.1", shared.port) as client:
        client.map_set("big", bytes(1_000_000))
        client.sock.settimeout(0.5)
        get = struct.pack(">BBII", 1, 0x03, 1, 7) + text("big")
        with pytest.raises(TimeoutError):
            client.sock.sendall(get * 2_000_000)
        assert resident_mb(broker_pids(shared)["store"]) < 150
        with Classic("127.0.0.1", shared.port) as other:
            assert other.map_get("absent") is None


def resident_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def test_requests_in_flight_at_the_cut_fail_with_a_connection_error(served: Process) -> None:
    with nexo.connect(f"{served.url}?while_down=fail") as client:  # SPEC A5
        client.store.set("k", 1)
        served.kill()
        with pytest.raises(NexoError) as caught:
            client.store.get("k")
        assert caught.value.code in ("CONNECTION", "UNAVAILABLE")


def test_status_tells_of_connections_and_disk(shared: Process) -> None:
    with Classic("127.0.0.1", shared.port) as client:
        raw = client.call(0xF0, bytes((1,)))
        assert raw is not None
        status = json.loads(raw[1:])
        assert status["connections"] >= 1
        assert status["disk"]["failed"] is None
        for bad in (b"", b"\x00", b"\x63"):
            with pytest.raises(Exception, match="broker's number"):
                client.call(0xF0, bad)


def test_half_a_frame_and_silence_end_the_connection(tmp_path: Path) -> None:
    with process(tmp_path / "d", idle_ping_ms=100) as server:
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as sock:
            sock.sendall(struct.pack(">BBII", 1, 0x02, 1, 1000) + b"half")
            assert sock.recv(100) == b""
        with Classic("127.0.0.1", server.port) as idle:
            idle.map_set("k", 1)
            assert idle.map_get("k") == 1  # clients without HELLO are never pinged


def test_a_value_of_5_mb_passes_and_one_over_the_limit_is_refused(shared: Process) -> None:
    with Classic("127.0.0.1", shared.port) as client:  # SPEC A8, E7
        client.map_set("large", bytes(5_000_000))
        assert client.map_get("large") == bytes(5_000_000)
        payload = text("k") + text("") + value(bytes(10 * 1024 * 1024))
        with contextlib.suppress(ConnectionError):  # cut off while sending, perhaps
            client.sock.sendall(struct.pack(">BBII", 1, 0x02, 9, len(payload)) + payload)
        with pytest.raises(ConnectionError):
            client.reply(1)


def test_a_save_that_takes_longer_than_the_stop_is_let_finish(tmp_path: Path) -> None:  # F3
    """The other brokers stop in that time, also on a busy machine."""
    with process(tmp_path, dashboard=False, stop_ms=400, store_snapshot_ms=3_600_000) as server:
        with nexo.connect(server.url) as client:
            for base in range(0, 400_000, 10_000):
                client.store.mset({f"key:{n}": n for n in range(base, base + 10_000)})
        assert server.terminate() == 0
        server.start()
        with nexo.connect(server.url) as client:
            assert client.info().store.keys == 400_000


def test_a_save_that_fails_is_no_clean_stop(tmp_path: Path) -> None:  # F3
    with process(tmp_path, dashboard=False, store_snapshot_ms=3_600_000) as server:
        with nexo.connect(server.url) as client:
            client.store.set("key", 1)
        (tmp_path / "store" / "store.snapshot").mkdir()  # in the way of the new one
        assert server.terminate() == 1
    assert "did not stop cleanly" in (tmp_path / "server.log").read_text()
