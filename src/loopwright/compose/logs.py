"""How a server's log looks: lines of text or of JSON on standard error. Never decides what is said. Used by serve.

What a record tells beside its message, ids of runs and requests say, are fields of the JSON, and words of the text.
"""

import json
import logging
import sys
from datetime import UTC, datetime

from loopwright.compose.config import LogConfig

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def open_log(config: LogConfig) -> None:
    """Sends what loopwright says from `level` on to standard error. Replaces what was opened before.

    Warnings of other packages, such as an exporter that reaches nobody, go there in the same form."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if config.format == "json" else TextLines())
    root = logging.getLogger("loopwright")
    root.handlers[:] = [handler]
    root.setLevel(LEVELS[config.level])
    root.propagate = False
    others = logging.StreamHandler(sys.stderr)
    others.setLevel(logging.WARNING)
    others.setFormatter(handler.formatter)
    logging.lastResort = others


class JsonLines(logging.Formatter):
    """One object a line."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        fields = {"at": at, "level": record.levelname.lower(), "log": record.name, "message": record.getMessage()}
        fields |= {name: value for name, value in getattr(record, "told", {}).items() if value != ""}
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)


class TextLines(logging.Formatter):
    """As `message (name=value, …)`."""

    def format(self, record: logging.LogRecord) -> str:
        told = ", ".join(f"{name}={value}" for name, value in getattr(record, "told", {}).items() if value != "")
        text = f"{record.getMessage()} ({told})" if told else record.getMessage()
        if record.exc_info:
            text = f"{text}\n{self.formatException(record.exc_info)}"
        return text
