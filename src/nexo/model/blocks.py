"""Jobs as every layer sees them, whatever protocol or file they travel in.

A *block* is the values of some jobs: ``count u32``, ``int32`` ends ``[count + 1]`` and the
values one after another, each with its type byte; little-endian, as in Arrow. A block is
never taken apart between the producer and the consumer, only cut.

A job's id is 16 bytes, the queue's incarnation and the job's number, so that the job is found
without a search; people see it as 32 hexadecimal digits.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate, pairwise
from operator import lt
from struct import Struct
from sys import byteorder

from nexo.errors import InvalidInput, ProtocolError
from nexo.model import Buffer

# -- job ids ------------------------------------------------------------------

_ID = Struct(">QQ")
ID_SIZE = _ID.size
_LAST_DIGITS = [f"{number:02x}" for number in range(256)]


def pack_id(incarnation: int, job: int) -> bytes:
    """A job's id on the wire."""
    return _ID.pack(incarnation, job)


def unpack_id(raw: Buffer) -> tuple[int, int]:
    """Incarnation and number of a job."""
    incarnation, job = _ID.unpack(raw)
    return incarnation, job


def id_text(incarnation: int, job: int) -> str:
    """A job's id as people see it."""
    return f"{incarnation:016x}{job:016x}"


def id_texts(incarnation: int, first: int, count: int) -> list[str]:
    """`id_text` of neighbouring jobs, in order, in a sixth of the time of single calls."""
    found: list[str] = []
    while len(found) < count:
        job = first + len(found)
        head, at = id_text(incarnation, job)[:-2], job % len(_LAST_DIGITS)
        found += [head + tail for tail in _LAST_DIGITS[at : at + count - len(found)]]
    return found


def parse_id(text: str) -> bytes:
    """The 16 bytes of an id; `InvalidInput` if it is none."""
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raw = b""
    if len(raw) != ID_SIZE:
        raise InvalidInput(f"{text[:64]!r} is not a job id: it has 32 hexadecimal digits")
    return raw


# -- blocks -------------------------------------------------------------------

_COUNT = Struct("<I")
WORD = 4
MAX_BLOCK_JOBS = 1_000_000


def words_of(raw: Buffer) -> array[int]:
    """The ``int32`` ends in ``raw``."""
    words = array("i")
    words.frombytes(raw)
    if byteorder == "big":
        words.byteswap()
    return words


def pack_block(values: Sequence[bytes]) -> bytes:
    """The block of encoded values (`nexo.protocol.values`)."""
    ends = array("i", accumulate(map(len, values), initial=0))
    if byteorder == "big":
        ends.byteswap()
    return b"".join((_COUNT.pack(len(values)), ends.tobytes(), *values))


def check_block(block: bytes) -> int:
    """How many jobs a block from outside holds; `ProtocolError` if it is malformed."""
    if len(block) < _COUNT.size:
        raise ProtocolError("a block of jobs needs at least its count")
    (count,) = _COUNT.unpack_from(block)
    start = _COUNT.size + WORD * (count + 1)
    if not 0 < count <= MAX_BLOCK_JOBS or start > len(block):
        raise ProtocolError(f"a block of {len(block)} bytes cannot hold {count} jobs")
    ends = words_of(block[_COUNT.size : start]).tolist()
    if ends[0] != 0 or ends[-1] != len(block) - start or not all(map(lt, ends, ends[1:])):
        raise ProtocolError("the ends of a block's values are wrong, or a value is empty")
    return int(count)


def block_count(block: Buffer) -> int:
    """How many jobs a checked block holds."""
    return int(_COUNT.unpack_from(block)[0])


def cut(block: bytes, start: int, stop: int) -> tuple[bytes, bytes]:
    """The ends and the content of some jobs of a checked block, as a delivery carries them."""
    ends = block[_COUNT.size + WORD * start : _COUNT.size + WORD * (stop + 1)]
    first, last = words_of(ends[:WORD])[0], words_of(ends[-WORD:])[0]
    content = _COUNT.size + WORD * (block_count(block) + 1)
    return ends, block[content + first : content + last]


def values_of(ends: Buffer, content: Buffer) -> list[bytes]:
    """The values in what `cut` gave; a slice each, nothing else is copied."""
    raw, words = bytes(content), words_of(ends).tolist()
    first = words[0]
    return [raw[start - first : stop - first] for start, stop in pairwise(words)]
