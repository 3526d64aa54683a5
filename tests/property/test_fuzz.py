"""No decoder lets anything but a refusal escape; ``tools/fuzz.py`` does the same for longer.

MEASURE, faults: a huge length or count, random bytes.
"""

from __future__ import annotations

import os
import random
import resource

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.property import kept_inputs
from tests.property.fuzz_targets import every_target
from tests.property.mutations import mutated

TARGETS = every_target()
CASES = 200_000 if os.environ.get("SOAK") else 2_000
MOST_GROWTH_KIB = 128 * 1024


@pytest.mark.parametrize("name", TARGETS)
def test_sound_input_and_the_corpus_are_taken(name: str) -> None:
    for seed in [*TARGETS[name].seeds, *kept_inputs.load(name)]:
        TARGETS[name](seed)


@pytest.mark.parametrize("name", TARGETS)
def test_mutations_of_sound_input_are_taken_or_refused(name: str) -> None:
    target, source = TARGETS[name], random.Random(name)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(CASES):
        data = mutated(source, target.seeds)
        try:
            target(data)
        except Exception as error:
            raise AssertionError(f"case {number} of {name}: {data!r}") from error
    growth = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert growth < MOST_GROWTH_KIB, f"{name} took {growth} KiB"


@given(st.sampled_from(sorted(TARGETS)), st.binary(max_size=300))
def test_random_bytes_are_taken_or_refused(name: str, data: bytes) -> None:
    TARGETS[name](data)
