"""Regular expressions over names, matched in time that no pattern can make long.

Python's own take exponential time for some patterns, and these come from clients. As in RE2, which
Kafka uses, a pattern becomes a machine that is in several states at once: literals, ``.``, classes,
``\\d \\w \\s``, groups, ``|``, ``* + ? {m,n}``, ``^`` and ``$``. A name must match as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from nexo.errors import InvalidInput

MAX_CHARS, MAX_STATES = 500, 1_000
MAX_STEPS = 50_000
"""What is worked out for one pattern; most need some hundreds."""
_MAX_DEPTH = 30
_NAME_CHARS = frozenset(map(chr, range(0x20, 0x7F)))
_WORD = frozenset("_") | {char for char in _NAME_CHARS if char.isalnum()}
_SETS = {"d": frozenset("0123456789"), "w": _WORD, "s": frozenset(" ")}
_SETS |= {kind.upper(): _NAME_CHARS - chars for kind, chars in _SETS.items()}
_MOST_REPEATS = 1_000

Chars: TypeAlias = frozenset[str]
Node: TypeAlias = tuple["PatternPart", ...]
"""What follows one another."""


@dataclass(frozen=True, slots=True)
class PatternPart:
    """A set of characters, or alternatives, so many times."""

    chars: Chars = frozenset()
    options: tuple[Node, ...] = ()
    low: int = 1
    high: int | None = 1


class TopicPattern:
    """A compiled pattern; `InvalidInput` if it is malformed, or too large."""

    def __init__(self, text: str) -> None:
        self.text = text
        if len(text) > MAX_CHARS:
            raise InvalidInput(f"a pattern of {len(text)} characters: at most {MAX_CHARS}")
        machine = _Machine()
        self._machine, self._end = machine, machine.add()
        self._start = machine.closure({machine.build(_PatternParser(text).parse(), self._end)})
        self._next: dict[tuple[frozenset[int], str], frozenset[int]] = {}
        self._left = MAX_STEPS

    def matches(self, name: str) -> bool:
        """Whether the whole name matches; `InvalidInput` if that takes too long to find out."""
        now = self._start
        for char in name:
            found = self._next.get((now, char))
            if found is None:
                found = self._step(now, char)
            now = found
            if not now:
                return False
        return self._end in now

    def _step(self, now: frozenset[int], char: str) -> frozenset[int]:
        self._left -= len(now)
        if self._left < 0:
            raise InvalidInput(f"pattern {self.text!r} takes too long: make it simpler")
        moves = self._machine.moves
        there = {to for state in now for chars, to in moves[state] if char in chars}
        found = self._next[now, char] = self._machine.closure(there)
        return found


@dataclass(slots=True)
class _Machine:
    """States, from which a character leads to others, or nothing does."""

    moves: list[list[tuple[Chars, int]]] = field(default_factory=list)
    jumps: list[list[int]] = field(default_factory=list)

    def add(self) -> int:
        if len(self.moves) >= MAX_STATES:
            raise InvalidInput("the pattern is too large: repeat less")
        self.moves.append([])
        self.jumps.append([])
        return len(self.moves) - 1

    def build(self, node: Node, end: int) -> int:
        """States for a sequence that leads to ``end``; returns its start."""
        for piece in reversed(node):
            end = self._repeat(piece, end)
        return end

    def _repeat(self, piece: PatternPart, end: int) -> int:
        start = end
        if piece.high is None:
            loop = self.add()
            self.jumps[loop] += [end, self._once(piece, loop)]
            start = loop
        else:
            for _ in range(piece.high - piece.low):
                skip = self.add()
                self.jumps[skip] += [end, self._once(piece, start)]
                start = skip
        for _ in range(piece.low):
            start = self._once(piece, start)
        return start

    def _once(self, piece: PatternPart, end: int) -> int:
        start = self.add()
        if piece.options:
            self.jumps[start] += [self.build(option, end) for option in piece.options]
        else:
            self.moves[start].append((piece.chars, end))
        return start

    def closure(self, states: set[int]) -> frozenset[int]:
        """With all states that are reached without a character."""
        found, open_ones = set(states), [*states]
        while open_ones:
            for state in self.jumps[open_ones.pop()]:
                if state not in found:
                    found.add(state)
                    open_ones.append(state)
        return frozenset(found)


class _PatternParser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = self._depth = 0

    def parse(self) -> Node:
        if self._peek() == "^":
            self._at += 1
        options = self._options()
        if self._at < len(self._text):
            raise self._wrong("a ) that closes nothing")
        return (PatternPart(options=options),)

    def _options(self) -> tuple[Node, ...]:
        found = [self._sequence()]
        while self._peek() == "|":
            self._at += 1
            found.append(self._sequence())
        return tuple(found)

    def _sequence(self) -> Node:
        found: list[PatternPart] = []
        while self._peek() not in ("", "|", ")"):
            if self._peek() == "$" and self._text[self._at + 1 : self._at + 2] in ("", "|", ")"):
                self._at += 1
                continue
            found.append(self._repeated(self._one()))
        return tuple(found)

    def _one(self) -> PatternPart:
        char = self._take()
        match char:
            case "(":
                return self._group()
            case "[":
                return PatternPart(self._class())
            case ".":
                return PatternPart(_NAME_CHARS)
            case "\\":
                return PatternPart(self._escaped())
            case "*" | "+" | "?" | "{":
                raise self._wrong(f"{char} repeats nothing")
            case "^" | "$":
                raise self._wrong(f"{char} within the pattern")
        return PatternPart(frozenset(char))

    def _group(self) -> PatternPart:
        if self._peek() == "?":
            if self._text[self._at + 1 : self._at + 2] != ":":
                raise self._wrong("groups may only be (…) and (?:…)")
            self._at += 2
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self._wrong("too many groups within one another")
        options = self._options()
        self._depth -= 1
        if self._take() != ")":
            raise self._wrong("a ( that is not closed")
        return PatternPart(options=options)

    def _escaped(self) -> Chars:
        char = self._take()
        if char in _SETS:
            return _SETS[char]
        if not char or char.isalnum():
            raise self._wrong(f"\\{char} is not known")
        return frozenset(char)

    def _class(self) -> Chars:
        negated = self._peek() == "^"
        self._at += negated
        found: set[str] = set()
        while True:
            char = self._take()
            if char == "]" and found:
                return _NAME_CHARS - found if negated else frozenset(found)
            if not char:
                raise self._wrong("a [ that is not closed")
            chars = self._escaped() if char == "\\" else frozenset(char)
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("", "]"):
                self._at += 1
                found |= self._range(chars)
            else:
                found |= chars

    def _range(self, first: Chars) -> set[str]:
        char = self._take()
        last = self._escaped() if char == "\\" else frozenset(char)
        if len(first) != 1 or len(last) != 1 or min(first) > min(last):
            raise self._wrong("a range that is none")
        return {each for each in _NAME_CHARS if min(first) <= each <= min(last)}

    def _repeated(self, piece: PatternPart) -> PatternPart:
        char = self._peek()
        bounds = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(char)
        if bounds is not None:
            self._at += 1
        elif char == "{":
            bounds = self._counts()
        else:
            return piece
        if self._peek() == "?":  # as few as possible: which, does not matter here
            self._at += 1
        if self._peek() in ("*", "+", "?", "{"):
            raise self._wrong("a repetition of a repetition")
        low, high = bounds
        return PatternPart(piece.chars, piece.options, low, high)

    def _counts(self) -> tuple[int, int | None]:
        end = self._text.find("}", self._at)
        first, comma, last = self._text[self._at + 1 : end].partition(",")
        self._at = end + 1
        if end < 0 or not _is_count(first) or (last and not _is_count(last)):
            raise self._wrong("counts are {m}, {m,} or {m,n}")
        low = int(first)
        high = low if not comma else int(last) if last else None
        if high is not None and high < low:
            raise self._wrong("counts go down")
        return low, high

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self) -> str:
        self._at += 1
        return self._text[self._at - 1 : self._at]

    def _wrong(self, what: str) -> InvalidInput:
        return InvalidInput(f"pattern {self._text!r}, at {self._at}: {what}")


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 5 and int(text) <= _MOST_REPEATS
