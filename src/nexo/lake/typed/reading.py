"""One field of a value as the Python value that Arrow takes: read, checked, and finished.

Values come as JSON text, or as Python values that another format was unpacked into. What msgspec
cannot check is done by a finisher: decimals are not rounded, times are in UTC.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Context, Decimal, DecimalException, Inexact, InvalidOperation
from functools import partial
from typing import Annotated, Any, TypeAlias, TypedDict

import msgspec

from nexo.lake.typed.kinds import DecimalKind, Kind, ListKind, MapKind, PlainKind, StructKind

_INT = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
_LONG = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_MOST_FLOAT = (2 - 2**-23) * 2.0**127
_FLOAT = Annotated[float, msgspec.Meta(ge=-_MOST_FLOAT, le=_MOST_FLOAT)]
_TYPES: dict[str, Any] = {
    "boolean": bool, "int": _INT, "long": _LONG, "float": _FLOAT, "double": float, "string": str,
    "binary": bytes, "date": date, "timestamp": datetime,
}  # fmt: skip

_list_type: Any = list
_dict_type: Any = dict
_typed_dict: Any = TypedDict
"""Types that are built at run time, which type checkers do not follow."""

Finish: TypeAlias = Callable[[Any], Any]


class Misfit(msgspec.ValidationError):
    """A field that does not fit; its message says where it is."""


def python_type(kind: Kind, as_json: bool) -> Any:  # noqa: PLR0911 - a case for each type
    """What msgspec reads a field as; null fits everything."""
    match kind:
        case PlainKind(name="json"):
            return msgspec.Raw if as_json else Any
        case PlainKind(name="float") if not as_json:  # it may be infinite, or no number
            return float | None
        case PlainKind():
            return _TYPES[kind.name] | None
        case DecimalKind():
            return Decimal | None
        case ListKind():
            return _list_type[python_type(kind.element, as_json)] | None
        case MapKind():
            key = _TYPES[kind.key.name]
            return _dict_type[key, python_type(kind.value, as_json)] | None
        case StructKind():
            fields = {name: python_type(each, as_json) for name, each in kind.fields}
            return _typed_dict("Fields", fields, total=False) | None


# -- finishing -------------------------------------------------------------------------


def finisher(  # noqa: PLR0911 - a case for each type
    kind: Kind, path: str, as_json: bool
) -> Finish | None:
    """What is left to do after a field at ``path`` was read, unless it is null; None if nothing.

    Raises `Misfit`.
    """
    match kind:
        case PlainKind(name="json"):
            return partial(_raw_text, path) if as_json else partial(_encoded, path)
        case PlainKind(name="timestamp"):
            return partial(utc, path)
        case DecimalKind():
            context = Context(prec=kind.precision, traps=[Inexact, InvalidOperation])
            quantum = Decimal(1).scaleb(-kind.scale)
            return partial(_exact, f"does not fit {kind} - at `{path}`", quantum, context)
        case ListKind():
            each = finisher(kind.element, f"{path}[...]", as_json)
            return None if each is None else partial(_list, each)
        case MapKind():
            return partial(_pairs, finisher(kind.value, f"{path}[...]", as_json))
        case StructKind():
            found = {name: finisher(k, f"{path}.{name}", as_json) for name, k in kind.fields}
            done = {name: finish for name, finish in found.items() if finish is not None}
            return partial(_struct, done) if done else None
    return None


def _raw_text(path: str, item: msgspec.Raw) -> str | None:
    try:
        text = bytes(item).decode()
    except UnicodeDecodeError as error:
        raise Misfit(f"{error} - at `{path}`") from None
    return None if text == "null" else text


def _encoded(path: str, item: Any) -> str:
    try:
        return msgspec.json.encode(item).decode()
    except (TypeError, ValueError, RecursionError) as error:
        raise Misfit(f"{error} - at `{path}`") from None


def utc(path: str, item: datetime) -> datetime:
    """A time without a zone is in UTC."""
    try:
        return item.astimezone(UTC) if item.tzinfo is not None else item.replace(tzinfo=UTC)
    except OverflowError as error:
        raise Misfit(f"{error} - at `{path}`") from None


def _exact(why: str, quantum: Decimal, context: Context, item: Decimal) -> Decimal:
    try:
        if item.is_finite():
            return item.quantize(quantum, context=context)
    except DecimalException:
        pass
    raise Misfit(f"Number {why}")


def _list(finish: Finish, items: list[Any]) -> list[Any]:
    return [None if item is None else finish(item) for item in items]


def _pairs(finish: Finish | None, items: Mapping[Any, Any]) -> list[tuple[Any, Any]]:
    """As Arrow takes maps."""
    if finish is None:
        return list(items.items())
    return [(key, None if item is None else finish(item)) for key, item in items.items()]


def _struct(finishers: Mapping[str, Finish], items: dict[str, Any]) -> dict[str, Any]:
    for name, finish in finishers.items():
        if (item := items.get(name)) is not None:
            items[name] = finish(item)
    return items


# -- permissive ------------------------------------------------------------------------

_list_of_raw = msgspec.json.Decoder(list[msgspec.Raw]).decode
raw_by_name = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
"""The fields of a JSON object, not read yet."""
BAD = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What is raised for a value that does not fit."""


class LenientReader:
    """Reads one field; only the innermost part that does not fit becomes null."""

    def __init__(self, kind: Kind, path: str, as_json: bool) -> None:
        self._path = path
        wanted = python_type(kind, as_json)
        self._decode: Callable[[Any], Any] = partial(msgspec.convert, type=wanted)
        self._elements: Callable[[Any], list[Any]] = partial(msgspec.convert, type=list[Any])
        self._fields: Callable[[Any], dict[Any, Any]] = partial(
            msgspec.convert, type=dict[Any, Any]
        )
        if as_json:
            self._decode = msgspec.json.Decoder(wanted).decode
            self._elements, self._fields = _list_of_raw, raw_by_name
        self._finish = finisher(kind, path, as_json)
        self._kind = kind
        match kind:
            case ListKind():
                self._parts = {"": LenientReader(kind.element, f"{path}[...]", as_json)}
            case MapKind():
                self._parts = {"": LenientReader(kind.value, f"{path}[...]", as_json)}
            case StructKind():
                self._parts = {
                    name: LenientReader(each, f"{path}.{name}", as_json)
                    for name, each in kind.fields
                }
            case _:
                self._parts = {}

    def read(self, item: Any, misfits: list[str]) -> Any:
        """The item, or the parts of it that fit; adds what is wrong to ``misfits``."""
        try:
            found = self._decode(item)
            return found if found is None or self._finish is None else self._finish(found)
        except BAD as error:
            why = str(error) if isinstance(error, Misfit) else f"{error} - at `{self._path}`"
        try:
            if self._parts:
                return self._within(item, misfits)
        except BAD:  # no list, or no object
            pass
        misfits.append(why)
        return None

    def _within(self, item: Any, misfits: list[str]) -> Any:
        match self._kind:
            case ListKind():
                inner = self._parts[""]
                return [inner.read(each, misfits) for each in self._elements(item)]
            case MapKind():
                inner, key = self._parts[""], _keys(self._kind)
                pairs = self._fields(item).items()
                return [(key(name), inner.read(each, misfits)) for name, each in pairs]
        parts = self._fields(item)
        return {
            name: inner.read(parts[name], misfits)
            for name, inner in self._parts.items()
            if name in parts
        }


def _keys(kind: MapKind) -> Callable[[Any], Any]:
    if kind.key.name == "string":
        return str
    return partial(msgspec.convert, type=_TYPES[kind.key.name], strict=False)
