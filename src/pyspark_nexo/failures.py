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
    """The JVM is gone, killed perhaps; nothing but a new start helps."""


@contextmanager
def plain_errors() -> Iterator[None]:
    """Raise what Spark reports as a `NexoError` with the cause's own message.

    A query that Spark does not understand is `InvalidInput`.
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
    """The cause that a Spark error's ``text`` tells of: ours, or else one of ``kind``."""
    if ours := _OURS.findall(text):
        name, message = ours[-1]
        return _CLASSES.get(name, NexoError)(message)
    if python := _PYTHON.findall(text):
        name, message = python[-1]
        return kind(f"Spark failed: {name}: {message}")
    told = text.strip()
    return kind(f"Spark failed: {told.splitlines()[0] if told else 'no reason given'}")
