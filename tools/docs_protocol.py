"""The protocol's reference page, read from the source of `nexo.protocol`.

Read, not imported: what a member or a field means stands in the string below it, which
Python does not keep.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from nexo.errors import BY_CODE
from nexo.model import Broker
from nexo.protocol.frames import FrameKind, Status
from nexo.protocol.ops import BROKER_OF, Op
from tools.docs_text import blocks, member_notes, prose, table

SOURCE = Path(__file__).resolve().parent.parent / "src" / "nexo" / "protocol"

INTRO = """# The wire protocol

One TCP port serves all brokers. The opcodes of the existing TypeScript client, marked with
its names (`MAP_…`, `Q_…`, `PUB`, `SUB`, `S_…`), are spoken as they are; the others are
additions. Integers in frames and fields are big-endian.

## Frames

`type u8 · meta u8 · id u32 · length u32 · payload`

- `str` is `length u32`, then UTF-8. A `value` is one type byte (0 raw bytes, 1 text, 2 JSON),
  then its content to the end of the field.
- Requests of one connection to one broker run in the order sent. Replies carry the request's
  id and may come in any order, since some requests wait.
- A frame longer than `max_payload_bytes` is refused before it is read: an error reply, then
  the connection closes.
- A client that starts with HELLO names the broker it wants; its connection then lives in that
  broker's process, and its errors come as code and message. Without HELLO a connection may mix
  brokers.
- A server that stops finishes what it has begun. A request that is refused with SHUTTING_DOWN has
  not run. A client whose HELLO says `resends` then gets GOODBYE: of its requests, those without a
  reply by then have not run either. It closes the connection, and sends them to the next server.
"""


def page() -> str:
    """The whole page."""
    parts = [INTRO, "### Types\n", _enum("frames.py", "FrameKind", FrameKind)]
    parts += ["### Status of a response\n", _enum("frames.py", "Status", Status)]
    parts += ["## Any broker\n", _opcodes(None), *_structs(["hello.py", "server.py"])]
    for broker in Broker:
        parts += [f"## {broker.label.capitalize()}\n", *_introduction(broker), _opcodes(broker)]
        parts += _structs(_modules(broker))
    parts += ["## Error codes\n", _errors()]
    return "\n".join(parts)


def _introduction(broker: Broker) -> Iterator[str]:
    """What the broker's modules say at their heads, but for the tables of opcodes."""
    for file in _modules(broker):
        for block in blocks(_module_doc(_parse(file))):
            if isinstance(block, str):
                yield block + "\n"
            elif block[0][0] != "opcode":
                yield table(block[0], block[1:])


def _enum(file: str, name: str, members: type[FrameKind] | type[Status]) -> str:
    notes = member_notes(_class(file, name))
    rows = [(f"0x{member:02X}", member.name, notes.get(member.name, "")) for member in members]
    return table(("number", "name", "meaning"), rows)


def _opcodes(broker: Broker | None) -> str:
    notes = _requests(broker) | member_notes(_class("ops.py", "Op"))
    found = [op for op in Op if BROKER_OF[op] is broker]
    rows = [(f"0x{op:02X}", f"`{op.name}`", notes.get(op.name, "")) for op in sorted(found)]
    return table(("op", "name", "request and reply"), rows)


_OPCODE = re.compile(r"\b(?:[A-Z]+_)*[A-Z]+\b")


def _requests(broker: Broker | None) -> dict[str, str]:
    """Opcodes and their structs: paired by a table in the module, or named in the docstring."""
    found: dict[str, str] = {}
    for file in _modules(broker) if broker else ():
        tree = _parse(file)
        notes = {
            node.name: f"[`{node.name}`](#{node.name.lower()}). {_doc(node)}"
            for node in tree.body
            if isinstance(node, ast.ClassDef)
        }
        for note in notes.values():
            found |= dict.fromkeys(_OPCODE.findall(note), note)
        found |= {op: notes[struct] for op, struct in _pairs(tree) if struct in notes}
        found |= dict(_tabled(tree))
    return found


