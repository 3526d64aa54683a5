"""What is said of a table of rows by key: how its rows are told apart, and what is beside it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from nexo.lake.tables import TERMS

STATE_SUFFIX, CHANGES_SUFFIX = "__state", "__changes"


class KeyTerms(msgspec.Struct, frozen=True):
    """How a table's rows are told apart, and which of them it shows."""

    keys: tuple[str, ...]
    history: bool = False
    """Whether all versions are kept, or the newest row of each key."""
    tracked: tuple[str, ...] = ()
    """Of versions: the columns whose change begins a new one."""


def terms_in(properties: Mapping[str, str]) -> KeyTerms | None:
    """How a table's rows are told apart; None if it is no table of rows by key."""
    text = properties.get(TERMS)
    return None if text is None else msgspec.json.decode(text, type=KeyTerms)
