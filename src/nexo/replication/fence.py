"""The rules of the fence, without a store: what proves the lead, and what is never deleted.

An old leader may sleep for as long as it likes. When it wakes it tries the number that it would
have tried before: the next lease, or the next object of a log. Whoever led after it took exactly
that number, or one more if the old leader's last try had worked without its knowing. So these
objects are kept for ever: the first lease of each term, the lease before it, and the first object
of each term in a log. They are few and small. ``docs/design/replication.md`` has the proof.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

LEASES_KEPT = 20
"""How many of a leader's newest leases are kept beside those that fence."""


def renewal_counts(*, created: bool, previous_is_mine: bool, lapsed: bool, is_newest: bool) -> bool:
    """Whether a renewal lets its leader go on.

    A lease that was created is no proof alone: its number may be free because all were deleted.
    Nor is an unbroken history, once the leader's time was over: then nothing newer may be there.
    """
    return created and previous_is_mine and (is_newest or not lapsed)


def is_broken(numbers: Sequence[int]) -> bool:
    """Whether leases were deleted that nobody deletes: of the newest, its predecessor is kept.

    Nothing at all is broken too: a bucket may have been emptied while another server leads.
    """
    return not numbers or (numbers[-1] > 0 and numbers[-1] - 1 not in numbers)


def needless_leases(
    numbers: Iterable[int], first: int, newest: int, term_of: Callable[[int], str]
) -> list[int]:
    """The leases to delete for the leader whose term began with lease ``first``.

    Of its own term all but the first and the newest few, of the term before it all but the first
    and the last. ``term_of`` is asked about leases of the term before, and one more.
    """
    known = sorted(numbers)
    gone = [each for each in known if first < each < newest - LEASES_KEPT]
    before = [each for each in known if each < first]
    if before:
        last = before.pop()
        term = term_of(last)
        run = [last]
        while before and term_of(before[-1]) == term:
            run.append(before.pop())
        gone += run[1:-1]
    return sorted(gone)


def first_of_each(keys: Sequence[str], term_of: Callable[[str], str]) -> Iterator[str]:
    """Return the keys of a log that begin a term, in order.

    A term that is over never comes back: if both ends of a stretch are of one term, all of it is,
    and nothing between is read.
    """
    if keys:
        yield keys[0]
        yield from _changes(keys, 0, len(keys) - 1, term_of(keys[0]), term_of(keys[-1]), term_of)


def _changes(
    keys: Sequence[str],
    low: int,
    high: int,
    low_term: str,
    high_term: str,
    term_of: Callable[[str], str],
) -> Iterator[str]:
    if low_term == high_term:
        return
    if high - low == 1:
        yield keys[high]
        return
    middle = (low + high) // 2
    term = term_of(keys[middle])
    yield from _changes(keys, low, middle, low_term, term, term_of)
    yield from _changes(keys, middle, high, term, high_term, term_of)