def _tabled(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The rows ``opcode, request, reply`` of a table in the module's docstring."""
    for block in blocks(_module_doc(tree)):
        if not isinstance(block, str) and block[0][0] == "opcode":
            for op, request, reply in block[1:]:
                yield op, f"{request}. Reply: {reply}."


def _parse(file: str) -> ast.Module:
    return ast.parse((SOURCE / file).read_text(encoding="utf-8"))


def _module_doc(tree: ast.Module) -> str:
    return ast.get_docstring(tree) or ""


def _pairs(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Entries ``Op.NAME: Struct`` or ``Op.NAME: (Struct, reply)`` of the tables in a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                match key, value:
                    case (
                        ast.Attribute(value=ast.Name(id="Op"), attr=op),
                        ast.Name(id=struct) | ast.Tuple(elts=[ast.Name(id=struct), _]),
                    ):
                        yield op, struct


def _doc(node: ast.ClassDef) -> str:
    return prose(ast.get_docstring(node) or "")


_FURTHER = {
    Broker.STORE: ("../model/store.py",),
    Broker.PUBSUB: ("../model/pubsub.py",),
    Broker.QUEUE: ("messages.py", "../model/queue.py"),
    Broker.STREAM: ("messages.py", "xstreams.py", "../model/stream.py"),
}
"""Modules of a broker that do not bear its name."""


def _modules(broker: Broker) -> list[str]:
    own = [path for path in SOURCE.rglob("*.py") if path.stem.split("_")[0] == broker.label]
    packaged = (SOURCE / broker.label).glob("*.py")
    paths = [*own, *packaged, *(SOURCE / file for file in _FURTHER.get(broker, ()))]
    return sorted({str(path.relative_to(SOURCE)) for path in paths})


_BASES = {"msgspec.Struct": False, "Struct": False, "AsMap": False, "AsArray": True}
"""What structs derive from, and whether they travel as arrays then."""


def _structs(files: Iterable[str]) -> Iterator[str]:
    for file in files:
        arrays = dict(_BASES)
        for node in _parse(file).body:
            if isinstance(node, ast.ClassDef) and (array := _layout(node, arrays)) is not None:
                arrays[node.name] = array
                if not node.name.startswith("_") and node.name not in _BASES:
                    yield from _struct(node, array)


def _layout(node: ast.ClassDef, arrays: dict[str, bool]) -> bool | None:
    """Whether a struct travels as an array, itself or by its base; None if it is no struct."""
    bases = [arrays[name] for base in node.bases if (name := ast.unparse(base)) in arrays]
    own = any(word.arg == "array_like" for word in node.keywords)
    return own or any(bases) if bases else None


def _struct(node: ast.ClassDef, array: bool) -> Iterator[str]:
    described = f"{_doc(node)} {'An array.' if array else 'A map.'}\n"
    notes = member_notes(node)
    rows = [
        (f"`{_name(field)}`", f"`{ast.unparse(field.annotation)}`", _default(field),
         notes.get(field.target.id, ""))
        for field in node.body
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        and "ClassVar" not in ast.unparse(field.annotation)
    ]  # fmt: skip
    yield f"### {node.name}\n"
    yield described
    if rows:
        yield table(("field", "type", "default", "meaning"), rows)


def _name(field: ast.AnnAssign) -> str:
    """A field's name on the wire."""
    name = _given(field, "name")
    return ast.unparse(field.target) if name is None else str(ast.literal_eval(name))


def _default(field: ast.AnnAssign) -> str:
    value = _given(field, "default") or field.value
    return f"`{ast.unparse(value)}`" if value is not None else ""


def _given(field: ast.AnnAssign, keyword: str) -> ast.expr | None:
    """What ``msgspec.field`` was given."""
    if isinstance(field.value, ast.Call) and ast.unparse(field.value.func) == "msgspec.field":
        return next((each.value for each in field.value.keywords if each.arg == keyword), None)
    return None


def _errors() -> str:
    rows = [(f"`{code}`", prose(cls.__doc__ or "")) for code, cls in sorted(BY_CODE.items())]
    return table(("code", "meaning"), rows)


def _class(file: str, name: str) -> ast.ClassDef:
    return next(n for n in _parse(file).body if isinstance(n, ast.ClassDef) and n.name == name)
