"""Which tests cover a source file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import test_of


def names(source: str) -> set[str]:
    return {str(test) for test in test_of.tests_of(Path(source))}


def test_a_file_is_covered_by_the_tests_that_have_its_name_or_import_it() -> None:
    covering = names("src/nexo/storage/log.py")
    assert {"tests/unit/storage/test_log.py", "tests/contract/test_log_contract.py"} <= covering
    assert "tests/unit/test_test_of.py" not in covering


def test_the_tests_that_find_a_planted_mistake_of_a_file_cover_it() -> None:
    assert "tests/unit/services/queue/test_gathering.py" in names(
        "src/nexo/services/queue/service.py"
    )


@pytest.mark.parametrize("file", ["README.md", "src/nexo", "src/nexo/none.py", "/etc/passwd"])
def test_what_is_no_source_file_is_refused_with_an_example(file: str) -> None:
    with pytest.raises(SystemExit, match="name a Python file under src"):
        test_of.inside(file)
