"""``nexo restore`` from a bucket with something missing or damaged (SPEC Q4, FINDINGS T5, T7)."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner, Result

from nexo.cli import main
from nexo.model import Broker
from nexo.replication.objects import ObjectsBelow
from nexo.replication.stores import FolderObjects
from tests.unit.replication.test_replay import Leader


def fill(bucket: Path) -> None:
    """A log of five writes for each broker."""
    for broker in Broker:
        Leader(ObjectsBelow(FolderObjects(bucket), f"{broker.label}/")).ship(b"abcde")


def restore(bucket: Path, folder: Path) -> Result:
    return CliRunner().invoke(
        main, ["restore", bucket.as_uri(), "--data-dir", str(folder), "--json"]
    )


def restored(folder: Path) -> dict[str, bytes]:
    return {broker.label: (folder / broker.label / "log").read_bytes() for broker in Broker}


def log_path(bucket: Path, broker: str, number: int) -> Path:
    return bucket / broker / "log" / f"{number:020}"


def test_each_broker_is_restored_up_to_its_damage_which_is_named(tmp_path: Path) -> None:
    bucket, folder = tmp_path / "bucket", tmp_path / "data"
    fill(bucket)
    flipped = log_path(bucket, "queue", 4)
    data = bytearray(flipped.read_bytes())
    data[-3] ^= 1  # one byte, or two neighbours, would be put right
    data[-9] ^= 1
    flipped.write_bytes(data)
    log_path(bucket, "stream", 2).unlink()
    done = restore(bucket, folder)
    assert done.exit_code == 1
    damage = json.loads(done.stdout)["damage"]
    assert len(damage) == 2
    assert "queue/log/00000000000000000004: log object 4 is damaged" in damage[0]
    assert "stream/log/00000000000000000002 is missing" in damage[1]
    full = b"abcde"
    assert restored(folder) == {"store": full, "pubsub": full, "queue": b"abc", "stream": b"a"}


def test_a_sound_bucket_is_restored_without_a_word_of_damage(tmp_path: Path) -> None:
    bucket, folder = tmp_path / "bucket", tmp_path / "data"
    fill(bucket)
    done = restore(bucket, folder)
    assert done.exit_code == 0
    assert json.loads(done.stdout)["damage"] == []
    assert set(restored(folder).values()) == {b"abcde"}
