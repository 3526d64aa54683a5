"""What failed in Spark, in a sentence: Python's own error instead of Java's stack."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager

from nexo.errors import BY_CODE, InvalidInput, NexoError, Unavailable

_OURS = re.compile(r"nexo\.errors\.(\w+): (.*)")
_PYTHON = re.compile(r"^(\w+(?:\.\w+)*(?:Error|Exception)): (.*)$", re.MULTILINE)
_CHATTER = "SQLQueryContextLogger"
"""Where Spark logs, with its stack, what it raises anyway."""
_ENDED = "Spark has ended: start again; what was committed is kept"
_CLASSES = {cls.__name__: cls for cls in BY_CODE.values()}


class SparkEnded(Unavailable):
    """The JVM has ended, perhaps killed; only a new start helps."""


@contextmanager
def plain_errors() -> Iterator[None]:
    """Raise Spark's errors as a `NexoError` with the message of their cause.

    A query that Spark rejects is `InvalidInput`.
    """
    from py4j.protocol import (  # type: ignore[import-untyped]  # noqa: PLC0415
        Py4JError,
        Py4JNetworkError,
    )
    from pyspark.errors import AnalysisException, PySparkException  # noqa: PLC0415

    logging.getLogger(_CHATTER).disabled = True
    try:
        yield
    except AnalysisException as error:
        raise plain(str(error), InvalidInput) from error
    except Py4JNetworkError as error:
        raise SparkEnded(_ENDED) from error
    except (PySparkException, Py4JError) as error:
        raise plain(str(error)) from error
    except ConnectionError as error:
        if isinstance(error, NexoError):
            raise
        raise SparkEnded(_ENDED) from error


def plain(text: str, kind: type[NexoError] = NexoError) -> NexoError:
    """The cause in the text of a Spark error: ours with its own class, any other as ``kind``."""
    if ours := _OURS.findall(text):
        name, message = ours[-1]
        return _CLASSES.get(name, NexoError)(message)
    if python := _PYTHON.findall(text):
        name, message = python[-1]
        return kind(f"Spark failed: {name}: {message}")
    first, *_ = text.strip().splitlines() or ["no reason given"]
    return kind(f"Spark failed: {first}")
