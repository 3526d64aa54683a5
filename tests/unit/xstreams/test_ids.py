"""Message ids and ranges of them."""

from __future__ import annotations

import pytest

from nexo.errors import InvalidInput
from nexo.xstreams.ids import GREATEST, MAX_SEQ, ZERO, MessageId, lower, parse, upper


def test_ids_compare_as_numbers() -> None:
    assert parse("9-10") > parse("9-9") > parse("8-99")
    assert str(parse("1700000000000-7")) == "1700000000000-7"


def test_ends_of_ranges() -> None:
    assert (lower("-"), upper("+")) == (ZERO, GREATEST)
    assert (lower("5"), upper("5")) == (MessageId(5, 0), MessageId(5, MAX_SEQ))
    assert (lower("(5-1"), upper("(5-1")) == (MessageId(5, 2), MessageId(5, 0))
    assert lower(f"(5-{MAX_SEQ}") == MessageId(6, 0)
    assert upper("(5-0") == MessageId(4, MAX_SEQ)


@pytest.mark.parametrize(
    "text", ["", "a", "1-", "-1", "1-2-3", "1.5", " 1-1", "１-１", "(", None, 7]
)
def test_other_texts_are_refused(text: object) -> None:
    with pytest.raises(InvalidInput):
        parse(text)
