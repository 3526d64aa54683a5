"""Log lines for people (text) or machines (JSON), on standard error."""

from __future__ import annotations

import json
import logging
import time

from nexo.config import Settings


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process
        self.converter = time.gmtime

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "process": self._process,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line)


def json_line(process: str, level: str, message: str) -> str:
    """One JSON line as the log writes it, before the log is set up."""
    fields = {"name": "nexo.server", "levelname": level.upper(), "msg": message}
    return JsonFormatter(process).format(logging.makeLogRecord(fields))


def configure(settings: Settings, process: str) -> None:
    """Set up logging for this process, named ``process`` in every line."""
    handler = logging.StreamHandler()
    if settings.log_format == "json":
        handler.setFormatter(JsonFormatter(process))
    else:
        pattern = f"%(asctime)s %(levelname)-7s {process:<10} %(message)s"
        handler.setFormatter(logging.Formatter(pattern))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.log.upper())
