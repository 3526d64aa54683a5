"""Guesses which setting an unknown name stands for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import SequenceMatcher

_WORD = re.compile(r"[a-z0-9]+")
_OURS = {"nexo", "server"}
_UNITS = {"ms", "secs", "seconds", "bytes", "size"}
_SAME = {
    **dict.fromkeys(("dir", "directory", "folder"), "path"),
    **dict.fromkeys(("address", "bind", "listen"), "host"),
    "ssl": "tls",
}
_LIKE = 0.75
_LEAST = 0.9
_NEAR = 0.2
_MOST = 2


def meant(given: str, known: Mapping[str, Iterable[str]]) -> list[str]:
    """Names of ``known`` that ``given`` may stand for, the likeliest first.

    Each comes with its other names and, last, a sentence on what it does. Names are compared by
    letters, by the words that both have, by their last word, and by that sentence.
    """
    scores = {name: _score(given, name, *others) for name, others in known.items()}
    best = max(scores.values(), default=0.0)
    ranked = sorted(scores, key=lambda name: -scores[name])
    return [name for name in ranked if scores[name] >= max(_LEAST, best - _NEAR)][:_MOST]


def did_you_mean(given: str, known: Mapping[str, Iterable[str]], otherwise: str) -> str:
    """The end of a sentence about the unknown name ``given``."""
    close = " or ".join(meant(given, known))
    return f"; did you mean {close}?" if close else f"; {otherwise}"


def _score(given: str, *called: str) -> float:
    *names, does = called
    return max(_alike(given, name, does) for name in names)


def _alike(given: str, name: str, does: str) -> float:
    words, others = _distinctive(given), _distinctive(name)
    letters = SequenceMatcher(None, "_".join(_words(given)), "_".join(_words(name))).ratio()
    shared = [_found(word, others) or _found(word, _words(does)) / 2 for word in words]
    return letters + sum(shared) / len(shared) + _found(words[-1], others[-1:]) / 4


def _found(word: str, words: list[str]) -> float:
    """How like ``word`` the nearest of ``words`` is; nothing if it is another word."""
    nearest = max((_like(word, each) for each in words), default=0.0)
    return nearest if nearest >= _LIKE else 0.0


def _like(one: str, other: str) -> float:
    short, long = sorted((one, other), key=len)
    if len(short) > 2 and long.startswith(short):
        return max(_LIKE, len(short) / len(long))
    return SequenceMatcher(None, one, other).ratio()


def _distinctive(name: str) -> list[str]:
    """The words that distinguish settings."""
    words = _words(name)
    return [word for word in words if word not in _UNITS] or words


def _words(text: str) -> list[str]:
    found = _WORD.findall(text.lower().replace("_", " "))
    words = list(dict.fromkeys(_SAME.get(word, word) for word in found))
    return [word for word in words if word not in _OURS] or words or [""]
