"""Names, their place in the data folder, and durations."""

from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexo.errors import InvalidName
from nexo.model import Broker, Persistence, check_name, name_of_segment, path_segment

ALLOWED = "ABCXYZabcxyz0189._:/-"


@pytest.mark.parametrize(
    "name",
    ["a", "orders", "a/b", "a:b", "a.b-c_d", "v1.2", "..a", "a..", "...", "-", "_", "x" * 255],
)
def test_a_name_of_allowed_characters_is_accepted(name: str) -> None:  # SPEC A11
    assert check_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "", "x" * 256, "/etc", "/", ".", "..", "../x", "a/../b", "a/./b", "a/..", "a b", "a\n",
        "a\x00", "ä", "a%2Fb", "a\\b", "*", "a+", "日本", "٣",
    ],
)  # fmt: skip
def test_a_name_that_could_leave_the_folder_or_confuse_is_refused(name: str) -> None:  # SPEC A11
    with pytest.raises(InvalidName, match="queue"):
        check_name(name, "queue")


def test_a_long_bad_name_does_not_flood_the_message() -> None:
    with pytest.raises(InvalidName) as caught:
        check_name("!" * 100_000)
    assert len(caught.value.message) < 300


def _accepted(name: str) -> bool:
    try:
        check_name(name)
    except InvalidName:
        return False
    return True


names = st.text(ALLOWED, min_size=1, max_size=60).filter(_accepted)


@given(names)
def test_a_name_comes_back_from_its_path_segment(name: str) -> None:
    assert name_of_segment(path_segment(name)) == name


@given(names)
def test_a_path_segment_stays_where_it_is_put(name: str) -> None:  # SPEC A11
    segment = path_segment(name)
    assert PurePosixPath("/data", segment).parent == PurePosixPath("/data")
    assert segment not in (".", "..")
    assert not segment.startswith(".")


@given(st.sets(names, min_size=2, max_size=30))
def test_two_names_never_share_a_path_segment(found: set[str]) -> None:  # SPEC A11
    assert len({path_segment(name) for name in found}) == len(found)


def test_a_name_and_its_look_alike_do_not_collide() -> None:  # SPEC A11
    assert len({path_segment(name) for name in ("a/b", "a:b", "a.b", "a-b", "a_b", "ab")}) == 6


def test_the_longest_name_still_fits_a_file_name() -> None:
    longest = "/".join(["a"] * 128)
    assert len(check_name(longest)) == 255
    assert len(path_segment(longest)) <= 255


def test_brokers_and_modes_have_the_names_the_documents_use() -> None:
    assert [broker.label for broker in Broker] == ["store", "pubsub", "queue", "stream"]
    assert [str(mode) for mode in Persistence] == ["file_async", "file_sync", "replicated"]
