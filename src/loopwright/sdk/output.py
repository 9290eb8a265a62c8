"""What a program says to the outside while it runs. Never waits. `print` goes to the log as well."""

from typing import Any

from loopwright.sdk.port import current_port


def emit(value: Any) -> None:  # noqa: ANN401 (JSON)
    """Sends a JSON value to the client as an event."""
    current_port().post({"op": "emit", "value": value})


def emit_text(text: str) -> None:
    """Sends text to the client; as a model name, it is the message's content."""
    current_port().post({"op": "emit_text", "text": text})


def log(*values: object) -> None:
    """Writes a line to the run's log."""
    current_port().log("log", " ".join(str(value) for value in values))
