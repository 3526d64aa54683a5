"""Commands that take values, of which one such as ``-5`` is not meant as an option."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from click.parser import _OptionParser

_NEGATIVE = re.compile(r"-\.?\d")
_HIDDEN = "\0"
"""Put before a negative number while click looks for options; no argument can hold it."""


class SignedCommand(click.Command):
    """Takes a word that begins like a negative number as a value."""

    def make_parser(self, ctx: click.Context) -> _OptionParser:
        """Click's parser, which gets no negative number to see."""
        parser = super().make_parser(ctx)
        parse = parser.parse_args

        def parse_hidden(args: list[str]) -> tuple[dict[str, Any], list[str], list[Any]]:
            found, rest, order = parse(
                [_HIDDEN + word if _NEGATIVE.match(word) else word for word in args]
            )
            return _shown(found), _shown(rest), order

        parser.parse_args = parse_hidden  # type: ignore[method-assign]
        return parser


class SignedGroup(click.Group):
    """A group of such commands."""

    command_class = SignedCommand
    group_class = type


def _shown(found: Any) -> Any:
    match found:
        case str():
            return found.removeprefix(_HIDDEN)
        case dict():
            return {name: _shown(value) for name, value in found.items()}
        case list() | tuple():
            return type(found)(map(_shown, found))
    return found
