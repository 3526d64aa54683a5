"""``nexo doctor``: finds damage, mends what can be, and touches nothing unasked (SPEC K5, E6)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import nexo
from nexo import testing
from nexo.cli import main
from nexo.storage.recovery import MARK
from tests.timing import wait_until


def doctor(folder: Path, *args: str) -> Result:
    result = CliRunner().invoke(main, ["doctor", str(folder), *args])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    return result


def findings(folder: Path, *args: str) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in doctor(folder, *args, "--json").output.splitlines()]
    return [row for row in rows if "kind" in row]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The data of a server that was stopped, with something in every broker."""
    data = tmp_path / "data"
    with (
        testing.server(data_dir=data, segment_bytes=64 * 1024, store_snapshot_ms=60_000) as url,
        nexo.connect(url) as client,
    ):
        stream = client.stream("s").create()
        for number in range(300):
            stream.publish(f"{number:04}" * 100)
        client.queue("q").create().push_many(["job"] * 10)
        client.pubsub.publish("t", "x", retain=True)
        client.store.set("k", "v")
    return data


def segments(folder: Path) -> list[Path]:
    return sorted((folder / "stream" / "streams").rglob("*.log"))


def image(folder: Path) -> dict[Path, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path: path.read_bytes() for path in files}


def test_a_sound_folder_is_sound_and_stays_as_it_is(folder: Path) -> None:
    before = image(folder)
    result = doctor(folder)
    assert result.exit_code == 0, result.output
    assert "all data is sound" in result.output
    assert findings(folder) == []
    assert image(folder) == before


def test_the_folder_may_be_an_option(folder: Path) -> None:
    runner = CliRunner()
    assert runner.invoke(main, ["doctor", "--data-dir", str(folder)]).exit_code == 0
    twice = runner.invoke(main, ["doctor", str(folder), "--data-dir", str(folder)])
    assert twice.exit_code == 2
    assert "give the folder once" in twice.output


def test_a_flipped_byte_is_found_with_its_offset_and_never_removed(folder: Path) -> None:
    victim = segments(folder)[0]
    data = bytearray(victim.read_bytes())
    data[data.index(b"0007" * 50)] ^= 1
    victim.write_bytes(data)
    (found,) = findings(folder)
    assert (found["kind"], found["serious"], found["mended"]) == ("damage", True, False)
    assert found["detail"].startswith("offsets 7 to 7 ")
    assert found["path"].endswith(victim.name)
    assert doctor(folder, "--repair").exit_code == 1
    assert victim.read_bytes() == bytes(data)


def test_a_torn_tail_is_cut_only_when_asked(folder: Path) -> None:
    last = segments(folder)[-1]
    whole = last.read_bytes()
    last.write_bytes(whole[:-100])
    (found,) = findings(folder)
    assert (found["kind"], found["serious"]) == ("torn tail", False)
    assert last.read_bytes() == whole[:-100]
    (mended,) = findings(folder, "--repair")
    assert mended["mended"]
    assert findings(folder) == []
    with testing.server(data_dir=folder) as url, nexo.connect(url) as client:
        assert client.stream("s").publish("next").offset == 299


def test_damaged_and_missing_indexes_are_rebuilt(folder: Path) -> None:
    first, second, *_ = [path.with_suffix(".idx") for path in segments(folder)]
    expected = second.read_bytes()
    first.write_bytes(b"nonsense")
    second.unlink()
    found = findings(folder)
    assert {row["kind"] for row in found} == {"index"}
    assert {Path(row["path"]).name for row in found} == {first.name, second.name}
    findings(folder, "--repair")
    assert findings(folder) == []
    assert second.read_bytes() == expected


def test_a_damaged_journal_is_serious(folder: Path) -> None:
    (journal,) = (folder / "queue" / "q").glob("*.log")
    data = journal.read_bytes()
    journal.write_bytes(data.replace(b"job", b"JOB", 1))
    assert doctor(folder).exit_code == 1
    assert {row["path"] for row in findings(folder)} >= {f"queue/q/{journal.name}"}


def test_a_flipped_byte_of_a_journal_is_put_right_when_asked(folder: Path) -> None:  # SPEC Q4
    (journal,) = (folder / "queue" / "q").glob("*.log")
    whole = journal.read_bytes()
    flipped = whole.replace(b"job", b"jOb", 1)
    journal.write_bytes(flipped)
    (found,) = findings(folder)
    assert (found["kind"], found["serious"], found["mended"]) == ("flip", False, False)
    assert journal.read_bytes() == flipped
    assert findings(folder, "--repair")[0]["mended"]
    assert journal.read_bytes() == whole
    assert findings(folder) == []


def test_damaged_snapshots_are_found(folder: Path) -> None:
    snapshot = next(path for path in (folder / "stream").rglob("*.snap"))
    data = snapshot.read_bytes()
    snapshot.write_bytes(data[:-9] + b"?" * 9)
    saved = folder / "store" / "store.snapshot"
    saved.write_bytes(saved.read_bytes()[:-8])
    kinds = {row["path"]: row["kind"] for row in findings(folder)}
    assert kinds[str(snapshot.relative_to(folder))] == "snapshot"
    assert kinds["store/store.snapshot"] == "damage"


def test_leftovers_are_removed_when_asked(folder: Path) -> None:
    (folder / "stream" / ".backup-1-1" / "streams").mkdir(parents=True)
    (folder / "queue" / "half.new").touch()
    assert {row["kind"] for row in findings(folder)} == {"leftover"}
    findings(folder, "--repair")
    assert findings(folder) == []


def test_the_folder_of_a_running_server_is_only_looked_at(
    served: testing.Process,
) -> None:
    with nexo.connect(served.url) as client:
        client.stream("s").create().publish("x")
    refused = doctor(served.data_dir, "--repair")
    assert (refused.exit_code, "--read-only" in refused.output) == (1, True)
    assert doctor(served.data_dir, "--read-only").exit_code == 0
    assert doctor(served.data_dir, "--read-only", "--repair").exit_code == 2


def test_a_folder_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    assert "NOT_FOUND" in doctor(tmp_path / "nowhere").output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("options", [(), ("--repair",), ("--read-only",)])
def test_a_folder_without_data_is_not_sound_and_stays_as_it_is(
    tmp_path: Path, options: tuple[str, ...]
) -> None:  # SPEC K5
    (tmp_path / "notes.txt").touch()
    result = doctor(tmp_path, *options)
    assert (result.exit_code, "NOT_FOUND" in result.output) == (1, True)
    assert str(tmp_path) in result.output
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_folder_whose_server_was_killed_is_looked_at_only(tmp_path: Path) -> None:  # SPEC K5
    """Room behind the entries of a ``file_sync`` stream is neither damage nor a torn tail."""
    with testing.process(tmp_path, dashboard=False) as server, nexo.connect(server.url) as client:
        client.stream("s").create(persistence="file_sync").publish(b"x")
        server.kill()
    before = image(tmp_path)
    assert any(MARK in before[path] for path in segments(tmp_path))
    assert before[tmp_path / "nexo.lock"]
    wait_until(lambda: "in use" not in doctor(tmp_path).output)  # its last process has ended
    result = doctor(tmp_path)
    assert result.exit_code == 0, result.output
    assert findings(tmp_path) == []
    assert image(tmp_path) == before
