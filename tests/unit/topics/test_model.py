"""What counts as a message and what as its value (SPEC G2)."""

from __future__ import annotations

from typing import Any

import pytest

from nexo.errors import InvalidInput
from nexo.topics.model import ProducerRecord


@pytest.mark.parametrize(
    ("given", "record"),
    [
        ({"value": 1}, ProducerRecord(1)),
        ({"key": "a", "value": {"n": 1}}, ProducerRecord({"n": 1}, "a")),
        ({"key": None, "value": None}, ProducerRecord(None)),
        (
            {"key": "a", "value": 1, "headers": {"h": "x"}, "partition": 2},
            ProducerRecord(1, "a", {"h": "x"}, 2),
        ),
    ],
)
def test_an_envelope_is_a_message_with_its_key(
    given: dict[str, Any], record: ProducerRecord
) -> None:
    assert ProducerRecord.made(given) == record
    assert ProducerRecord.several([given]) == [record]


@pytest.mark.parametrize("value", [{}, {"value": 1, "unit": "m"}, {"key": "a", "n": 1}, [1], "a"])
def test_any_other_mapping_is_a_value(value: object) -> None:
    assert ProducerRecord.made(value) == ProducerRecord(value)


def test_what_looks_like_an_envelope_is_the_value_if_its_key_is_an_argument() -> None:
    assert ProducerRecord.made({"value": 1}, "a") == ProducerRecord({"value": 1}, "a")


def test_an_envelope_without_a_value_is_rejected_with_what_to_do() -> None:
    with pytest.raises(InvalidInput, match=r"without its 'value'.*ProducerRecord\(value\)"):
        ProducerRecord.made({"key": "a", "headers": {}})
