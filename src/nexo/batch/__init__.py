"""Record batches: the one format on the wire, on disk and in Spark.

A batch is one log entry: the header of `nexo.storage.header`, then columns in Arrow's
memory layout (`nexo.batch.columns`), perhaps compressed as a whole.
"""

from nexo.batch.columns import Column
from nexo.batch.compression import MAX_BODY_BYTES, Compression
from nexo.batch.edit import cut, retime, select
from nexo.batch.encode import ANONYMOUS, MIXED, BatchProducer, EntryParts, encode, encode_plain
from nexo.batch.view import Batch, BatchRecord, decode, entries, verify
from nexo.storage.header import Flags

__all__ = [
    "ANONYMOUS",
    "MAX_BODY_BYTES",
    "MIXED",
    "Batch",
    "BatchProducer",
    "BatchRecord",
    "Column",
    "Compression",
    "EntryParts",
    "Flags",
    "cut",
    "decode",
    "encode",
    "encode_plain",
    "entries",
    "retime",
    "select",
    "verify",
]
