"""No decoder lets anything but a refusal escape; ``tools/fuzz.py`` does the same for longer.

MEASURE, faults: a huge length or count, random bytes.
"""

from __future__ import annotations

import os
import random
import resource

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.property import kept_inputs
from tests.property.fuzz_targets import ENTRANCES, TEXTS, WIRE, every_target
from tests.property.mutations import mutated

TARGETS = every_target()
QUICK = (WIRE | TEXTS).keys() - {"settings file"}
"""A million cases of these cost less than ten thousand of whole services and files."""
FULL_EXAMPLES = 100
"""Of Hypothesis in ``make test``; a profile with fewer (``make unit``) has fewer cases too."""
LONG = bool(os.environ.get("SOAK"))
MOST_GROWTH_KIB = 128 * 1024


@pytest.mark.parametrize("name", TARGETS)
def test_sound_input_and_the_corpus_are_taken(name: str) -> None:
    for seed in [*TARGETS[name].seeds, *kept_inputs.load(name)]:
        TARGETS[name](seed)


@pytest.mark.parametrize("name", TARGETS)
def test_mutations_of_sound_input_are_taken_or_refused(name: str) -> None:
    target, source = TARGETS[name], random.Random(name)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    cases = 200_000 if LONG else 50_000 if name in QUICK else 2_000
    for number in range(cases * min(settings().max_examples, FULL_EXAMPLES) // FULL_EXAMPLES):
        data = mutated(source, target.seeds)
        try:
            target(data)
        except Exception as error:
            raise AssertionError(f"case {number} of {name}: {data[:1_000]!r}") from error
    growth = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert growth < MOST_GROWTH_KIB, f"{name} took {growth} KiB"


def test_every_decoder_lies_behind_an_entrance() -> None:
    assert sorted(name for names in ENTRANCES.values() for name in names) == sorted(TARGETS)


@given(st.sampled_from(sorted(TARGETS)), st.binary(max_size=300))
def test_random_bytes_are_taken_or_refused(name: str, data: bytes) -> None:
    TARGETS[name](data)
