"""Fields as people read them: names without units, values that carry their own."""

from __future__ import annotations

import pytest

from nexo.cli import cells


@pytest.mark.parametrize(
    ("name", "label"),
    [("ttl_s", "ttl"), ("per_s", "per s"), ("in_per_s", "in per s"), ("size_bytes", "size"),
     ("sync_ms", "sync"), ("bytes", "bytes"), ("last_ms", "last written")],
)  # fmt: skip
def test_a_label_has_no_unit(name: str, label: str) -> None:
    assert cells.label(name) == label


@pytest.mark.parametrize(
    ("item", "name", "shown", "bare"),
    [
        (1_234_567, "per_s", "1,234,567", "1234567"),
        (1_500, "lease_left_ms", "1.5s", "1.5s"),
        (0, "due_ms", "-", "-"),
        (0, "retention_ms", "no limit", "0s"),
        (90.0, "ttl_s", "1m 30s", "1m 30s"),
        (1_536, "size_bytes", "1.5 KiB", "1536"),
        (12_000, "next_offset", "12000", "12000"),
        (None, "key", "-", "-"),
        (True, "paused", "yes", "yes"),
        ("two\nlines", "value", "two\\nlines", "two\\nlines"),
        ({"a": b"x"}, "value", '{"a": {"base64": "eA=="}}', '{"a": {"base64": "eA=="}}'),
    ],
)
def test_a_value_carries_its_unit_and_numbers_are_bare_for_programs(
    item: object, name: str, shown: str, bare: str
) -> None:
    """SPEC K5."""
    assert cells.text(item, name) == shown
    assert cells.text(item, name, bare=True) == bare
