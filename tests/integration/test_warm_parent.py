"""The process that forks the brokers: what happens when it dies, hangs or gets signals (A1, A2)."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import nexo
from nexo.testing import Process, process
from tests.processes import SUPERVISOR, broker_pids, named
from tests.timing import wait_until


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Process]:
    with process(tmp_path / "d", dashboard=False) as running:
        yield running


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def private_kb(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def zombies(server: Process) -> list[str]:
    """Processes of the server that have ended and that nobody has waited for."""
    states = (path.read_text().rpartition(")")[2].split() for path in every_stat())
    return [state for state, _, group, *_ in states if state == "Z" and int(group) == server.pid]


def every_stat() -> Iterator[Path]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and (folder / "stat").exists():
            yield folder / "stat"


def kill(server: Process, name: str) -> None:
    """Kill one process, and wait until another one has taken its place."""
    old = named(server)[name]
    os.kill(old, signal.SIGKILL)
    wait_until(lambda: named(server).get(name, old) != old)


def kill_broker(server: Process) -> None:
    kill(server, "store")
    use(server)


def use(server: Process) -> None:
    """Have every broker answer."""
    with nexo.connect(server.url, while_down="wait") as client:
        client.store.set("k", 1)
        client.pubsub.publish("t", 1)
        client.queue("q").create()
        client.stream("s").create()


def test_brokers_are_forked_from_one_process_and_have_names(server: Process) -> None:
    found = named(server)
    assert set(found) == {SUPERVISOR, "warm", "store", "pubsub", "queue", "stream"}
    assert {parent_of(pid) for pid in broker_pids(server).values()} == {found["warm"]}
    assert parent_of(found["warm"]) == server.pid


def test_brokers_outlive_the_warm_parent_and_a_new_one_takes_its_place(server: Process) -> None:
    before = broker_pids(server)
    kill(server, "warm")
    assert broker_pids(server) == before
    kill_broker(server)
    found = named(server)
    assert parent_of(found["store"]) == found["warm"]
    assert server.terminate() == 0  # whoever lost its parent has said that it ended well


def test_a_warm_parent_that_hangs_is_replaced_and_its_broker_started_by_exec(
    server: Process,
) -> None:
    hung = named(server)["warm"]
    os.kill(hung, signal.SIGSTOP)
    kill_broker(server)
    assert parent_of(named(server)["store"]) == server.pid
    wait_until(lambda: named(server).get("warm", hung) != hung)
    kill_broker(server)
    assert parent_of(named(server)["store"]) == named(server)["warm"]
    assert server.terminate() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_for_all_processes_do_not_end_the_warm_parent(
    server: Process, number: signal.Signals
) -> None:
    """Of a terminal, or of a service manager; what it forks gets them."""
    warm = named(server)["warm"]
    os.kill(warm, number)
    kill_broker(server)
    assert named(server)["warm"] == warm
    store = named(server)["store"]
    os.kill(store, signal.SIGTERM)
    wait_until(lambda: named(server).get("store", store) != store)


def test_it_ends_with_a_killed_supervisor(server: Process) -> None:
    os.kill(server.pid, signal.SIGKILL)
    wait_until(lambda: not set(named(server)) - {SUPERVISOR})


def test_restarts_leave_no_zombie_no_descriptor_and_no_memory(server: Process) -> None:

    def restart_all(times: int) -> None:
        for _ in range(times):
            for name in broker_pids(server):
                kill(server, name)
        use(server)

    restart_all(1)
    warm = named(server)["warm"]
    before = [descriptors(pid) for pid in (server.pid, warm)]
    memory_kb = [private_kb(pid) for pid in (server.pid, warm)]
    restart_all(3)
    wait_until(lambda: not zombies(server))
    assert named(server)["warm"] == warm
    assert [descriptors(pid) for pid in (server.pid, warm)] == before
    for pid, kb in zip((server.pid, warm), memory_kb, strict=True):
        assert private_kb(pid) < kb + 1024


def test_a_server_without_standard_streams_stops_cleanly(tmp_path: Path) -> None:
    """Whoever read them may be gone, too: that is no loss of data."""
    server = Process(tmp_path / "d", dashboard=False)
    command = [f"exec {shlex.join(server._command())} <&- >&- 2>&-"]
    server.data_dir.mkdir()
    server._process = subprocess.Popen(command, shell=True, start_new_session=True)
    try:
        server.wait_ready()
        assert set(broker_pids(server)) == {"store", "pubsub", "queue", "stream"}
        assert server.terminate() == 0
    finally:
        server.close()
