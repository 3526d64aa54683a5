"""Values as people see and write them."""

import pytest

from nexo.admin.values import NewValue, Value, python_value, shown, shown_content
from nexo.errors import InvalidInput
from nexo.protocol.values import encode_value


def test_json_keeps_its_digits() -> None:
    assert shown(b'\x02{"n":123456789012345678901234567890}').text == (
        '{\n  "n": 123456789012345678901234567890\n}'
    )


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [("<b>", "text", "<b>"), (b"\x00\xff", "bytes", "AP8="), ([1], "json", "[\n  1\n]")],
)
def test_each_type_has_its_text(value: object, kind: str, text: str) -> None:
    view = shown(encode_value(value))
    assert (view.type, view.text, view.truncated) == (kind, text, False)


def test_what_is_too_large_is_cut_and_says_so() -> None:
    view = shown(encode_value("x" * 5_000), 100)
    assert (len(view.text), view.size_bytes, view.truncated) == (100, 5_000, True)


@pytest.mark.parametrize("raw", [b"", b"\x02{broken", b"\x01\xff", b"\x09odd"])
def test_what_other_clients_wrote_is_shown_somehow(raw: bytes) -> None:
    assert isinstance(shown(raw), Value)


def test_a_deleted_record_has_no_value() -> None:
    assert shown_content(0, None).type == "deleted"


@pytest.mark.parametrize(
    ("given", "value"),
    [
        (NewValue('{"a": 1}'), {"a": 1}),
        (NewValue("plain", "text"), "plain"),
        (NewValue("AP8=", "bytes"), b"\x00\xff"),
    ],
)
def test_what_is_written_becomes_a_value(given: NewValue, value: object) -> None:
    assert python_value(given) == value


@pytest.mark.parametrize("given", [NewValue("{"), NewValue("%", "bytes"), NewValue("")])
def test_text_of_the_wrong_type_is_refused(given: NewValue) -> None:
    with pytest.raises(InvalidInput):
        python_value(given)
